"""Which tables apply may touch, and what becomes of one that fails."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.apply.scheduler import Scheduler
from tailrace.config.groups import GroupSettings
from tailrace.config.task import Task, read
from tailrace.errors import (
    ApplyError,
    BaselineNeededError,
    ConfigError,
    ConstraintError,
    LeaseLostError,
    LimitReachedError,
    SparkLostError,
    StopPolicyError,
    StorageFullError,
    TailraceError,
)
from tailrace.lake import json_files, log
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeRange
from tailrace.model.sequence import make
from tailrace.runtime import pipeline
from tailrace.state import commands, lifecycle
from tailrace.state.baselines import Baseline
from tailrace.targets.change_batch import ChangeBatch

pytestmark = pytest.mark.unit

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
NEW = BaselineNeededError("v is a number now")


def taken(*names: str, number: int = 1, order: int = 0) -> dict[str, Baseline]:
    relation = Relation(1, "s", "t", "d", ())
    return {n: Baseline(n, relation, "", 0, 1, NOW, 0, number, order) for n in names}


def scheduler(
    folder: Path,
    baselines: dict[str, Baseline],
    *,
    automatic: bool = False,
    intervals: Mapping[str, float] = {},
    **groups: GroupSettings,
) -> Scheduler:
    given, errors = str(folder / "orders"), str(folder / "errors")
    made = Scheduler(
        given,
        errors,
        groups,
        interval=lambda table: intervals.get(table, 0.0),
        automatic=lambda _: automatic,
    )
    made.begin()
    made.refresh(baselines)
    return made


def test_the_interval_of_a_table_begins_when_its_changes_are_applied(tmp_path: Path) -> None:
    made = scheduler(tmp_path, {}, intervals={"s.a": 3600})
    assert (made.is_due("s.a"), made.is_due("m.b")) == (True, True)
    made.begin()  # nothing was applied
    assert (made.is_due("s.a"), made.is_due("m.b")) == (True, True)
    made.applied("s.a")
    assert made.is_due("s.a")  # also for what comes until the next look
    made.begin()
    assert (made.is_due("s.a"), made.is_due("m.b")) == (False, True)
    made.patient = False
    made.begin()
    assert made.is_due("s.a")


def test_interval_of_a_table_is_measured_from_the_arrival_of_its_changes(tmp_path: Path) -> None:
    made = scheduler(tmp_path, {}, intervals={"s.a": 60})
    found = []
    for waited in (50, 59.8):
        made.begin(waited)
        made.applied("s.a")
        made.begin()
        found.append(made.is_due("s.a"))
    assert found == [False, True]


def test_changes_that_arrived_within_the_interval_are_applied_when_it_is_over(tmp_path: Path) -> None:
    made = scheduler(tmp_path, {}, intervals={"s.a": 0.35})  # 0.05 s, as an interval may be 0.3 s shorter
    made.applied("s.a")
    time.sleep(0.1)
    made.begin(0.09)
    assert made.is_due("s.a")


def test_errors_in_a_row_pause_the_group_and_success_ends_the_row(tmp_path: Path) -> None:
    baselines = taken("s.a", "s.b", "m.c")
    made = scheduler(tmp_path, baselines, g=GroupSettings(tables=["s.*"], retries=2))
    made.failed("s.a", ApplyError("disk full"))
    made.applied("s.a")
    made.failed("s.a", ApplyError("disk full"))
    made.refresh(baselines)
    assert made.is_due("s.a") and made.failing
    made.failed("s.a", ApplyError("disk full"))
    made.refresh(baselines)
    assert [made.is_due(t) for t in ("s.a", "s.b", "m.c")] == [False, False, True]
    assert not made.failing
    assert {o.why for o in commands.read(str(tmp_path / "orders"))} == {
        "group g: 2 errors in a row of s.a: disk full"
    }


def test_a_group_is_suspended_with_its_tables_that_have_no_baseline(tmp_path: Path) -> None:
    """They need none with `baseline: {enabled: false}`, or have none yet."""
    path, baselines = str(tmp_path / "orders"), taken("s.a")
    commands.give(path, commands.REMOVE, ["s.gone"], why="", who="me")
    group = {"g": GroupSettings(tables=["s.*"], retries=1)}
    known = ["m.c", "s.b", "s.c", "s.gone"]
    made = Scheduler(path, str(tmp_path / "errors"), group, known=lambda: known)
    made.begin()
    made.refresh(baselines)
    made.failed("s.b", ApplyError("disk full"))
    made.refresh(baselines)
    assert {t: made.is_due(t) for t in ("s.a", "s.b", "s.c", "m.c")} == {
        "s.a": False, "s.b": False, "s.c": False, "m.c": True,
    }  # fmt: skip
    assert [o.table for o in commands.read(path) if o.action == "suspend"] == ["s.a", "s.b", "s.c"]


@pytest.mark.parametrize("kind", [SparkLostError, LeaseLostError])
def test_what_ends_the_process_is_no_error_of_the_table(tmp_path: Path, kind: type[TailraceError]) -> None:
    made = scheduler(tmp_path, taken("s.a"), g=GroupSettings(tables=["s.*"], retries=1))
    with pytest.raises(kind):
        made.failed("s.a", kind("gone"))
    assert not made.failing and commands.read(str(tmp_path / "orders")) == []


@pytest.mark.parametrize("retries", [0, 3])
def test_a_limit_on_conflicts_suspends_the_group_at_once(tmp_path: Path, retries: int) -> None:
    """Each retry would count the conflicts anew, and let as many more pass."""
    made = scheduler(tmp_path, taken("s.a", "s.b"), g=GroupSettings(tables=["s.*"], retries=retries))
    made.failed("s.a", LimitReachedError("update_missing: no row"))
    held = lifecycle.of_task(str(tmp_path / "orders"), {}).waiting
    assert {t: (one.held, one.why) for t, one in held.items()} == dict.fromkeys(
        ("s.a", "s.b"), ("suspended", "group g: s.a: update_missing: no row")
    )


def test_a_restart_counts_errors_on(tmp_path: Path) -> None:
    baselines, group = taken("s.a", "s.b"), GroupSettings(tables=["s.*"], retries=3)
    for _ in range(2):
        before = scheduler(tmp_path, baselines, g=group)
        before.failed("s.a", ApplyError("disk full"))
    before.failed("s.b", ApplyError("no key"))
    before.applied("s.b")
    assert {t: (f.errors, f.what) for t, f in lifecycle.failures(str(tmp_path / "errors")).items()} == {
        "s.a": (2, "disk full")
    }
    made = scheduler(tmp_path, baselines, g=group)
    assert not made.failing  # nobody has tried yet
    made.failed("s.a", ApplyError("disk full"))
    made.refresh(baselines)
    assert not made.is_due("s.a") and not made.failing
    assert lifecycle.failures(str(tmp_path / "errors")) == {}


def test_a_limit_of_0_tries_for_ever_unless_somebody_waits_for_the_end(tmp_path: Path) -> None:
    made = scheduler(tmp_path, taken("s.a"), g=GroupSettings(tables=["s.*"]))
    for _ in range(5):
        made.failed("s.a", ApplyError("disk full"))
    assert made.is_due("s.a")
    made.patient = False
    with pytest.raises(ApplyError, match="disk full"):
        made.failed("s.a", ApplyError("disk full"))


def test_table_without_group_is_suspended_alone_after_three_errors(tmp_path: Path) -> None:
    baselines = taken("s.a", "s.b")
    made = scheduler(tmp_path, baselines)
    for open_still in (True, True, False):
        made.failed("s.a", ApplyError("a view uses it", hint="drop the view"))
        made.refresh(baselines)
        assert (made.is_due("s.a"), made.failing, made.is_due("s.b")) == (open_still, open_still, True)
    (order,) = commands.read(str(tmp_path / "orders"))
    assert (order.table, order.action, order.why) == ("s.a", "suspend", "a view uses it (drop the view)")


@pytest.mark.parametrize("kind", [BaselineNeededError, ConstraintError, ConfigError])
def test_table_without_group_is_suspended_at_once_where_trying_again_does_not_help(
    tmp_path: Path, kind: type[TailraceError]
) -> None:
    made = scheduler(tmp_path, taken("s.a"))
    made.failed("s.a", kind("no"))
    made.refresh(taken("s.a"))
    assert not made.is_due("s.a") and not made.failing


def test_error_of_the_task_ends_it_whatever_table_it_was_raised_for(tmp_path: Path) -> None:
    made, unstarted = scheduler(tmp_path, taken("s.a")), ConfigError("no Java")
    unstarted.of_task = True
    for error in (
        StopPolicyError("dropped"),
        LimitReachedError("100 conflicts"),
        StorageFullError("disk full"),
        unstarted,
    ):
        with pytest.raises(type(error)):
            made.failed("s.a", error)
    assert commands.read(str(tmp_path / "orders")) == []


@pytest.mark.parametrize("automatic", [False, True])
def test_what_only_a_new_baseline_helps_is_suspended_until_it_has_one(
    tmp_path: Path, automatic: bool
) -> None:
    made = scheduler(tmp_path, taken("s.a"), g=GroupSettings(tables=["s.*"], retries=9), automatic=automatic)
    made.failed("s.a", NEW)
    made.refresh(taken("s.a"))
    assert not made.is_due("s.a")
    actions = [o.action for o in commands.read(str(tmp_path / "orders"))]
    assert actions == (["suspend", "resync"] if automatic else ["suspend"])
    if not automatic:
        commands.resync(str(tmp_path / "orders"), "s.a", "by hand", who="me")
    made.refresh(taken("s.a"))
    assert not made.is_due("s.a")
    made.refresh(taken("s.a", number=2, order=2))
    assert made.is_due("s.a")


def test_a_table_that_fails_while_its_baseline_is_on_its_way_waits_for_it(tmp_path: Path) -> None:
    commands.resync(str(tmp_path / "orders"), "s.a", "by hand", who="me")
    made = scheduler(tmp_path, taken("s.a"))
    assert made.is_due("s.a")
    made.failed("s.a", NEW)
    assert not made.is_due("s.a")
    made.refresh(taken("s.a", number=2, order=1))
    assert made.is_due("s.a")


def test_a_table_that_waits_for_its_baseline_is_not_tried_again(tmp_path: Path) -> None:
    """`run --once` would wait for it without end."""
    commands.resync(str(tmp_path / "orders"), "s.a", "by hand", who="me")
    baselines = taken("s.a")
    made = scheduler(tmp_path, baselines, g=GroupSettings(tables=["s.*"], retries=9))
    made.failed("s.a", ApplyError("disk full"))
    assert made.failing
    made.failed("s.a", NEW)
    made.refresh(baselines)
    assert not made.is_due("s.a") and not made.failing
    assert lifecycle.failures(str(tmp_path / "errors")) == {}


def test_an_ambiguous_window_gets_another_baseline(tmp_path: Path) -> None:
    made = scheduler(tmp_path, taken("s.a"))
    column = Column("v", 1, "text", "text", "string")
    relation = Relation(1, "s", "a", "f", (column,))
    one = ChangeBatch("s.a", relation, ChangeRange(0, 9), counts={"I": 1}, open_window=True)
    assert replace(one, open_window=False).ambiguous() is None
    why = one.ambiguous()
    assert why is not None
    made.ambiguous("s.a", why)
    given = [(o.action, o.why) for o in commands.read(str(tmp_path / "orders"))]
    assert given == [("suspend", why), ("resync_exact", why)]
    keyed = replace(one, relation=relation.with_columns([replace(column, key=True)]), counts={"absent": 1})
    assert keyed.ambiguous() is None
    assert "keys and large values" in str(replace(keyed, counts={"absent": 1, "key_changes": 1}).ambiguous())


def test_the_pipelines_scheduler_knows_tables_without_a_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "name: t\nsource: {url: 'postgresql://localhost/shop'}\nbaseline: {enabled: false}\n"
        "groups: {g: {tables: ['s.*'], retries: 1}}\n"
    )
    task = read(text, tmp_path)
    assert isinstance(task, Task)
    nothing: Any = None
    monkeypatch.setattr(pipeline, "target_of", lambda *_: nothing)
    made = pipeline.Pipeline(task, nothing)._scheduler
    log.record_layouts(task.relations_path, [log.Layout(Relation(1, "s", "a", "d", ()), b"", make(0, 1))])
    json_files.write(task.run_path, "capture", {"tables": ["s.b", "m.c"]})
    made.failed("s.a", ApplyError("disk full"))
    assert [(o.table, o.action) for o in commands.read(task.commands_path)] == [
        ("s.a", "suspend"), ("s.b", "suspend"),
    ]  # fmt: skip
