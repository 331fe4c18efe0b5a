"""A plain row-by-row model of a table without key under rules, and random histories of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.engine.rules import Rules
from tailrace.testing.images import Image

from .rules_model import RELATION

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
        return self.images_of(NAMES)

    def images_of(self, names: Sequence[str]) -> list[Image]:
        """Its images, in columns of these names."""
        told = {"I": [("I", self.new)], "D": [("D", self.old)], "U": [("B", self.old), ("U", self.new)]}
        rows = told.get(self.oper, [(self.oper, ())])
        return [(self.number, oper, dict(zip(names, row or (), strict=False))) for oper, row in rows]


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


def history(seed: int, many: int, rows: Sequence[Row] = ROWS) -> list[Change]:
    """Random changes of rows that may or may not be there, with a truncate in the middle."""
    dice, made = random.Random(seed), []
    for number in range(1, many + 1):
        oper = dice.choice("IIDUU")
        old, new = (dice.choice(rows) for _ in range(2))
        made.append(Change(number, oper, old if oper in "DU" else None, new if oper in "IU" else None))
    made.insert(many // 2, Change(0, "T"))
    return [replace(c, number=n) for n, c in enumerate(made, 1)]
