"""Columns whose identity in the source is not proved, or was proved too late: they count as new columns, and
older rows may lack values (docs/decisions/2026-11-22-columns-proved-not-guessed.md). And those whose older
rows changed without a record in the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow.compute as pc

from ..config.task import Task
from ..lake import delta as lake
from ..lake import log
from ..model.change import Relation
from ..sources.base import Finding
from ..sources.postgresql.layout import UNKNOWN_VALUE
from ..state.baselines import Baseline
from .column_notes import doubts_noted

_UNKNOWN = '"attnum": -'
"""Text that the JSON of a layout with a column that is not proved contains (`Relation.to_json`)."""
REPAIRS = (
    "`tailrace validate` shows the differences, `tailrace validate --repair` repairs them, `tailrace resync` "
    "reads the table again"
)


@dataclass(frozen=True)
class Doubts:
    """Columns of a table whose values in older rows are in doubt.

    Attributes:
        unknown: those whose identity is not proved.
        proved: those that a later change has proved: new ones once more, NULL in rows from before.
        changed: what changed in columns without a record in the log, in words.
    """

    unknown: list[str] = field(default_factory=list)
    proved: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def said(self) -> list[str]:
        """What is in doubt, in words."""
        found = [*self.changed]
        if self.unknown:
            names = ", ".join(self.unknown)
            found.append(f"the identity of columns {names} is not proved: older rows may lack their values")
        if self.proved:
            names = ", ".join(self.proved)
            found.append(
                f"the identity of columns {names} was proved by a later change only, so they count as "
                "new ones: values from before may have been replaced by NULL"
            )
        return found


def doubts_of(task: Task, baselines: Mapping[str, Baseline]) -> dict[str, Doubts]:
    """Table -> its columns in doubt; layouts are parsed only if one of them has a column of unknown
    identity."""
    path = task.relations_path
    texts = lake.read(path, ["LAYOUT"])["LAYOUT"] if lake.exists(path) else []
    found: dict[str, Doubts] = {}
    if len(texts) and pc.any(pc.match_substring(texts, _UNKNOWN)).as_py():
        found = {t: _doubts(layouts, baselines.get(t)) for t, layouts in log.history(path).items()}
    for table, said in doubts_noted(task, baselines).items():
        found[table] = replace(found.get(table, Doubts()), changed=said)
    return {t: one for t, one in found.items() if one.said}


def _doubts(layouts: Sequence[log.Layout], taken: Baseline | None) -> Doubts:
    """The columns in doubt of the layout that the target has. A baseline that was read after a layout came
    settles it."""
    later = [one.relation for one in layouts if taken is None or log.number(one) > taken.after]
    steps = [*([taken.relation] if taken else []), *later]
    return Doubts(_unknown(steps[-1]), _proved(steps))


def _unknown(relation: Relation) -> list[str]:
    return [c.name for c in relation.columns if c.attnum < 0]


def _proved(steps: Sequence[Relation]) -> list[str]:
    """Columns of the last of some layouts that came when one that was not proved went, and whose value in
    older rows is not known."""
    proved: set[int] = set()
    for before, after in pairwise(steps):
        had, has = ({c.attnum for c in one.columns} for one in (before, after))
        if any(number < 0 for number in had - has):
            proved |= {c.attnum for c in after.columns if c.attnum in has - had and c.note == UNKNOWN_VALUE}
        proved &= has
    return [c.name for c in steps[-1].columns if c.attnum in proved]


def identity_findings(task: Task, tables: Iterable[str], baselines: Mapping[str, Baseline]) -> list[Finding]:
    """A warning for each doubt about columns of the tables."""
    doubts = doubts_of(task, baselines)
    return [Finding("warning", said, t, REPAIRS, t) for t in tables if t in doubts for said in doubts[t].said]
