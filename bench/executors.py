"""One executor against two: the baseline of three large tables, then store and apply of their changes.

Spark's event log is the measure: the wall time of the jobs of a kind, and the longest chain, which is what the
busiest executor had to do. Where the cores are too few for two executors, the server and the driver, the chain shows
what more cores would give.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import load
import tasks
from measure import Row, say
from tailrace.lake import json_files
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

TABLES = 3
KINDS = ("baseline", "store", "apply")


@dataclass
class Steps:
    """What the event logs of a task say of its jobs: wall seconds by kind, and seconds of tasks by kind and
    executor."""

    wall: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tasks: dict[str, dict[str, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )

    def chain(self, kind: str) -> float:
        """Seconds of tasks of the busiest executor."""
        return max(self.tasks[kind].values(), default=0.0)

    def read(self, folder: Path) -> Steps:
        """Adds all event logs of a folder."""
        for file in sorted(one for one in folder.rglob("*") if one.name.startswith("events_")):
            kinds, began = dict[int, str](), dict[int, tuple[str, int]]()
            for event in map(json.loads, file.read_text().splitlines()):
                if event["Event"] == "SparkListenerJobStart":
                    group = event["Properties"].get("spark.jobGroup.id", "")
                    kind = group.rpartition(": ")[2]
                    kinds |= dict.fromkeys(event["Stage IDs"], kind)
                    began[event["Job ID"]] = kind, event["Submission Time"]
                elif event["Event"] == "SparkListenerJobEnd":
                    kind, at = began[event["Job ID"]]
                    self.wall[kind] += (event["Completion Time"] - at) / 1000
                elif event["Event"] == "SparkListenerTaskEnd":
                    info = event["Task Info"]
                    took = (info["Finish Time"] - info["Launch Time"]) / 1000
                    self.tasks[kinds[event["Stage ID"]]][info["Executor ID"]] += took
        return self


def rows(running: EmbeddedPostgres, folder: Path, *, quick: bool) -> list[Row]:
    """The bench `executors`."""
    many = 100_000 if quick else 2_000_000
    found = {executors: _steps(running, folder, executors, many) for executors in (1, 2)}
    made = []
    for kind in KINDS:
        for what, of in (("jobs", lambda one, k: one.wall[k]), ("longest chain", Steps.chain)):
            one, two = (of(found[executors], kind) for executors in (1, 2))
            made.append(Row(f"{kind} by two executors, {what}", two, "s", "one executor", one))
    return made


def _steps(running: EmbeddedPostgres, folder: Path, executors: int, many: int) -> Steps:
    name = f"executors{executors}"
    session = load.database(running, name)
    session.execute("create schema l")
    for at in range(TABLES):
        session.execute(f"create table l.t{at} (id int primary key, v text, n int)")
        session.execute(
            f"insert into l.t{at} select i, md5(i::text) || md5((-i)::text), i from generate_series(1, {many}) i"
        )
    session.execute("analyze")
    events = folder / f"{name}-events"
    spark = {
        "start": "at_once",
        "event_log": str(events),
        "spark.eventLog.compress": "false",
        "spark.master": f"local-cluster[{executors},1,1024]",
    }
    names = tuple(f"l.t{at}" for at in range(TABLES))
    file = tasks.write(folder, name, running.tcp_url(name), names, spark=spark)
    _baseline(file)
    for at in range(TABLES):
        session.execute(f"update l.t{at} set n = n + 1 where id % 10 = 0")
    tasks.capture(file)
    say(f"{name}: store and apply")
    tasks.Drain(file, "all").end()
    return Steps().read(events)


def _baseline(file: Path) -> None:
    """Reads the tables, in tasks of a pipeline that runs already."""
    say(f"{file.stem}: baseline")
    task = tasks.load(file)
    with file.with_suffix(".pipeline.log").open("w") as said:
        command = [sys.executable, "-m", "tailrace", "pipeline", str(file)]
        with subprocess.Popen(command, stdout=said, stderr=said) as pipeline:
            try:
                end = time.monotonic() + 180
                while ((json_files.read(task.run_path, "pipeline") or {}).get("spark") or {}).get(
                    "state"
                ) != "ready":
                    if time.monotonic() > end or pipeline.poll() is not None:
                        raise TimeoutError(f"no session: {file.with_suffix('.pipeline.log')}")
                    time.sleep(0.2)
                tasks.capture(file)
            finally:
                pipeline.terminate()
                pipeline.wait(60)
