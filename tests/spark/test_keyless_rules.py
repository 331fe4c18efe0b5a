"""Tables without key under rules: bags of rows against a plain row-by-row model, whose rows are counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.apply.task_rules import TableRules
from tailrace.engine.rules import Rules
from tailrace.model.change import Relation

from .bag_model import ROWS, Bag, Change, history
from .rules_task import Staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Keyless(Staged):
    """A task whose tables have no key."""

    def relation(self, table: str) -> Relation:
        made = Staged.relation(self, table)
        return replace(made, columns=tuple(replace(c, key=False) for c in made.columns))


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


@pytest.mark.slow
def test_a_bag_ends_as_row_by_row(spark: SparkSession, tmp_path: Path) -> None:
    bag = Bag(some_rules(random.Random(random.randrange(10**6))))
    task = Keyless(spark, tmp_path, {"s.t": TableRules(bag.rules)})
    changes = history(random.randrange(10**6), 60)
    sided(task, bag, [Change(1, "I", None, row) for row in ROWS], "0")
    task.lose("s.t", "id = 'q'")
    bag.rows.pop(ROWS[2])
    later = [replace(c, number=c.number + 10) for c in changes]
    sided(task, bag, later[:25], "1")
    sided(task, bag, later[25:], "2")


@pytest.mark.slow
@pytest.mark.parametrize("table", ["as it was", "truncated"])
def test_copies_that_only_come(spark: SparkSession, tmp_path: Path, table: str) -> None:
    """Updates of missing rows that end as the same row, and nothing is taken away."""
    task, p = Keyless(spark, tmp_path, {"s.t": TableRules(Rules.of("upsert"))}), ROWS[0]
    task.put({"s.t": [Change(1, "I", None, p)]})
    task.catch_up()
    first = [Change(2, "T")] if table == "truncated" else []
    task.put({"s.t": [*first, *(Change(n, "U", ROWS[2], p) for n in (3, 4)), Change(5, "I", None, p)]})
    task.catch_up(run="1")
    assert task.rows("s.t") == [p] * (3 if first else 4)
