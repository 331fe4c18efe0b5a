"""Upserts change tables of other products into a target, without rules, a task or a key log.

Each change table is one batch, and its greatest change number is the target's progress. So the same tables
change nothing again, and the next call continues with newer files.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from ...model.change import ChangeTable, Column, Relation
from ...model.positions import ChangeRange, order_key
from ...targets import keyless
from ...targets.base import Target
from ...targets.change_batch import ChangeBatch
from ...targets.merge_result import ApplyOutcome
from ...targets.merge_rows import merge_rows
from .change_stats import ChangeStats, newer, scan


def apply(target: Target, changes: Mapping[str, ChangeTable], folder: str) -> dict[str, ApplyOutcome]:
    """Applies change tables, one batch each. Returns the outcomes by table; `folder` as in `merge_rows`.

    Raises:
        FormatError: as `scan`.
        ApplyError: changes that cannot be applied; earlier tables, in alphabetical order, are applied.
    """
    return {name: apply_one(target, table, scan(table), folder) for name, table in sorted(changes.items())}


def apply_one(target: Target, changes: ChangeTable, stats: ChangeStats, folder: str) -> ApplyOutcome:
    """Applies one change table, whose statistics are given.

    If the target has all its changes, nothing is changed, not even the layout: it may be an older one.

    Raises:
        ApplyError: a change of a keyless table that does not identify its row.
    """
    if not is_new(target, stats):
        return ApplyOutcome()
    refuse_unidentified(target, changes, stats)
    set_layout(target, stats.relation)
    batch = ChangeBatch(
        stats.relation.table, stats.relation, ChangeRange(None, stats.end), counts=stats.counts
    )
    return merge_rows(target, changes, batch, folder)


def is_new(target: Target, stats: ChangeStats) -> bool:
    """Whether a change table has changes beyond the target's progress."""
    return stats.end > reached(target, stats.relation.table)


def reached(target: Target, table: str) -> int:
    """The last change number of a target; -1 if nothing was applied."""
    return order_key(target.progress(table)) if target.exists(table) else -1


def refuse_unidentified(target: Target, changes: ChangeTable, stats: ChangeStats) -> None:
    """Raises ApplyError for a new change of a keyless table that does not identify its row."""
    if stats.unidentified is not None:
        fresh = newer(changes, reached(target, changes.name))
        keyless.refuse(changes.name, scan(fresh).unidentified)


def set_layout(target: Target, layout: Relation, *, dry_run: bool = False) -> None:
    """Gives a target the layout of its changes, with columns identified by name; as `Target.alter`."""
    target.alter(layout.table, _present(target, layout), layout, dry_run=dry_run)


def _present(target: Target, layout: Relation) -> Relation:
    """The present layout of a target, with the key of the new one."""
    kinds = target.columns(layout.table) if target.exists(layout.table) else {}
    return layout.with_columns(
        [
            Column(n, zlib.crc32(n.encode()), kind, kind, kind, key=n in layout.key)
            for n, kind in kinds.items()
        ]
    )
