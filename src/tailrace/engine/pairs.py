"""One row per change: the row before it, the row after it, and the columns that it changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .change_arrays import B, Bools, ChangeArrays, D, I, Ints, U
from .chunked_take import take_rows
from .columns import MaskBits
from .commits import CHANGE_TYPE, DELETED, INSERTED, TRUNCATED, UPDATED, commit_columns, first_word
from .equal_values import values_differ
from .key_timelines import ABSENT, KeyTimelines, list_names

BEFORE_ROW, AFTER_ROW, CHANGED = "before", "after", "changed"


def pairs(changes: ChangeArrays, *, base: pa.Table | None = None) -> pa.Table:
    """Returns one row per change, in commit order.

    Args:
        changes: the changes, from any point in the table's history.
        base: the rows before them.

    Returns:
        `change_seq` (string), `transaction_id` (string), `user_name` (string, if the change table has it),
            `_change_type` (insert, update, delete, truncate), `_commit_version`, `_commit_timestamp`,
            `changed`, `before`, `after`, `_absent`. `changed` (list of strings) has an update's columns whose
            values differ, and is NULL for others. If a value before or after is unknown, the change mask is
            used, unless it only repeats the sent columns. `before` and `after` are structs of the data
            columns, with absent columns filled from earlier images; NULL if there was no row or it is
            unknown. `_absent` (list of strings) has the columns with unknown values, as `before.name`.
    """
    lines = KeyTimelines.of(changes, base)
    own = np.flatnonzero((lines.at >= 0) & (lines.oper != B))
    return Pairing.of(lines, own, changes.truncates).table()


@dataclass(frozen=True)
class Pairing:
    """Changes: the row `at` of each, and the images `before` and `after` it (-1: none)."""

    lines: KeyTimelines
    at: Ints
    before: Ints
    after: Ints

    @staticmethod
    def of(lines: KeyTimelines, images: Ints, truncates: Ints) -> Pairing:
        """Returns the pairs of images of changes and of truncates, in commit order."""
        after = np.where(lines.opens[images], images, -1)
        nothing = np.full(len(truncates), -1)
        at = np.concatenate([lines.at[images], truncates])
        before = np.concatenate([lines.before(images), nothing])
        order = np.argsort(at, kind="stable")
        return Pairing(lines, at[order], before[order], np.concatenate([after, nothing])[order])

    def table(self) -> pa.Table:
        """Returns the pairs in the form of `pairs`."""
        changes, oper = self.lines.changes, self.lines.changes.oper[self.at]
        result = {"change_seq": take_rows(changes.seq, self.at)}
        for name in ("transaction_id", "user_name"):
            if (column := changes.column(name)) is not None:
                result[name] = take_rows(column, self.at)
        result[CHANGE_TYPE] = first_word(
            (oper == I, INSERTED), (oper == U, UPDATED), (oper == D, DELETED), other=TRUNCATED
        )
        result |= commit_columns(changes, self.at)
        result[CHANGED] = self._changed(oper == U)
        before, missing = self._side(self.before, BEFORE_ROW)
        after, missing_too = self._side(self.after, AFTER_ROW)
        names = [f"{side}.{n}" for side in (BEFORE_ROW, AFTER_ROW) for n in changes.columns]
        absent = list_names(np.concatenate([missing, missing_too], axis=1), names)
        return pa.table(result | {BEFORE_ROW: before, AFTER_ROW: after, ABSENT: absent})

    def _side(self, images: Ints, side: str) -> tuple[pa.Array, Bools]:
        names = self.lines.changes.columns
        missing = np.zeros((len(images), len(names)), np.bool_)
        columns = []
        for k, name in enumerate(names):
            place = self._value_indexes(images, name)
            missing[:, k] = (images >= 0) & (place < 0)
            columns.append(take_rows(self.lines.values[name], place))
        return pa.StructArray.from_arrays(columns, list(names), mask=pa.array(images < 0)), missing

    def _value_indexes(self, images: Ints, column: str) -> Ints:
        if not len(self.lines):
            return images
        return np.where(images >= 0, self.lines.source(column)[images], -1)

    def _changed(self, updates: Bools) -> pa.Array:
        """Returns the changed columns of updates."""
        changes = self.lines.changes
        masks = self._change_masks()
        flags = np.zeros((len(self.at), len(changes.columns)), np.bool_)
        for k, name in enumerate(changes.columns):
            old, new = self._value_indexes(self.before, name), self._value_indexes(self.after, name)
            column = self.lines.values[name]
            differ = values_differ(take_rows(column, old), take_rows(column, new), name)
            mask = np.zeros(len(self.at), np.bool_) if masks is None else masks[self.at, k]
            flags[:, k] = np.where((old >= 0) & (new >= 0), differ, mask) & updates
        return list_names(flags, changes.columns, ~updates)

    def _change_masks(self) -> Bools | None:
        """Returns for each change the columns that its mask marks as changed.

        A mask with all columns of the image except the key is ignored: it comes from a source that sends no
        before image.
        """
        changes = self.lines.changes
        name = changes.header("change_mask")
        if name not in changes.rows.column_names:
            return None
        masks = MaskBits.of(changes.rows[name], changes.ordinals, null=False)
        bits: Bools = masks.bits[masks.codes]
        others = [k for k, n in enumerate(changes.columns) if n not in changes.key]
        sent = np.ones((len(changes), len(others)), np.bool_)
        for at, k in enumerate(others):
            if (carries := changes.carries(changes.columns[k])) is not None:
                sent[:, at] = carries
        vague = (bits[:, others] == sent).all(axis=1)
        keyed = np.array([n in changes.key for n in changes.columns])
        found: Bools = bits & ~(vague[:, None] & ~keyed)
        return found
