"""Any tailrace command for spark-submit: `spark-submit … examples/submit.py pipeline TASK.yaml`.

Without a command, a task file is for `pipeline`: `spark-submit … examples/submit.py TASK.yaml --once`.
"""

import sys

from tailrace.cli.main import main

if sys.argv[1:] and sys.argv[1].endswith((".yaml", ".yml")):
    sys.argv.insert(1, "pipeline")
main()
