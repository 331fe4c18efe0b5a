"""Store, or store and apply, what is in a task's LOG, in a process of its own: `drain.py TASK store|all`.

It works off what is there and prints a line; for each line that it is sent it does so again, as a pipeline does
that runs already. Lines are JSON: `{"start", "work"}`, seconds the session took to start (the first time) and
seconds of the work.
"""

from __future__ import annotations

import json
import sys
import time

from tailrace.config.task import load
from tailrace.execution import has_started
from tailrace.runtime.pipeline import Pipeline
from tailrace.runtime.session import background_session


def main(file: str, what: str) -> None:
    """Drains one task, and again whenever asked."""
    began = time.perf_counter()
    task = load(file)
    spark = background_session("bench", task.spark)
    spark.begin()
    pipeline = Pipeline(task, spark.as_session)
    while (
        task.spark.start == "at_once" and spark.ready is None
    ):  # a pipeline that runs already has its session
        spark.check()
        time.sleep(0.05)
    start = time.perf_counter() - began
    while True:
        began = time.perf_counter()
        if what == "store":
            pipeline.store_all()  # the first half of `drain`
        else:
            pipeline.drain()
        print(json.dumps({"start": start, "work": time.perf_counter() - began}), flush=True)
        start = 0.0
        if not sys.stdin.readline():
            break
    if has_started(spark):
        spark.as_session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
