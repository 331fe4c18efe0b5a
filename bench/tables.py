"""Many small tables in one task, each with a few changes: 20, 200, and 1,000 of them; their baseline, then store
and apply without a key log and with the full one; time and memory."""

from __future__ import annotations

from pathlib import Path

import load
import measure
import tasks
from measure import Row, say
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

ROWS, CHANGES = 50, 20
GOALS = {20: (None, None), 200: (15.0, 3.0), 1000: (60.0, 12.0)}
"""Tables -> the most seconds of their baseline, and of a batch with the full key log."""


def rows(running: EmbeddedPostgres, folder: Path, *, quick: bool) -> list[Row]:
    """The bench `tables`."""
    found = []
    for many in GOALS if not quick else (4, 20):
        baseline, batch = GOALS.get(many, (None, None))
        for log in ("off", "all"):
            taken, seconds, peak = _drained(running, folder, many, log)
            if log == "off":
                name = f"{many:,} small tables of {ROWS} rows each: baseline, with startup"
                found.append(Row(name, taken.seconds, "s", peak_rss_mb=taken.peak_mb, goal=baseline))
            what = "store and apply" if log == "off" else "with the full key log"
            name = f"{many:,} small tables of {CHANGES} changes each: {what}"
            found.append(Row(name, seconds, "s", peak_rss_mb=peak, goal=batch if log == "all" else None))
    return found


def _drained(
    running: EmbeddedPostgres, folder: Path, many: int, log: str
) -> tuple[measure.Finished, float, float]:
    """The process that took the baselines; seconds of the second round of changes, the first one warms up; peak
    memory of the Spark half."""
    name = f"tables{many}{log}"
    session = load.database(running, name)
    session.execute("create schema small")
    for n in range(many):
        session.execute(f"create table small.t{n} (id int primary key, word text)")
        session.execute(f"insert into small.t{n} select i, 'word ' || i from generate_series(1, {ROWS}) i")
    tables = tuple(f"small.t{n}" for n in range(many))
    file = tasks.write(folder, name, running.tcp_url(name), tables, keylog={"mode": log})
    say(f"{many} tables: baseline")
    taken = tasks.capture(file)

    def change(round_: int) -> None:
        for n in range(many):
            session.execute(f"update small.t{n} set word = 'round {round_}' where id <= {CHANGES}")

    change(1)
    tasks.capture(file)
    spark = tasks.Drain(file, "all")
    change(2)
    tasks.capture(file)
    done = spark.again()
    session.close()
    return taken, done.work, done.process.peak_mb
