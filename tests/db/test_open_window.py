"""Baselines that are read while their table is written to: afterwards the target equals the source."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture import baselines as taking
from tailrace.capture import incremental_snapshot
from tailrace.capture.process import Capture
from tailrace.capture.snapshot_sink import DeltaLanding
from tailrace.config.task import Task, load
from tailrace.lake import delta as lake
from tailrace.runtime.pipeline import Pipeline
from tailrace.state import commands
from tailrace.state.baselines import Baseline, read_baselines

from .model import SCHEMA, TABLES, Writer, bag
from .test_crashes import Crash
from .test_model import drain, target_rows, write_task
from .test_running import check, meanwhile

pytestmark = [pytest.mark.db, pytest.mark.spark]
PHASES = ["before it is read", "read", "landed", "recorded", "token written", "token recorded", "closed"]


def phase_task(folder: Path, url: str) -> Task:
    path = folder / "phases.yaml"
    path.write_text(
        f"name: phases\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: ['s.*']}}\n"
        "freshness: 100ms\nbaseline: {workers: 1, window: open}\n"
        "apply: {mode: strict}\nkeylog: {mode: keys}\n"
    )
    return load(path)


def dies(monkeypatch: pytest.MonkeyPatch, phase: str, writes: Callable[[], None]) -> None:
    """Makes capture end at a phase of the next baseline; the table is written to before and after its rows
    are read."""
    real: dict[str, Any] = {
        "take": taking.baseline_reader.take_baselines, "commit": DeltaLanding.commit, "mark": incremental_snapshot.Windows._mark,
        "logged": incremental_snapshot.Windows.logged, "close": incremental_snapshot.Windows._close,
    }  # fmt: skip

    def end(at: str) -> None:
        if phase == at:
            raise Crash

    def take(*args: Any) -> Any:
        writes()
        end("before it is read")
        return real["take"](*args)

    def commit(self: DeltaLanding, *args: Any) -> int:
        writes()
        end("read")
        version: int = real["commit"](self, *args)
        end("landed")
        return version

    def mark(self: incremental_snapshot.Windows, one: Baseline) -> None:
        end("recorded")
        real["mark"](self, one)

    def logged(self: incremental_snapshot.Windows, messages: Any) -> None:
        if messages:
            end("token written")
        real["logged"](self, messages)

    def close(self: incremental_snapshot.Windows, one: Baseline, number: int) -> None:
        end("token recorded")
        real["close"](self, one, number)
        end("closed")

    monkeypatch.setattr(taking.baseline_reader, "take_baselines", take)
    monkeypatch.setattr(DeltaLanding, "commit", commit)
    monkeypatch.setattr(incremental_snapshot.Windows, "_mark", mark)
    monkeypatch.setattr(incremental_snapshot.Windows, "logged", logged)
    monkeypatch.setattr(incremental_snapshot.Windows, "_close", close)


@pytest.mark.slow  # its phases are fail points of the nemesis' schedules
def test_capture_that_dies_in_any_phase_of_an_open_window_goes_on_and_ends_right(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: object
) -> None:
    task = phase_task(tmp_path, database)
    db.execute("create schema s")
    for n, phase in enumerate(PHASES):
        table = f"s.t{n}"
        db.execute(f"create table {table} (id int primary key, v text)")  # type: ignore[arg-type]
        db.execute(f"insert into {table} select i, 'old' from generate_series(1, 9) i")  # type: ignore[arg-type]

        def writes(table: str = table) -> None:
            with psycopg.connect(database, autocommit=True) as other:
                for text in (
                    "delete from {} where id = 1", "insert into {} values (1, 'again')",
                    "update {} set v = v || '+'", "update {} set id = id + 10 where id = 2",
                    "update {} set id = id - 10 where id = 12", "delete from {} where id = 3",
                    "update {} set id = 3 where id = 4", "insert into {} values (4, 'new')",
                ):  # fmt: skip
                    other.execute(text.format(table))  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            dies(patch, phase, writes)
            with pytest.raises(Crash):
                Capture(task, once=True).run()
        writes()
        Capture(task, once=True).run()
        writes()
    for token in (
        incremental_snapshot.WindowToken("phases", "s.t0", 7),
        incremental_snapshot.WindowToken("another", "s.t1", 1),
    ):
        db.execute("select pg_logical_emit_message(true, 'tailrace', %s)", (token.text(),))
    drain(task, spark)
    taken = read_baselines(task.control_path("baselines"))
    for n, phase in enumerate(PHASES):
        assert (taken[f"s.t{n}"].window, taken[f"s.t{n}"].number) == ("open", 1), phase
        source = db.execute(f"select id, v from s.t{n}").fetchall()  # type: ignore[arg-type]
        assert bag(target_rows(task, f"s.t{n}")) == bag([{"id": i, "v": v} for i, v in source]), phase
    # Rules are strict: nothing was flagged, neither in the windows nor behind them.
    logged = lake.read(task.keylog_path).to_pylist()
    assert [r for r in logged if r["flagged_count"]] == []
    tokens = Counter(r["action_taken"] for r in logged if r["change_row_type"] == "C")
    assert tokens == {"C": len(PHASES), "#": 1}
    seen = incremental_snapshot.read_tokens(task.control_path("tokens"))
    closing = [s.table for s in seen if not s.stale]
    assert closing == [f"s.t{n}" for n in range(len(PHASES))]
    # A token of a baseline that is not at work closes nothing; another task's is not even noted.
    assert [(s.table, s.baseline) for s in seen if s.stale] == [("s.t0", 7)]


@pytest.mark.slow
def test_heavy_writes_and_kills_during_open_windows_leave_the_target_equal(
    tmp_path: Path, database: str, spark: Any
) -> None:
    path = write_task(tmp_path, database)
    path.write_text(path.read_text().replace("workers: 1", "workers: 1, window: open"))
    task = load(path)
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(SCHEMA)
    writer, over, chance = Writer(database, 21), threading.Event(), random.Random(4)
    writer.transactions(40)

    def write() -> None:
        while not over.is_set():
            writer.transactions(5)
            # More often, and m.bag, which is read exactly, is truncated more often than it can be read.
            time.sleep(0.12)

    writing = threading.Thread(target=write)
    writing.start()
    keyed = [t for t in TABLES if t not in ("m.bag", "m.log")]
    stop = threading.Event()
    try:
        # Apply goes on meanwhile: what it did to a target that is replaced must not count twice, or be missed.
        with meanwhile(Pipeline(task, spark, stop=stop).run, stop=stop):
            for _ in range(2):
                capture = subprocess.Popen([sys.executable, "-m", "tailrace", "capture", str(path)])
                time.sleep(2.0 + chance.random() * 3)
                capture.kill()
                capture.wait()
                commands.give(task.commands_path, commands.RESYNC, keyed, why="again", who="test")
            Capture(task, once=True).run()
    finally:
        over.set()
        writing.join()
    taken = read_baselines(task.control_path("baselines"))
    windows_of = {t: taken[t].window for t in TABLES if t != "m.keyed"}
    assert windows_of == {t: "open" if t in keyed else "exact" for t in windows_of}
    # In m.keyed keys and large values change together: apply asks for an exact baseline, now or soon.
    for _ in range(2):
        drain(task, spark)
    for table in TABLES:
        assert bag(target_rows(task, table)) == bag(writer.rows(table)), table
    assert check(task, spark, catch_up=lambda: drain(task, spark)).equal
