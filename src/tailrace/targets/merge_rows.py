"""Merges change rows of a DataFrame into a target."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ApplyError, TailraceError
from ..model.change import ChangeTable
from ..model.positions import ChangeRange, order_key
from .base import Target
from .change_batch import ChangeBatch
from .images import explaining, newer
from .merge_result import ApplyOutcome
from .scratch import scratch
from .staged_changes import stage


def merge_rows(target: Target, changes: ChangeTable, batch: ChangeBatch, folder: str) -> ApplyOutcome:
    """Merges the changes of a DataFrame that a target does not have yet, without rules and key log: all
    changes are upserted. Returns the effect on the target's rows.

    Args:
        target: the target; the table is created if it does not exist.
        changes: the change rows.
        batch: the table, the layout, the end of the range.
        folder: a folder for files that tasks exchange.

    Raises:
        ApplyError: the changes cannot be applied; nothing of them was written.
    """
    table, relation, end = batch.table, batch.relation, batch.range.end
    if (start := target.progress(table)) is None:  # it may exist, with rows of other sources
        target.alter(table, relation, relation)
        start = target.progress(table)
    if order_key(start) >= end:
        return ApplyOutcome(version=target.version_at(table, end))
    with explaining(table, f"apply {table}"), scratch(folder) as files:
        staged = stage(newer(changes, order_key(start)), relation, files, ordered=target.capabilities.ordered)
        rest = replace(
            batch, range=ChangeRange(start, end), staged=staged, counts=staged.counts,
            appends=not staged.reads_target(relation.key), target=target.path(table),
        )  # fmt: skip
        (done,) = target.merge([rest])
    if isinstance(done, TailraceError):
        raise done
    if done is None:
        raise ApplyError(
            "the batch needs more memory than a merge has",
            where=f"apply {table}",
            hint="give merges more memory, or apply fewer changes at a time",
        )
    return done.outcome
