"""A limit of conflicts that suspends a table: resumed, it counts anew, also when a kill kept that from the counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.apply.rules import RulesApplier
from tailrace.engine.rules import Rules
from tailrace.keylog.control_tables import ApplyExceptions, SuspendCommands, Suspensions
from tailrace.model.positions import ChangeRange
from tailrace.state import commands
from tailrace.targets.change_batch import ChangeBatch

from .apply_world import relation

pytestmark = pytest.mark.unit
KIND = "update_missing"


class Limited:
    """A task's table that is suspended after two conflicts."""

    def __init__(self, at: Path) -> None:
        self.orders, self.kept = f"{at}/orders", ApplyExceptions(str(at), "t")
        rules = Rules.of("strict", {KIND: "log then suspend after 2"})
        target: Any = SimpleNamespace(capabilities=SimpleNamespace(notes=None, versions=True))
        self.rules = RulesApplier(
            target, rules, root=str(at), task="t", suspensions=SuspendCommands(self.orders)
        )

    def met(self, after: int, upto: int, conflicts: int) -> None:
        """A batch that met so many conflicts."""
        before = self.kept.counts("s.t", after, [KIND])[KIND]
        self.kept.add_files([], "s.t", upto, start=after, counts={KIND: (before, before + conflicts)})

    def counted(self, after: int) -> int:
        """How many there were, for the next batch."""
        batch = self.rules.prepared(ChangeBatch("s.t", relation("t"), ChangeRange(after, after + 9)), 0)
        assert batch.audit is not None
        return batch.audit.counts.get(KIND, 0)

    def suspend(self) -> None:
        """What is left of a suspension, when a kill comes before the count begins anew."""
        commands.suspend(self.orders, "s.t", f"{KIND} at change_seq 20260101: the row is not there")


def test_a_kill_between_suspension_and_count(tmp_path: Path) -> None:
    task = Limited(tmp_path)
    assert task.counted(0) == 0
    task.met(0, 9, 2)
    commands.suspend(task.orders, "s.t", "column 'n' was added", who="ddl")
    assert task.counted(9) == 2
    task.suspend()
    commands.give(task.orders, commands.RESUME, ["s.t"], why="", who="me")
    assert task.counted(9) == 0
    task.met(9, 20, 2)
    assert task.counted(20) == 2  # it has begun anew for that suspension
    task.suspend()
    commands.give(task.orders, commands.RESUME, ["s.t"], why="", who="me")
    assert task.counted(20) == 0


def test_without_a_task_it_counts_anew_when_it_is_resumed(tmp_path: Path) -> None:
    held, kept = Suspensions(str(tmp_path), "t"), ApplyExceptions(str(tmp_path), "t")
    kept.reset_counts("s.t", [KIND])
    kept.add_files([], "s.t", 9, start=0, counts={KIND: (0, 2)})
    held.suspend("s.t", f"{KIND} at change_seq 20260101: the row is not there")
    assert kept.counts("s.t", 9, [KIND]) == {KIND: 2}
    assert held.resume("s.t") and held.reason("s.t") is None
    assert kept.counts("s.t", 9, [KIND]) == {KIND: 0}
