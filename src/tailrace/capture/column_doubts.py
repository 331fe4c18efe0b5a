"""Columns whose identity in the source is not proved, or was proved too late, and columns whose older rows
changed without a record in the log.

Columns without a proved identity count as new columns, and older rows may not have their values
(docs/decisions/2026-11-22-columns-proved-not-guessed.md).
"""

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
from ..state.ledger import Baseline
from .column_notes import noted_doubts

_UNKNOWN = '"attnum": -'
"""Text that the JSON of a layout with an unproved column contains (`Relation.to_json`)."""
REPAIRS = (
    "`tailrace validate` shows the differences, `tailrace validate --repair` repairs them, `tailrace resync` "
    "reads the table again"
)


@dataclass(frozen=True)
class ColumnDoubts:
    """Columns of a table whose values in older rows are in doubt.

    Attributes:
        unknown: columns whose identity is not proved.
        proved: columns that a later change has proved: they are new ones again, NULL in earlier rows.
        changed: changes of columns without a record in the log, as text.
    """

    unknown: list[str] = field(default_factory=list)
    proved: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def said(self) -> list[str]:
        """The doubts as text."""
        found = [*self.changed]
        if self.unknown:
            names = ", ".join(self.unknown)
            found.append(f"the identity of columns {names} is not proved: older rows may miss their values")
        if self.proved:
            names = ", ".join(self.proved)
            found.append(
                f"the identity of columns {names} was proved only by a later change, so they count as "
                "new ones: earlier values may have been replaced by NULL"
            )
        return found


def find_doubts(task: Task, baselines: Mapping[str, Baseline]) -> dict[str, ColumnDoubts]:
    """Returns the columns in doubt by table; layouts are parsed only if one has a column of
    unknown identity."""
    path = task.relations_path
    texts = lake.read(path, ["LAYOUT"])["LAYOUT"] if lake.exists(path) else []
    found: dict[str, ColumnDoubts] = {}
    if len(texts) and pc.any(pc.match_substring(texts, _UNKNOWN)).as_py():
        found = {t: _doubts(layouts, baselines.get(t)) for t, layouts in log.history(path).items()}
    for table, said in noted_doubts(task, baselines).items():
        found[table] = replace(found.get(table, ColumnDoubts()), changed=said)
    return {t: one for t, one in found.items() if one.said}


def _doubts(layouts: Sequence[log.Layout], taken: Baseline | None) -> ColumnDoubts:
    """Returns the columns in doubt of the target's layout. A baseline that was read after a layout settles
    it."""
    later = [one.relation for one in layouts if taken is None or log.number(one) > taken.after]
    steps = [*([taken.relation] if taken else []), *later]
    return ColumnDoubts(_unknown(steps[-1]), _proved(steps))


def _unknown(relation: Relation) -> list[str]:
    return [c.name for c in relation.columns if c.attnum < 0]


def _proved(steps: Sequence[Relation]) -> list[str]:
    """Returns the columns of the last layout that appeared when an unproved one disappeared, and whose value
    in older rows is unknown."""
    proved: set[int] = set()
    for before, after in pairwise(steps):
        had, has = ({c.attnum for c in one.columns} for one in (before, after))
        if any(number < 0 for number in had - has):
            proved |= {c.attnum for c in after.columns if c.attnum in has - had and c.note == UNKNOWN_VALUE}
        proved &= has
    return [c.name for c in steps[-1].columns if c.attnum in proved]


def identity_findings(task: Task, tables: Iterable[str], baselines: Mapping[str, Baseline]) -> list[Finding]:
    """Returns a warning for each doubt about columns of the tables."""
    doubts = find_doubts(task, baselines)
    return [Finding("warning", said, t, REPAIRS, t) for t in tables if t in doubts for said in doubts[t].said]
