"""A mapped table's baseline that cannot be loaded: its group's settings say what follows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.apply import mapped_snapshots as loading
from tailrace.apply.baseline_staging import Staging
from tailrace.apply.mapped_snapshots import MappedSnapshotLoader, loaded
from tailrace.apply.mapping.table_map import TableMap
from tailrace.apply.scheduler import Scheduler
from tailrace.capture.snapshot_sink import DeltaLanding, StagedLanding
from tailrace.config.groups import GroupSettings
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.state import commands, lifecycle
from tailrace.state.baselines import Baseline

pytestmark = pytest.mark.unit

AT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
RELATION = Relation(7, "s", "a", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
TAKEN = {"s.a": Baseline("s.a", RELATION, "0" * 40, 3, None, AT, 0.1, number=1)}


class Task:
    """Loads of one mapped table, whose rows wait in staging, to a target that can be out of reach."""

    def __init__(self, at: Path, monkeypatch: pytest.MonkeyPatch, group: GroupSettings | None) -> None:
        self.orders, self.errors, self.mapped = (str(at / n) for n in ("orders", "errors", "mapped"))
        self.scheduler = Scheduler(self.orders, self.errors, {"g": group} if group else {})
        self.away, self.tries, self.digest = True, 0, "d"
        routes: Any = SimpleNamespace(
            map=lambda _: SimpleNamespace(digest=self.digest), value_error=lambda *_, **__: None
        )
        monkeypatch.setattr(loading, "_digest", lambda _: "d")
        monkeypatch.setattr(MappedSnapshotLoader, "_load", self.load)
        nothing: Any = None
        self.loads = MappedSnapshotLoader(
            nothing,
            routes,
            nothing,
            staging=Staging(f"{at}/staging"),
            record=self.mapped,
            commands_path=self.orders,
        )

    def load(self, *_: object) -> int:
        self.tries += 1
        if self.away:
            raise OSError("connection refused")
        return 5

    def look(self) -> None:
        self.scheduler.begin()
        self.scheduler.refresh(TAKEN)
        self.loads.retry(TAKEN, self.scheduler) if self.tries else self.loads.refresh(TAKEN, self.scheduler)

    def look_anew(self) -> None:
        """A look after a start, or at new baselines."""
        self.scheduler.begin()
        self.scheduler.refresh(TAKEN)
        self.loads.refresh(TAKEN, self.scheduler)


def test_without_a_group_it_is_tried_again_and_then_suspended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(tmp_path, monkeypatch, None)
    for failing in (True, True, False):
        task.look()
        assert task.scheduler.failing is failing
    (order,) = commands.read(task.orders)
    assert order.action == commands.SUSPEND and order.why.startswith("connection refused")


def test_in_a_group_it_is_tried_again_and_its_row_of_errors_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(tmp_path, monkeypatch, GroupSettings(tables=["s.*"], retries=3))
    task.look()
    task.look()
    assert lifecycle.failures(task.errors)["s.a"].errors == 2
    assert not task.loads.ready("s.a") and task.scheduler.failing and commands.read(task.orders) == []
    task.away = False
    task.look()
    assert task.loads.ready("s.a") and not task.scheduler.failing
    assert lifecycle.failures(task.errors) == {} and loaded(task.mapped) == {"s.a": (1, "d", 5)}


def test_after_so_many_errors_in_a_row_it_is_suspended_and_goes_on_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(tmp_path, monkeypatch, GroupSettings(tables=["s.*"], retries=2))
    for _ in range(4):
        task.look()
    assert task.tries == 2
    (order,) = commands.read(task.orders)
    assert (order.action, order.table, order.who) == ("suspend", "s.a", "apply")
    assert "2 errors in a row" in order.why and "connection refused" in order.why
    task.away = False
    commands.give(task.orders, commands.RESUME, ["s.a"], why="", who="me")
    task.look()
    assert task.loads.ready("s.a")


def test_a_removed_table_is_left_alone_whatever_becomes_of_its_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(tmp_path, monkeypatch, None)
    task.away = False
    task.look()
    assert loaded(task.mapped) == {"s.a": (1, "d", 5)}
    commands.give(task.orders, commands.REMOVE, ["s.a"], why="", who=commands.TASK_FILE)
    task.digest = ""  # its entry under `tables` went with it
    for _ in range(3):
        task.look_anew()
    assert [one.action for one in commands.read(task.orders)] == ["remove"]
    commands.give(task.orders, commands.ADD, ["s.a"], why="", who="me")
    task.look_anew()
    actions = [one.action for one in commands.read(task.orders)]
    assert actions == ["remove", "add"] and not task.scheduler.is_due("s.a")


@pytest.mark.parametrize("away", [False, True])
def test_a_removed_table_whose_rows_wait_in_staging_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """Its target may be dropped by now; and what it meets is no error of the task."""
    task = Task(tmp_path, monkeypatch, None)
    task.away = away
    commands.give(task.orders, commands.REMOVE, ["s.a"], why="", who="me")
    task.look_anew()
    assert task.tries == 0 and loaded(task.mapped) == {}
    assert [one.action for one in commands.read(task.orders)] == ["remove"]


def test_a_table_whose_target_has_just_moved_is_not_suspended(tmp_path: Path) -> None:
    """The scheduler has seen the order to move it, and not yet that it was carried out."""
    path = str(tmp_path / "orders")
    for what in (commands.RENAME, commands.RENAMED):
        commands.give(path, what, ["s.t"], why="x", who="ddl", target="s.u")
    routes: Any = SimpleNamespace(map=lambda name: TableMap(name, name))
    scheduler: Any = SimpleNamespace(moving=lambda _: True, is_due=lambda _: True, superseded=lambda _: False)
    nobody: Any = None
    loader = MappedSnapshotLoader(
        nobody, routes, nobody, staging=nobody, record=f"{tmp_path}/none", commands_path=path
    )
    one: Any = SimpleNamespace(table="s.t", number=1, order=0, version=1, relation=None)
    loader.refresh({"s.t": one}, scheduler)
    assert lifecycle.of_task(path, {"s.t": one})["s.t"].held == ""
    assert not loader.ready("s.t")
    scheduler.moving = lambda _: False
    loader.retry({"s.t": one}, scheduler)
    assert loader.ready("s.t")


class Landed:
    """Baselines that capture lands in staging, and loads of them, which give the keys that they find there."""

    def __init__(self, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.staging, self.orders, self.mapped = Staging(f"{at}/staging"), f"{at}/orders", f"{at}/mapped"
        self.scheduler, self.digest, self.got = (
            Scheduler(self.orders, f"{at}/errors", {}),
            "d",
            list[list[int]](),
        )
        self.meanwhile: Callable[[], object] = lambda: None
        self.taken: dict[str, Baseline] = {}
        monkeypatch.setattr(MappedSnapshotLoader, "_load", self.load)
        routes: Any = SimpleNamespace(map=lambda _: SimpleNamespace(digest=self.digest))
        nothing: Any = None
        self.loads = MappedSnapshotLoader(
            nothing, routes, nothing, staging=self.staging, record=self.mapped, commands_path=self.orders
        )

    def begin(self, number: int) -> StagedLanding:
        nowhere = DeltaLanding("nowhere")
        return StagedLanding(self.staging, self.digest, nowhere).begin(RELATION, number)

    def end(self, to: StagedLanding, key: int) -> None:
        part = to.part(RELATION)
        part.write(pa.record_batch({"id": pa.array([key], pa.int32())}))
        added = part.close()
        assert added is not None
        assert to.commit(RELATION, [added], 0) is None

    def record(self, number: int) -> None:
        order = commands.newest(self.orders)
        self.taken = {"s.a": replace(TAKEN["s.a"], number=number, order=order)}

    def load(self, table: str, baseline: Baseline, path: str) -> int:
        self.meanwhile()
        self.got.append(lake.read(path)["id"].to_pylist())
        return 5

    def look(self) -> bool:
        """Whether the table may be applied to then."""
        self.scheduler.begin()
        self.scheduler.refresh(self.taken)
        self.loads.refresh(self.taken, self.scheduler)
        return self.loads.ready("s.a")

    @property
    def held(self) -> str:
        state = lifecycle.of_task(self.orders, self.taken).get("s.a")
        return state.why if state and state.held else ""


def test_a_baseline_that_begins_leaves_alone_the_one_that_is_being_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, second = Landed(tmp_path, monkeypatch), list[StagedLanding]()
    task.end(task.begin(1), 1)
    task.record(1)
    task.meanwhile = lambda: second.append(task.begin(2))
    assert task.look() and task.got == [[1]]
    task.meanwhile = lambda: None
    task.end(second[0], 2)
    task.record(2)
    assert task.look() and task.got == [[1], [2]]
    assert list(Path(task.staging.root).glob("*/s.a")) == []


def test_rows_of_a_baseline_that_is_not_recorded_are_not_those_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Landed(tmp_path, monkeypatch)
    task.end(task.begin(1), 1)
    task.record(1)
    task.digest = "another mapping"
    assert not task.look() and task.held == loading.CHANGED
    commands.resync(task.orders, "s.a", "another mapping", who="me")
    task.end(task.begin(2), 2)
    assert not task.look() and task.got == []
    task.record(2)
    assert task.look() and task.got == [[2]] and task.held == ""


@pytest.mark.parametrize("what", [commands.REMOVE, commands.RESYNC, commands.ANEW, commands.LAND])
def test_a_baseline_that_an_order_supersedes_gets_into_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    task = Landed(tmp_path, monkeypatch)
    task.end(task.begin(1), 1)
    task.record(1)
    commands.give(task.orders, what, ["s.a"], why="", who="me", baseline=2)
    assert not task.look() and task.got == [] and task.held == ""


def test_one_that_is_in_its_target_stays_there_while_another_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Landed(tmp_path, monkeypatch)
    task.end(task.begin(1), 1)
    task.record(1)
    assert task.look()
    commands.resync(task.orders, "s.a", "", who="me")
    assert task.look() and task.got == [[1]]
