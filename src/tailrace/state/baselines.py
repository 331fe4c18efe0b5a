"""Baselines whose rows are in their targets (table `baselines`)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..model.change import Relation
from ..model.positions import BEFORE_ALL, ChangeNumber, Position, order_key
from .declarations import BASELINES
from .state_table import StateTable

_COLUMNS = (
    "position", "rows", "version", "finished_at", "seconds", "baseline", "order", "after", "window", "closes",
)  # fmt: skip


@dataclass(frozen=True)
class Baseline:
    """A baseline: changes at or after `position` apply on top of its rows.

    Attributes:
        version: the target's version with its rows; None if they are still to be mapped.
        number: 1, 2, 3, ... of its table.
        order: the newest command for its table (`commands`) when it began; 0: there was none.
        after: the change number that LOG had reached when it began: all at or before it is in the rows.
        window: `exact`, all rows are as of `position`; `open`, they were read while the table was written to,
            so some changes are in them already.
        closes: `open` only: changes up to this change number may be in the rows, none later is; None as long
            as that is not known, and apply waits.
    """

    table: str
    relation: Relation
    position: Position
    rows: int
    version: int | None
    finished_at: dt.datetime
    seconds: float
    number: int = 1
    order: int = 0
    after: ChangeNumber = BEFORE_ALL
    window: str = "exact"
    closes: ChangeNumber | None = None

    @property
    def done(self) -> bool:
        """Whether changes may be applied on top of it."""
        return self.window == "exact" or self.closes is not None

    @staticmethod
    def parse(row: Mapping[str, Any]) -> Baseline:
        """The baseline in a row of the table."""
        return Baseline(row["table"], _layout(row["layout"]), *(row[name] for name in _COLUMNS))

    @property
    def row(self) -> dict[str, Any]:
        """Its row in the table."""
        said = {k: v for k, v in vars(self).items() if k not in ("relation", "number")}
        layout = {"relid": self.relation.relid, "layout": self.relation.to_json()}
        return said | layout | {"baseline": self.number}


def write_baseline(path: str, *done: Baseline) -> None:
    """Records baselines whose rows are in their targets, in one commit; one with an open window again when it
    closes."""
    _table(path).append(one.row for one in done)


def read_baselines(path: str) -> dict[str, Baseline]:
    """The newest baseline of each table on top of which changes may be applied."""
    return {one.table: one for one in all_baselines(path) if one.done}


def all_baselines(path: str) -> list[Baseline]:
    """All baselines that are still recorded, in order; for one with an open window, the closed record comes
    last."""
    return sorted(_table(path).rows(), key=lambda one: (one.number, order_key(one.closes), one.finished_at))


def read_open(path: str) -> dict[str, Baseline]:
    """Per table, the newest baseline if its rows are in the target and its window is still open."""
    newest = {one.table: one for one in all_baselines(path)}
    return {table: one for table, one in newest.items() if not one.done}


def baseline_numbers(path: str) -> dict[str, int]:
    """The number of the newest baseline of each table whose rows are in the target."""
    return {one.table: one.number for one in all_baselines(path)}


@lru_cache(4096)
def _layout(text: str) -> Relation:
    return Relation.from_json(text)


def _table(path: str) -> StateTable[Baseline]:
    return StateTable(path, BASELINES, Baseline.parse)
