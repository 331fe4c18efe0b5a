"""A task's state in the shape of Qlik's control tables, from the records it keeps."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.operate.vendor_status import HISTORY, STATUS, SUSPENDED, export
from tailrace.state import commands, ledger, lifecycle
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.state.ledger import AppliedTable, Stored

pytestmark = pytest.mark.unit
RELATION = Relation(7, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))


def stored(upto: int, at: dt.datetime, rows: int) -> Stored:
    return Stored(upto, make(0, upto), f"{upto:040X}", at, {"s.t": {"rows": rows}})


@pytest.fixture
def task(tmp_path: Path) -> Task:
    file = tmp_path / "shop.yaml"
    file.write_text("name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\n")
    made = load(file)
    now = dt.datetime.now(dt.timezone.utc)
    taken = Baseline(
        "s.t", RELATION, "0" * 40, 1000, 1, dt.datetime(2026, 3, 1, 12, 1, tzinfo=dt.timezone.utc), 2.0
    )
    write_baseline(made.control_path("baselines"), taken)
    for upto, rows, late in ((5, 3, 4), (9, 7, 8)):
        batch = stored(upto, now - dt.timedelta(seconds=late), rows)
        ledger.write_stored(made.control_path("stored"), batch, {"s.t": 7})
    for batch in ledger.read_stored(made.control_path("stored"))[:1]:
        done = AppliedTable("s.t", 2, 1, 1, 1, 0, "task_local", 0.1)
        ledger.write_applied(made.control_path("applied"), batch, [done], "tailrace/applied")
    commands.suspend(made.commands_path, "s.u.v", "v became text", who="ddl")
    return made


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return lake.read(str(folder / name)).to_pylist()  # type: ignore[no-any-return]


def test_state_history_and_suspended_tables(task: Task, tmp_path: Path) -> None:
    folder = tmp_path / "views"

    def export() -> dict[str, int]:
        result = CliRunner().invoke(
            app, ["export-status", str(tmp_path / "shop.yaml"), str(folder), "--json"]
        )
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)  # type: ignore[no-any-return]

    assert export() == {STATUS: 1, HISTORY: 2, SUSPENDED: 1}
    (now,) = rows(folder, STATUS)
    assert [now[k] for k in ("task_name", "task_status", "pending_changes")] == [
        "shop",
        "CHANGE PROCESSING",
        7,
    ]
    first = ledger.read_stored(task.control_path("stored"))[0]
    assert now["source_timestamp_applied"] == first.commit_time
    changing, loading = rows(folder, HISTORY)
    assert [changing[k] for k in ("timeslot_type", "timeslot_records", "timeslot_latency")] == [
        "CHANGE PROCESSING",
        3,
        4,
    ]
    assert [loading[k] for k in ("timeslot_type", "timeslot_records", "timeslot_latency")] == [
        "FULL LOAD",
        1000,
        None,
    ]
    assert loading["timeslot"] == dt.datetime(2026, 3, 1, 12, 5, tzinfo=dt.timezone.utc)
    (held,) = rows(folder, SUSPENDED)
    assert [held[k] for k in ("table_owner", "table_name", "suspend_reason")] == ["s", "u.v", "v became text"]
    # What an export has of the past stays, what was resumed goes.
    done = task.control_path("baselines")
    lake.replace_all(done, [], schema=lake.arrow_schema(done), progress={})
    commands.give(task.commands_path, commands.RESUME, ["s.u.v"], why="", who="me")
    assert export() == {STATUS: 1, HISTORY: 2, SUSPENDED: 0}


def test_tasks_that_share_a_folder_keep_their_rows(task: Task, tmp_path: Path) -> None:
    folder = tmp_path / "views"
    other = tmp_path / "hr.yaml"
    other.write_text("name: hr\nhome: hr\nsource: {url: 'postgresql://db/hr'}\n")
    hr = load(other)
    at = dt.datetime(2026, 3, 1, 12, 1, tzinfo=dt.timezone.utc)  # the slot of shop's baseline
    write_baseline(hr.control_path("baselines"), Baseline("h.r", RELATION, "0" * 40, 5, 1, at, 2.0))
    commands.suspend(hr.commands_path, "h.r", "r has no key", who="ddl")

    def there() -> dict[str, list[tuple[Any, ...]]]:
        columns = {STATUS: (), HISTORY: ("timeslot_type", "timeslot_records"), SUSPENDED: ("table_name",)}
        return {
            n: sorted(tuple(r[c] for c in ("task_name", *cs)) for r in rows(folder, n))
            for n, cs in columns.items()
        }

    both = {
        STATUS: [("hr",), ("shop",)],
        HISTORY: [("hr", "FULL LOAD", 5), ("shop", "CHANGE PROCESSING", 3), ("shop", "FULL LOAD", 1000)],
        SUSPENDED: [("hr", "r"), ("shop", "u.v")],
    }
    assert export(task, str(folder)) == {STATUS: 1, HISTORY: 2, SUSPENDED: 1}
    assert export(hr, str(folder)) == {STATUS: 1, HISTORY: 1, SUSPENDED: 1}
    assert there() == both
    assert export(task, str(folder)) == {STATUS: 1, HISTORY: 2, SUSPENDED: 1}
    assert there() == both
    # What one resumed goes, what the other has stays.
    commands.give(hr.commands_path, commands.RESUME, ["h.r"], why="", who="me")
    done = hr.control_path("baselines")
    lake.replace_all(done, [], schema=lake.arrow_schema(done), progress={})
    export(hr, str(folder))
    assert there() == {**both, SUSPENDED: [("shop", "u.v")]}


def test_status_says_what_is_tried_again_and_what_targets_are_called(task: Task, tmp_path: Path) -> None:
    lifecycle.record_failure(task.control_path("errors"), "s.t", 2, "disk full")
    commands.give(task.commands_path, commands.RENAMED, ["s.t"], why="", who="ddl", target="s.other")
    commands.give(task.commands_path, commands.RENAME, ["s.v"], why="", who="ddl", target="s.w")
    text = str(tmp_path / "shop.yaml")
    found = {
        t["table"]: t
        for t in json.loads(CliRunner().invoke(app, ["status", text, "--json"]).stdout)["tables"]
    }
    assert [found["s.t"][k] for k in ("state", "target", "errors", "error")] == [
        "stopped", "s.other", 2, "disk full",
    ]  # fmt: skip
    assert [found["s.v"][k] for k in ("state", "target", "errors")] == ["being renamed", None, 0]
    shown = CliRunner().invoke(app, ["status", text]).stdout.splitlines()
    assert "s.t: 2 errors in a row, retrying: disk full" in shown
    assert "s.t: its target is called s.other" in shown
