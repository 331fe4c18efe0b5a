"""Columns whose identity in the source is not proved: they count as new columns, and older rows may lack
values (docs/decisions/2026-11-22-columns-proved-not-guessed.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow.compute as pc

from ..config.task import Task
from ..lake import delta as lake
from ..lake import log
from ..model.change import Relation
from ..sources.base import Finding
from ..state.ledger import Baseline

_UNKNOWN = '"attnum": -'
"""Text that the JSON of a layout with such a column contains (`Relation.to_json`)."""


def unknown_of(task: Task, baselines: Mapping[str, Baseline]) -> dict[str, list[str]]:
    """`unknown_columns` of a task; layouts are parsed only if one of them has such a column."""
    path = task.relations_path
    texts = lake.read(path, ["LAYOUT"])["LAYOUT"] if lake.exists(path) else []
    if not len(texts) or not pc.any(pc.match_substring(texts, _UNKNOWN)).as_py():
        return {}
    return unknown_columns(log.history(path), baselines)


def unknown_columns(
    history: Mapping[str, Sequence[log.Layout]], baselines: Mapping[str, Baseline]
) -> dict[str, list[str]]:
    """Table -> such columns in the layout that its target has. A baseline read after the layout came settles
    them."""
    found = {}
    for table, layouts in history.items():
        taken = baselines.get(table)
        settled = taken is not None and taken.after >= log.number(layouts[-1])
        names = _unknown(taken.relation if settled and taken else layouts[-1].relation)
        if names:
            found[table] = names
    return found


def _unknown(relation: Relation) -> list[str]:
    return [c.name for c in relation.columns if c.attnum < 0]


def identity_findings(task: Task, tables: Iterable[str], baselines: Mapping[str, Baseline]) -> list[Finding]:
    """A warning for each of the tables that has such columns."""
    unknown = unknown_of(task, baselines)
    return [
        Finding(
            "warning",
            f"the identity of columns {', '.join(unknown[t])} is not proved: older rows may lack their "
            "values",
            t,
            f"`tailrace validate` shows the differences; `tailrace resync` {t} reads the table again",
        )
        for t in tables
        if t in unknown
    ]
