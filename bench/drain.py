"""Store, or store and apply, everything in a task's LOG, in a process of its own: `drain.py TASK store|all`.

Prints JSON: seconds the session took to start, and seconds of the work alone.
"""

from __future__ import annotations

import json
import sys
import time

from tailrace.control.task import load
from tailrace.pipeline import Pipeline
from tailrace.spark import session


def main(file: str, what: str) -> None:
    """Drains one task."""
    began = time.perf_counter()
    task = load(file)
    spark = session("bench", conf=task.spark)
    pipeline = Pipeline(task, spark)
    ready = time.perf_counter()
    if what == "store":
        pipeline._finish(pipeline._store_query(once=True))  # the first half of `drain`
    else:
        pipeline.drain()
    print(json.dumps({"start": ready - began, "work": time.perf_counter() - ready}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
