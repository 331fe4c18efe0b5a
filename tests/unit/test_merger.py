"""Batches of tables for one task: an error of one of them is that table's, and the scheduler decides on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tailrace.apply.apply_result import ApplyResult
from tailrace.apply.merger import Merger
from tailrace.errors import ApplyError, TailraceError
from tailrace.model.positions import ChangeRange
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.merge_result import ApplyOutcome, MergeResult

from .apply_world import World, relation

pytestmark = pytest.mark.unit
TABLES = [f"s.{n}" for n in "abcd"]


def batch(table: str) -> ChangeBatch:
    return ChangeBatch(table, relation(table), ChangeRange(0, 9), "changes", target="target")


class Target(DeltaTarget):
    """One whose shared job ends as told."""

    def __init__(self, root: Path, ends: object) -> None:
        super().__init__(None, str(root), app_id="t")  # type: ignore[arg-type]
        self.ends = ends

    def merge(self, batches: Sequence[ChangeBatch]) -> list[Any]:
        if isinstance(self.ends, Exception):
            raise self.ends
        return [self.ends for _ in batches]


class Stopping:
    """Rules under which one table cannot end its batch."""

    def of(self, table: str, *_: object, **__: object) -> Stopping:
        return self

    def finished(self, one: ChangeBatch, _: MergeResult) -> ApplyResult:
        if one.table == "s.b":
            raise OSError("no space left on device")
        return ApplyResult(one.range.end)

    def applied(self, table: str, upto: int) -> None:
        """There is no key log."""


def merger(tmp_path: Path, ends: object, rules: object = None) -> Merger:
    return Merger(None, Target(tmp_path, ends), rules, lambda *_: None)  # type: ignore[arg-type]


def test_an_error_of_the_job_is_that_of_each_table_that_fails_alone(tmp_path: Path) -> None:
    found = merger(tmp_path, RuntimeError("lost an executor")).run([batch(t) for t in TABLES])
    assert [(str(one.where), one.what) for one in found.values() if isinstance(one, TailraceError)] == [
        (f"apply {t}", "lost an executor") for t in TABLES
    ]


def test_an_error_after_the_merge_is_that_of_its_table(tmp_path: Path) -> None:
    done = MergeResult(ApplyOutcome(), 9, dict.fromkeys("IUDT", 0))
    found = merger(tmp_path, done, Stopping()).run([batch(t) for t in TABLES])
    assert [t for t, one in found.items() if isinstance(one, ApplyResult)] == ["s.a", "s.c", "s.d"]
    error = found["s.b"]
    assert isinstance(error, ApplyError)
    assert (error.what, error.where) == ("no space left on device", "apply s.b")


def failing_once(patch: pytest.MonkeyPatch, prepared: str, merged: str) -> None:
    """The batch of one table fails at the first time when it is prepared, that of another one in the job."""
    plain, run = Merger.plain, Merger.run
    fails = {"plain": [prepared], "run": [merged]}

    def first_plain(merger: Merger, one: ChangeBatch, *given: Any) -> ChangeBatch | None:
        if one.table in fails["plain"]:
            fails["plain"].remove(one.table)
            raise KeyError(one.table)
        return plain(merger, one, *given)

    def first_run(merger: Merger, todo: Sequence[ChangeBatch]) -> dict[str, ApplyResult | TailraceError]:
        failed, fails["run"] = fails["run"], []
        made = run(merger, [one for one in todo if one.table not in failed])
        return made | {one.table: ApplyError("no key") for one in todo if one.table in failed}

    patch.setattr(Merger, "plain", first_plain)
    patch.setattr(Merger, "run", first_run)


def test_a_group_tries_again_what_failed_in_or_before_the_shared_job(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(("s.a", "s.b", "s.c"), {"s.a", "s.b"}).installed(monkeypatch)
    for table in world.tables:
        world.change(table, "I", id=1, v="x")
        world.baseline(table, after=0)()
    for table in world.tables:
        world.change(table, "I", id=2, v="x")
    world.store()
    applier = world.applier(max_changes=99)
    failing_once(monkeypatch, "s.a", "s.b")
    assert [d.table for d in applier.catch_up()] == ["s.c"]
    assert world.errors == ["s.a", "s.b"]
    assert sorted(d.table for d in applier.catch_up()) == ["s.a", "s.b"]
    assert world.rows == world.source


def test_an_error_before_the_shared_job_ends_the_task_when_the_table_has_no_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(("s.a", "s.b")).installed(monkeypatch)
    for table in world.tables:
        world.baseline(table)()
        world.change(table, "I", id=1, v="x")
    world.store()
    applier = world.applier()
    failing_once(monkeypatch, "s.a", "")
    with pytest.raises(ApplyError, match=r"s\.a"):
        applier.catch_up()
    assert [(d.table, d.upto) for d in world.applied] == [("s.b", 2)]
