"""Rows of a key log made in Arrow, of a batch that one task holds; `keylog.rendered` makes them in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..change import BEFORE, DELETE, INSERT, UPDATE
from ..sequence import NUMBER_DIGITS, TIME_DIGITS
from ..wire.keylog_render import Item, image, items
from ..wire.keylog_values import Field
from .decide import NAMES, Decided, Events
from .fold import SEQ
from .rules import Rules, reason

Places = npt.NDArray[np.int64]
MASK, AT, DETAIL = "header__mask", "header__at", "header__detail"
"""Columns beside the images: `column_mask` (binary), `timestamp`, `change_row_log_detail` (string)."""
LETTER = "header__letter"
"""Beside rows of an archive: `change_oper` (string), where `OPER` says that they are inserted."""


@dataclass(frozen=True)
class Sheet:
    """What all rows of a stretch of a key log have in common.

    Attributes:
        run_id, group_id, subscription: as in the columns.
        after: the change number before the first; flagged, sort: what the log has up to there.
        fields: the data columns; ordinals: their bits in the column mask; key: which of them are the key.
        dest: the `<Dest>` of images.
    """

    run_id: str
    group_id: str
    subscription: str
    after: int
    flagged: int
    sort: int
    fields: tuple[Field, ...]
    ordinals: tuple[int, ...]
    key: tuple[str, ...]
    dest: str


@dataclass(frozen=True)
class Batch:
    """The change rows of a batch, in order, and what became of each; `why`: what is wrong with the values of
    each (NULL: nothing)."""

    rows: pa.Table
    events: Events
    decided: Decided
    rules: Rules
    why: pa.StringArray | None = None

    @property
    def changes(self) -> Places:
        """The rows that are changes: all up to the end but B rows."""
        return np.flatnonzero(self.events.oper[: self.decided.upto] != BEFORE)

    def flagged(self, rows: Places) -> npt.NDArray[np.bool_]:
        """Which of these rows are flagged."""
        return np.array([self.rules.outcome(n).flagged for n in NAMES])[self.decided.situation[rows]]

    def aside(self) -> Places:
        """The changes that were flagged and passed over."""
        rows = self.changes
        return rows[self.flagged(rows) & ~self.decided.effective[rows]]


def logged(batch: Batch, sheet: Sheet, schema: pa.Schema, rows: Places, *, images: bool = True) -> pa.Table:
    """Some changes as rows of a key log; `flagged_count` counts all changes before them."""
    whole = len(rows) == batch.rows.num_rows
    taken = batch.rows if whole else batch.rows.take(pa.array(rows))
    oper = batch.events.oper[rows]
    old = np.where(oper == UPDATE, batch.events.old[rows], -1)
    seq = taken[SEQ].combine_chunks()
    number = pc.utf8_slice_codeunits(seq, TIME_DIGITS, TIME_DIGITS + NUMBER_DIGITS).cast(pa.int64())
    changes = batch.changes
    running = np.zeros(len(batch.events), np.int64)
    running[changes] = np.cumsum(batch.flagged(changes))
    now = pa.scalar(datetime.now(timezone.utc), pa.timestamp("us", "UTC"))
    own = items([_item(taken, sheet, i, None) for i in _key(sheet)])
    made: dict[str, pa.Array | pa.Scalar] = {
        "run_id": pa.scalar(sheet.run_id),
        "group_id": pa.scalar(sheet.group_id),
        "subscription_id": pa.scalar(sheet.subscription),
        "resync_state": pc.utf8_slice_codeunits(seq, 0, TIME_DIGITS).cast(pa.int64()),
        "change_row_counter": number,
        **_time(taken),
        "change_row_type": pa.array(oper),
        **_outcome(batch, rows),
        "flagged_count": pa.array(running[rows] + sheet.flagged),
        **_keys(batch, sheet, own, oper, old),
        "keylog_sort": pc.add(number, sheet.sort - sheet.after),
        "keylog_ts": now,
        "insert_ts": now,
    }
    if DETAIL in taken.schema.names:
        made["change_row_log_detail"] = taken[DETAIL]
    if images:
        made["after_image"] = _images(taken, sheet, oper)
    return pa.table([_column(made.get(f.name), f.type, len(rows)) for f in schema], schema=schema)


def _column(value: pa.Array | pa.Scalar | None, kind: pa.DataType, rows: int) -> pa.Array:
    if value is None:
        return pa.nulls(rows, kind)
    return pa.repeat(value.cast(kind), rows) if isinstance(value, pa.Scalar) else value.cast(kind)


def _time(rows: pa.Table) -> dict[str, pa.Array]:
    """Whole seconds, and the rest of them in nanoseconds."""
    if AT not in rows.schema.names:
        return {}
    at = rows[AT].combine_chunks()
    micros = at.view(pa.int64())
    valid = pa.array(at.is_valid())
    rest = np.mod(micros.fill_null(0).to_numpy(), 1_000_000)
    nanos = pc.if_else(valid, pa.array(rest * 1000), pa.scalar(None, pa.int64()))
    return {
        "change_row_timestamp": pc.subtract(micros, pa.array(rest)).view(at.type),
        "change_row_nanosecond": nanos,
    }


def _outcome(batch: Batch, rows: Places) -> dict[str, pa.Array]:
    outcomes = [batch.rules.outcome(n) for n in NAMES]
    at = pa.array(batch.decided.situation[rows])
    errors = pa.array([reason(o.conflict) if o.flagged else None for o in outcomes], pa.string()).take(at)
    if batch.why is not None:
        why = pc.binary_join_element_wise("data_error", batch.why.take(pa.array(rows)), ": ")
        errors = pc.if_else(pc.and_(errors.is_valid(), why.is_valid()), why, errors)
    return {
        "action_taken": pa.array([o.action for o in outcomes]).take(at),
        "result_row_count": pa.array([o.rows for o in outcomes], pa.int64()).take(at),
        "result_error": errors,
    }


def _keys(
    batch: Batch, sheet: Sheet, own: pa.StringArray, oper: npt.NDArray[np.str_], old: Places
) -> dict[str, pa.Array]:
    """`before_key` and `after_key`: the key, of a change of key the old one and the new one."""
    none = pa.scalar(None, pa.string())
    made = {"before_key": pc.if_else(pa.array(np.isin(oper, [UPDATE, DELETE])), own, none)}
    moved = np.flatnonzero(old >= 0)
    if len(moved):
        before = batch.rows.take(pa.array(old[moved]))
        texts = items([_item(before, sheet, i, None) for i in _key(sheet)])
        is_moved = pa.array(old >= 0)
        made["before_key"] = pc.replace_with_mask(made["before_key"], is_moved, texts)
        made["after_key"] = pc.if_else(is_moved, own, none)
    return made


def _key(sheet: Sheet) -> list[int]:
    return [i for i, f in enumerate(sheet.fields) if f.name in sheet.key]


def _item(rows: pa.Table, sheet: Sheet, place: int, there: npt.NDArray[np.bool_] | None) -> Item:
    field = sheet.fields[place]
    return Item(field, rows[field.name].combine_chunks(), there)


def _images(rows: pa.Table, sheet: Sheet, oper: npt.NDArray[np.str_]) -> pa.StringArray:
    """Images of inserts and updates, and of deletes that say more than their key."""
    there = carried(rows, sheet.ordinals)
    rest = [i for i in range(len(sheet.fields)) if i not in _key(sheet)]
    made = [_item(rows, sheet, i, None if there is None else there[:, i]) for i in range(len(sheet.fields))]
    more = np.full(len(oper), bool(rest)) if there is None else there[:, rest].any(axis=1)
    imaged = np.isin(oper, [INSERT, UPDATE]) | ((oper == DELETE) & more)
    texts = image(sheet.dest, made)
    return texts if imaged.all() else pc.if_else(pa.array(imaged), texts, pa.scalar(None, pa.string()))


def carried(rows: pa.Table, ordinals: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """Which columns each image carries; None: all in all. Masks are few: each is looked at once."""
    if MASK not in rows.schema.names or rows[MASK].null_count == rows.num_rows:
        return None
    known = rows[MASK].combine_chunks().dictionary_encode()
    values = [int.from_bytes(m, "big") for m in known.dictionary.to_pylist()]
    # Rows without a mask carry all columns: a last line of the table says so.
    bits = np.array([[bool(v >> n & 1) for n in ordinals] for v in values] + [[True] * len(ordinals)])
    found: npt.NDArray[np.bool_] = bits[known.indices.fill_null(len(values)).to_numpy()]
    return found
