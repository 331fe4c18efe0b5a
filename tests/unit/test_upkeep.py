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

from tailrace.capture.incremental_snapshot import TOKENS_SCHEMA, seen
from tailrace.config.task import Task, load
from tailrace.lake import delta as lake
from tailrace.lake import log, log_retention
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.operate.status import status
from tailrace.operate.status_views import export, history_rows
from tailrace.state import ledger, retries, rolling, upkeep
from tailrace.state import orders as tables
from tailrace.state.ledger import AppliedTable, Baseline, Stored
from tailrace.state.orders import Order, TableControl, states
from tailrace.state.totals import Totals
from tailrace.state.upkeep import in_force, over_and_done, passed, shorten

from ..examples import examples

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
        ledger.write_baseline(made.control_path("baselines"), taken)
    tables.give(made.orders_path, tables.PAUSE, ["s.paused"], why="", who="me")
    tables.give(made.orders_path, tables.REMOVE, ["s.out"], why="", who="me")
    tables.give(made.orders_path, tables.RESYNC, ["s.again"], why="", who="me")
    for upto in (10, 20, 30, 40):
        one = Stored(upto, make(0, upto), f"{upto:040X}", AT, {t: {"rows": 1} for t in TABLES})
        ledger.write_stored(made.control_path("stored"), one, dict.fromkeys(TABLES, 7))
        if upto < 40:
            there = ["s.a", "s.again"] + (["s.paused"] if upto < 20 else [])
            done = [AppliedTable(t, upto, 1, 0, 0, 0, "append", 0.1) for t in there]
            ledger.write_applied(made.control_path("applied"), one, done, "tailrace/applied")
        rolling.fold(made.control_path("stored"), ledger.STORED)
    return folder


def test_who_needs_what(task: Task) -> None:
    totals = Totals(task.control_path("stored"), task.control_path("applied"))
    assert passed(task, totals, {}) == {
        "s.a": 30, "s.paused": 10, "s.new": -1, "s.low": 40, "s.out": 40, "s.again": -1,
    }  # fmt: skip


def test_what_is_old_and_applied_goes(task: Task) -> None:
    before = [replace(t, position=None, seconds_behind=0.0) for t in status(task).tables]
    shorten(task, {})
    assert len(ledger.read_stored(task.control_path("stored"))) == 4  # all is young
    applied = [r for r in history_rows(task) if r["timeslot_type"] == "CHANGE PROCESSING"]
    assert sum(r["timeslot_records"] for r in applied) == 7
    last = Stored(50, make(0, 50), "F" * 40, AT, {})
    ledger.write_stored(task.control_path("stored"), last, {})
    ledger.write_applied(task.control_path("applied"), last, [])
    shorten(task, {}, dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=2))
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

    taken = ledger.read_baselines(path)["s.a"]
    ledger.write_baseline(path, replace(taken, rows=70, number=2))
    assert loaded() == {slot: 470}
    later = AT + dt.timedelta(hours=1)
    ledger.write_baseline(path, replace(taken, rows=30, number=3, finished_at=later))
    assert loaded() == {slot: 470, later + dt.timedelta(minutes=5): 30}
    monkeypatch.setattr(ledger, "all_baselines", lambda path: [*ledger.read_baselines(path).values()])
    assert loaded() == {slot: 470, later + dt.timedelta(minutes=5): 30}


def test_errors_and_baselines_that_are_over_go(task: Task) -> None:
    path = task.control_path("baselines")
    (taken,) = [one for t, one in ledger.read_baselines(path).items() if t == "s.a"]
    opened = replace(taken, number=200, window="open")
    first = lake.read(path).slice(0, 1)
    for one in (replace(taken, number=149), opened):
        ledger.write_baseline(path, one)
    lake.append(path, pa.concat_tables([first.set_column(0, "table", pa.array(["s.a"]))] * 200))
    retries.note(task.control_path("errors"), "s.a", 3, "disk full")
    before = (ledger.read_baselines(path), ledger.read_open(path))
    in_force(task)
    assert (ledger.read_baselines(path), ledger.read_open(path)) == before
    assert lake.read(path).num_rows == 3 + 2
    assert retries.failing(task.control_path("errors"))["s.a"].errors == 3


@examples(100)
@given(
    actions=st.lists(st.sampled_from([*tables.ACTIONS, "resync", "pause", "resume"]), max_size=9),
    later=st.lists(st.sampled_from(list(tables.ACTIONS)), max_size=3),
    taken=st.tuples(st.integers(0, 9), st.integers(0, 4)),
    more=st.tuples(st.integers(0, 3), st.integers(0, 2)),
)
def test_orders_that_are_over_change_nothing_whatever_comes(
    actions: list[str], later: list[str], taken: tuple[int, int], more: tuple[int, int]
) -> None:
    """A baseline answers orders and landings up to its numbers; a later one answers more."""
    at = [AT + dt.timedelta(days=n) for n in range(20)]
    orders = [
        Order(n, at[n], "s.a", action, "why", "me", 1 + n % 4, "s.b")
        for n, action in enumerate([*actions, *later], 1)
    ]
    old, new = orders[: len(actions)], orders[len(actions) :]
    baseline = SimpleNamespace(order=min(taken[0], len(old)), number=taken[1])
    over = over_and_done(old, {"s.a": baseline})
    kept = [one for one in old if one.number not in over]
    for then in (baseline, SimpleNamespace(order=baseline.order + more[0], number=baseline.number + more[1])):
        assert states([*kept, *new], {"s.a": then}).get("s.a", TableControl("s.a")) == states(
            orders, {"s.a": then}
        ).get("s.a", TableControl("s.a"))


def test_old_orders_go_but_for_those_that_still_hold(task: Task) -> None:
    tables.give(task.orders_path, tables.PAUSE, ["s.a"], why="night", who="me")
    tables.give(task.orders_path, tables.RESUME, ["s.a"], why="", who="me")
    night = [r for r in lake.read(task.orders_path).sort_by("number").to_pylist() if r["number"] > 3]
    more = [{**r, "number": r["number"] + 2 * n} for n in range(1, 60) for r in night]
    lake.append(task.orders_path, pa.Table.from_pylist(more, tables.SCHEMA), progress={tables.APP: 123})
    tables.give(task.orders_path, tables.PAUSE, ["s.a"], why="today", who="me")
    before, now = tables.of_task(task.orders_path, {}), dt.datetime.now(dt.timezone.utc)
    in_force(task)  # all are young
    assert lake.read(task.orders_path).num_rows == 124
    in_force(task, now=now + dt.timedelta(hours=2))
    assert [(o.number, o.table, o.action) for o in tables.read(task.orders_path)] == [
        (1, "s.paused", "pause"), (2, "s.out", "remove"), (3, "s.again", "resync"), (124, "s.a", "pause"),
    ]  # fmt: skip
    assert tables.of_task(task.orders_path, {}) == before
    assert tables.give(task.orders_path, tables.RESUME, ["s.a"], why="", who="me") == 125


@pytest.mark.parametrize(("logged", "left"), [(None, [(150, "s.open")]), (145, [146, 147, 148, 149, 150])])
def test_old_tokens_go_when_the_key_log_has_them_and_their_window_is_closed(
    task: Task, logged: int | None, left: list[object]
) -> None:
    path, record = task.control_path("tokens"), task.control_path("baselines")
    taken = ledger.read_baselines(record)["s.a"]
    ledger.write_baseline(record, replace(taken, table="s.open", number=1, window="open"))
    rows = [
        {"table": "s.open" if n == 150 else "s.a", "baseline": n, "number": n, "change_seq": make(0, n),
         "position": "0" * 40, "stale": False, "seen_at": AT}
        for n in range(1, 151)
    ]  # fmt: skip
    lake.append(path, pa.Table.from_pylist(rows, TOKENS_SCHEMA))
    in_force(task, logged=logged)
    found = [(one.number, one.table) if logged is None else one.number for one in seen(path)]
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
    tables.give(path, tables.SUSPEND, ["s.a"], why="", who="me")
    tables.give(path, tables.RESUME, ["s.a"], why="", who="me")
    rows = lake.read(path)
    at = pa.array([AT + days, AT], rows["ordered_at"].type)
    rows = rows.sort_by("number").set_column(rows.schema.get_field_index("ordered_at"), "ordered_at", at)
    for limit, left in ((AT + days / 2, [1, 2]), (AT + 2 * days, [])):
        assert upkeep._orders(rows, {}, limit, ())["number"].to_pylist() == left
