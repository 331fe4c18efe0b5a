"""The Spark half of a task for spark-submit: `spark-submit … examples/submit.py TASK.yaml [--once]`."""

import sys

from tailrace.cli.main import main

sys.argv[1:1] = ["pipeline"]
main()
