"""What is removed from a task's records: nothing that a table still needs, and nothing young."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.incremental_snapshot import read_tokens
from tailrace.config.task import Task, load
from tailrace.lake import delta as lake
from tailrace.lake import log, log_retention
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.operate import vendor_status
from tailrace.operate.status import status
from tailrace.operate.vendor_status import export, history_rows
from tailrace.state import commands, declarations, ledger, lifecycle, retention, rolling
from tailrace.state.baselines import Baseline, read_baselines, read_open, write_baseline
from tailrace.state.commands import Command
from tailrace.state.declarations import COMMANDS, TOKENS
from tailrace.state.ledger import AppliedTable, Stored
from tailrace.state.lifecycle import TableLifecycle, states
from tailrace.state.retention import over_and_done, passed, trim_batches, trim_tables
from tailrace.state.totals import Totals

from ..examples import examples
from ..state_rows import put

pytestmark = pytest.mark.unit
AT = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
RELATION = Relation(7, "s", "a", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
TABLES = ("s.a", "s.paused", "s.new", "s.low", "s.out", "s.again")


@pytest.fixture
def task(tmp_path: Path, written: Path) -> Task:
    """Four batches with a change of each table; all but the last are applied to those that have a baseline."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return load(tmp_path / "shop.yaml")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of that task, to be copied."""
    folder = tmp_path_factory.mktemp("task")
    (folder / "shop.yaml").write_text(
        "name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\npolicies: {s.low: 1}\n"
        "maintenance: {keep_ledger: 1h, small_files: 2}\n"
    )
    made = load(folder / "shop.yaml")
    for name in ("s.a", "s.paused", "s.out", "s.again"):
        taken = Baseline(name, RELATION, "0" * 40, 100, 0, AT, 2.0, after=0)
        write_baseline(made.control_path("baselines"), taken)
    commands.give(made.commands_path, commands.PAUSE, ["s.paused"], why="", who="me")
    commands.give(made.commands_path, commands.REMOVE, ["s.out"], why="", who="me")
    commands.give(made.commands_path, commands.RESYNC, ["s.again"], why="", who="me")
    for upto in (10, 20, 30, 40):
        one = Stored(upto, make(0, upto), f"{upto:040X}", AT, {t: {"rows": 1} for t in TABLES})
        ledger.write_stored(made.control_path("stored"), one, dict.fromkeys(TABLES, 7))
        if upto < 40:
            there = ["s.a", "s.again"] + (["s.paused"] if upto < 20 else [])
            done = [AppliedTable(t, upto, 1, 0, 0, 0, "append", 0.1) for t in there]
            ledger.write_applied(made.control_path("applied"), one, done, "tailrace/applied")
        rolling.fold(made.control_path("stored"), declarations.STORED)
    return folder


def test_who_needs_what(task: Task) -> None:
    totals = Totals(task.control_path("stored"), task.control_path("applied"))
    assert passed(task, totals, {}) == {
        "s.a": 30, "s.paused": 10, "s.new": None, "s.low": 40, "s.out": 40, "s.again": None,
    }  # fmt: skip


def test_what_is_old_and_applied_goes(task: Task) -> None:
    before = [replace(t, position=None, seconds_behind=0.0) for t in status(task).tables]
    trim_batches(task, {})
    assert len(ledger.read_stored(task.control_path("stored"))) == 4  # all is young
    applied = [r for r in history_rows(task) if r["timeslot_type"] == "CHANGE PROCESSING"]
    assert sum(r["timeslot_records"] for r in applied) == 7
    last = Stored(50, make(0, 50), "F" * 40, AT, {})
    ledger.write_stored(task.control_path("stored"), last, {})
    ledger.write_applied(task.control_path("applied"), last, [])
    trim_batches(task, {}, dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=2))
    kept = {b.upto: sorted(b.tables) for b in ledger.read_stored(task.control_path("stored"))}
    waits = ["s.again", "s.new"]
    assert kept == {10: waits, 20: [*waits, "s.paused"], 30: [*waits, "s.paused"], 40: sorted(TABLES)}
    assert ledger.read_applied(task.control_path("applied")) == []
    assert [replace(t, position=None, seconds_behind=0.0) for t in status(task).tables] == before
    assert [r["timeslot_type"] for r in history_rows(task)] == ["FULL LOAD"]


def test_slots_of_full_loads_keep_what_was_loaded(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four tables of 100 rows; one of them is read again in the same slot, and later; then older records go."""
    path, folder = task.control_path("baselines"), str(tmp_path / "status")
    slot = AT + dt.timedelta(minutes=5)

    def loaded() -> dict[dt.datetime, int]:
        export(task, folder)
        rows = lake.dataset(DeltaTable(f"{folder}/attrep_history")).to_table().to_pylist()
        return {r["timeslot"]: r["timeslot_records"] for r in rows if r["timeslot_type"] == "FULL LOAD"}

    taken = read_baselines(path)["s.a"]
    write_baseline(path, replace(taken, rows=70, number=2))
    assert loaded() == {slot: 470}
    later = AT + dt.timedelta(hours=1)
    write_baseline(path, replace(taken, rows=30, number=3, finished_at=later))
    assert loaded() == {slot: 470, later + dt.timedelta(minutes=5): 30}
    monkeypatch.setattr(vendor_status, "all_baselines", lambda path: [*read_baselines(path).values()])
    assert loaded() == {slot: 470, later + dt.timedelta(minutes=5): 30}


def test_errors_and_baselines_that_are_over_go(task: Task) -> None:
    path = task.control_path("baselines")
    (taken,) = [one for t, one in read_baselines(path).items() if t == "s.a"]
    opened = replace(taken, number=200, window="open")
    write_baseline(path, *[taken] * 200)
    for one in (replace(taken, number=149), opened):
        write_baseline(path, one)
    lifecycle.record_failure(task.control_path("errors"), "s.a", 3, "disk full")
    before = (read_baselines(path), read_open(path))
    trim_tables(task)
    assert (read_baselines(path), read_open(path)) == before
    assert lake.read(path).num_rows == 3 + 2
    assert lifecycle.failures(task.control_path("errors"))["s.a"].errors == 3


@examples(40)
@given(
    actions=st.lists(st.sampled_from([*commands.ACTIONS, "resync", "pause", "resume"]), max_size=9),
    later=st.lists(st.sampled_from(list(commands.ACTIONS)), max_size=3),
    taken=st.tuples(st.integers(0, 9), st.integers(0, 4)),
    more=st.tuples(st.integers(0, 3), st.integers(0, 2)),
)
def test_orders_that_are_over_change_nothing_whatever_comes(
    actions: list[str], later: list[str], taken: tuple[int, int], more: tuple[int, int]
) -> None:
    """A baseline answers orders and landings up to its numbers; a later one answers more."""
    at = [AT + dt.timedelta(days=n) for n in range(20)]
    orders = [
        Command(n, at[n], "s.a", action, "why", "me", 1 + n % 4, "s.b")
        for n, action in enumerate([*actions, *later], 1)
    ]
    old, new = orders[: len(actions)], orders[len(actions) :]
    baseline = SimpleNamespace(order=min(taken[0], len(old)), number=taken[1])
    over = over_and_done(old, {"s.a": baseline})
    kept = [one for one in old if one.number not in over]
    for then in (baseline, SimpleNamespace(order=baseline.order + more[0], number=baseline.number + more[1])):
        assert states([*kept, *new], {"s.a": then}).get("s.a", TableLifecycle("s.a")) == states(
            orders, {"s.a": then}
        ).get("s.a", TableLifecycle("s.a"))


def test_old_orders_go_but_for_those_that_still_hold(task: Task) -> None:
    commands.give(task.commands_path, commands.PAUSE, ["s.a"], why="night", who="me")
    commands.give(task.commands_path, commands.RESUME, ["s.a"], why="", who="me")
    night = [r for r in lake.read(task.commands_path).sort_by("number").to_pylist() if r["number"] > 3]
    more = [{**r, "number": r["number"] + 2 * n} for n in range(1, 60) for r in night]
    put(task.commands_path, COMMANDS, *more)
    commands.give(task.commands_path, commands.PAUSE, ["s.a"], why="today", who="me")
    before, now = lifecycle.of_task(task.commands_path, {}), dt.datetime.now(dt.timezone.utc)
    trim_tables(task)  # all are young
    assert lake.read(task.commands_path).num_rows == 124
    trim_tables(task, now=now + dt.timedelta(hours=2))
    assert [(o.number, o.table, o.action) for o in commands.read(task.commands_path)] == [
        (1, "s.paused", "pause"), (2, "s.out", "remove"), (3, "s.again", "resync"), (124, "s.a", "pause"),
    ]  # fmt: skip
    assert lifecycle.of_task(task.commands_path, {}) == before
    assert commands.give(task.commands_path, commands.RESUME, ["s.a"], why="", who="me") == 125


@pytest.mark.parametrize(("logged", "left"), [(None, [(150, "s.open")]), (145, [146, 147, 148, 149, 150])])
def test_old_tokens_go_when_the_key_log_has_them_and_their_window_is_closed(
    task: Task, logged: int | None, left: list[object]
) -> None:
    path, record = task.control_path("tokens"), task.control_path("baselines")
    taken = read_baselines(record)["s.a"]
    write_baseline(record, replace(taken, table="s.open", number=1, window="open"))
    rows = [
        {"number": n, "at": AT, "table": "s.open" if n == 150 else "s.a", "baseline": n, "change_number": n,
         "change_seq": make(0, n), "position": "0" * 40, "stale": False}
        for n in range(1, 151)
    ]  # fmt: skip
    put(path, TOKENS, *rows)
    trim_tables(task, logged=logged)
    found = [(one.number, one.table) if logged is None else one.number for one in read_tokens(path)]
    assert found == left


def test_commits_before_a_checkpoint_are_forgotten(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for n in range(1, 9):
        lake.append(path, pa.table({"n": [n]}), progress={"app": n})
        if n in (4, 6):
            DeltaTable(path).create_checkpoint()
    old = time.time() - 7200
    for version in range(8):
        os.utime(f"{path}/_delta_log/{version:020}.json", (old, old))
    assert log_retention.forget(path, before=5) == 4
    assert log_retention.versions(path) == [4, 5, 6, 7, 8]
    assert log_retention.forget(path) == 3  # two commits and the checkpoint before
    assert lake.read(path).num_rows == 8 and lake.progress(path, "app") == 8
    assert log_retention.forget(path) == 0


def test_young_commits_are_forgotten_when_there_are_too_many(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for n in range(1, 9):
        lake.append(path, pa.table({"n": [n]}))
        if n in (4, 6):
            DeltaTable(path).create_checkpoint()
    assert log_retention.forget(path, before=2, most=3) == 0
    assert log_retention.forget(path, most=3) == 4
    assert log_retention.versions(path) == [4, 5, 6, 7, 8]


def test_the_version_after_a_number_is_found_among_those_that_are_left(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    for n in range(1, 8):
        lake.append(path, pa.table({"n": [n]}), progress={"tailrace/number": 10 * n} if n != 5 else {})
    DeltaTable(path, version=3).create_checkpoint()
    for version in range(3):
        Path(f"{path}/_delta_log/{version:020}.json").unlink()
    assert [log.version_after(path, n) for n in (0, 30, 40, 45, 60, 70)] == [3, 4, 6, 6, 7, 7]


def test_orders_of_a_clock_that_was_ahead(task: Task) -> None:
    """What undoes one of them is older by the clock: as long as that one stays, so does what undoes it."""
    path, days = str(Path(task.home) / "orders"), dt.timedelta(days=30)
    commands.give(path, commands.SUSPEND, ["s.a"], why="", who="me")
    commands.give(path, commands.RESUME, ["s.a"], why="", who="me")
    rows = lake.read(path)
    at = pa.array([AT + days, AT], rows["at"].type)
    rows = rows.sort_by("number").set_column(rows.schema.get_field_index("at"), "at", at)
    for limit, left in ((AT + days / 2, [1, 2]), (AT + 2 * days, [])):
        stays = retention.commands_to_keep(rows, {}, limit, ())
        assert rows.filter(stays)["number"].to_pylist() == left
