"""Tables without key under rules: bags of rows against a plain row-by-row model, whose rows are counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.apply.task_rules import TableRules
from tailrace.engine.rules import Rules
from tailrace.model.change import Relation
from tailrace.testing.images import Image

from .ruled_model import RELATION
from .ruled_task import Staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
NAMES = [c.name for c in RELATION.columns]
Row = tuple[Any, ...]
ROWS: list[Row] = [(0, "p", 1, "x"), (0, "p", 1, None), (0, "q", None, "x"), (1, None, None, None)]


@dataclass(frozen=True)
class Change:
    """A change of a bag: whole rows."""

    number: int
    oper: str
    old: Row | None = None
    new: Row | None = None

    @property
    def images(self) -> list[Image]:
        told = {"I": [("I", self.new)], "D": [("D", self.old)], "U": [("B", self.old), ("U", self.new)]}
        rows = told.get(self.oper, [(self.oper, ())])
        return [(self.number, oper, dict(zip(NAMES, row or (), strict=False))) for oper, row in rows]


@dataclass
class Bag:
    """A bag and its key log, one change after the other."""

    rules: Rules
    rows: Counter[Row] = field(default_factory=Counter)
    log: list[tuple[int, str, str, int | None, int, bool]] = field(default_factory=list)
    flagged: int = 0

    def apply(self, change: Change) -> None:
        strict, old = self.rules.mode == "strict", change.old
        action = {"U": "M" if strict else "U"}.get(change.oper, change.oper)
        found, flag, takes = 1, False, True
        if change.oper == "T":
            self.rows.clear()
        if old is not None and self.rows[old] == 0:
            policy = self.rules.on["update_missing" if change.oper == "U" else "delete_missing"]
            takes = policy == "apply" and change.oper == "U"
            flag = policy == "log" or (policy == "apply" and strict)
            found, action = int(takes), "I" if takes else action if flag else "\0"
        elif old is not None:
            self.rows[old] -= 1
        if change.new is not None and takes:
            self.rows[change.new] += 1
        self.flagged += flag
        count = None if change.oper == "T" else found
        self.log.append((change.number, change.oper, action, count, self.flagged, flag))


class Keyless(Staged):
    """A task whose tables have no key."""

    def relation(self, table: str) -> Relation:
        made = Staged.relation(self, table)
        return replace(made, columns=tuple(replace(c, key=False) for c in made.columns))


def history(seed: int, many: int) -> list[Change]:
    dice, made = random.Random(seed), []
    for number in range(1, many + 1):
        oper = dice.choice("IIDUU")
        old, new = (dice.choice(ROWS) for _ in range(2))
        made.append(Change(number, oper, old if oper in "DU" else None, new if oper in "IU" else None))
    made.insert(many // 2, Change(0, "T"))
    return [replace(c, number=n) for n, c in enumerate(made, 1)]


def sided(task: Staged, bag: Bag, some: Sequence[Change], run: str) -> None:
    task.put({"s.t": some})
    for change in some:
        bag.apply(change)
    task.catch_up(run=run)
    seen = (run, some, bag.rules)
    assert Counter(task.rows("s.t")) == +bag.rows, seen
    assert task.logged("s.t") == bag.log, seen


def some_rules(dice: random.Random) -> Rules:
    """A mode and policies that end no batch."""
    kinds = ("update_missing", "delete_missing")
    on = {kind: dice.choice(["apply", "ignore", "log"]) for kind in kinds}
    return Rules.of(dice.choice(["strict", "upsert"]), dice.choice([{}, on]))


def test_a_bag_ends_as_row_by_row(spark: SparkSession, tmp_path: Path) -> None:
    bag = Bag(some_rules(random.Random()))
    task = Keyless(spark, tmp_path, {"s.t": TableRules(bag.rules)})
    changes = history(random.randrange(10**6), 60)
    sided(task, bag, [Change(1, "I", None, row) for row in ROWS], "0")
    task.lose("s.t", "id = 'q'")
    bag.rows.pop(ROWS[2])
    later = [replace(c, number=c.number + 10) for c in changes]
    sided(task, bag, later[:25], "1")
    sided(task, bag, later[25:], "2")
