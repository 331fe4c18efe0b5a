"""Converts log records of one table to change-table rows, column by column.

The input is LOG's records of one layout of one relation. The output is change-table rows (B and U of one
update have the same change sequence), the tracking row of each change, and counts. Runs inside tasks on Arrow
batches, without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model import mask
from ..model.change import (
    BEFORE,
    DELETE,
    HEADERS,
    INSERT,
    OPERATIONS,
    PARTLY,
    TRUNCATE,
    UPDATE,
    Relation,
)
from ..wire import pgoutput, pgvalues

Bools = npt.NDArray[np.bool_]
FIRST_DATA_ORDINAL = len(HEADERS)
_LETTERS, _WORDS = pa.array(list(OPERATIONS)), pa.array(list(OPERATIONS.values()))
_NUMBER = {letter: number for number, letter in enumerate(OPERATIONS)}
COUNTS = ("I", "U", "D", "T", "key_changes", "absent")


@dataclass(frozen=True)
class BadImageValue:
    """A value that its column's type cannot hold: its record (index in the batch), column and source text,
    and whether it is in the before image."""

    row: int
    column: str
    text: str
    before: bool = False


@dataclass
class DecodedImages:
    """Change-table rows of some log records, with their field maps and counts.

    `rows` has the change table's schema; `field_maps` holds, per record, the OpenEdge field map (NULL unless
    the record is an update); `counts` has the number of each kind (keys: COUNTS).
    """

    rows: pa.RecordBatch
    field_maps: pa.Array
    counts: dict[str, int]
    bad: list[BadImageValue] = field(default_factory=list)


@dataclass
class _Side:
    """The new or the old images: typed columns, and which columns each row has."""

    columns: list[pa.Array]
    text: list[pa.Array]
    present: Bools


def decode(records: pa.RecordBatch, relation: Relation, schema: pa.Schema) -> DecodedImages:
    """Decodes insert, update and delete records of one layout into rows of the change table `schema`."""
    names = [c.name for c in relation.columns]
    ordinals = [schema.get_field_index(n) for n in names]
    images = pgoutput.images(records["DATA"], len(names))
    bad: list[BadImageValue] = []
    new = _side(relation, images.new_text, images.new_state, bad, before=False)
    has_old = images.old != 0
    old = None
    if has_old.any():
        old = _side(relation, images.old_text, images.old_state, bad, before=True)
    full = images.old == ord("O")
    key = np.array([c.key for c in relation.columns], np.bool_)
    if old is not None:
        _fill_unchanged(new, old, images.new_state)
        old.present = np.where(full[:, None], old.present & (key | _known(relation, old)), key[None, :])
    deletes, updates = images.kind == ord("D"), images.kind == ord("U")
    changed = _changed(new, old, images.kind, full, has_old, key)
    key_changes = updates & has_old & (changed & key[None, :]).any(axis=1)
    befores = updates & has_old
    present = np.where(deletes[:, None], old.present, new.present) if old is not None else new.present
    counts = {
        "I": int((images.kind == ord("I")).sum()),
        "U": int(updates.sum()),
        "D": int(deletes.sum()),
        "T": 0,
        "key_changes": int(key_changes.sum()),
        "absent": int((~present[updates]).any(axis=1).sum()),
    }
    rows = _assemble(records, schema, ordinals, new, old, deletes, befores, images.kind, changed, present)
    maps = mask.pack(changed, [n - FIRST_DATA_ORDINAL for n in ordinals], little=True)
    field_maps = pc.if_else(pa.array(updates), maps, pa.scalar(None, pa.binary()))
    return DecodedImages(rows, field_maps, counts, bad)


def _side(
    relation: Relation,
    text: Sequence[pa.Array],
    state: npt.NDArray[np.uint8],
    bad: list[BadImageValue],
    *,
    before: bool,
) -> _Side:
    columns = []
    for column, words in zip(relation.columns, text, strict=True):
        values, wrong = pgvalues.of_column(column, words)
        columns.append(values)
        if wrong is not None:
            for row in np.flatnonzero(wrong.to_numpy(zero_copy_only=False)):
                bad.append(BadImageValue(int(row), column.name, words[int(row)].as_py(), before))
    present = (state == ord("t")) | (state == ord("n"))
    return _Side(columns, list(text), present)


def _values(old: _Side) -> Bools:
    """Returns where an old image has a value that is not NULL."""
    return np.column_stack([text.is_valid().to_numpy(zero_copy_only=False) for text in old.text])


def _known(relation: Relation, old: _Side) -> Bools:
    """Returns where a value outside the key belongs to an old image labelled as full."""
    return _values(old) if relation.identity == PARTLY else np.ones_like(old.present)


def _fill_unchanged(new: _Side, old: _Side, state: npt.NDArray[np.uint8]) -> None:
    """Copies values that the server did not send again (unchanged TOAST, never NULL) from the old image: the
    full one, or the key's image, which is also sent for an unchanged key that is stored out of line."""
    unsent = (state == ord("u")) & _values(old)
    for k in np.flatnonzero(unsent.any(axis=0)):
        take = pa.array(unsent[:, k])
        new.columns[k] = pc.if_else(take, old.columns[k], new.columns[k])
        new.text[k] = pc.if_else(take, old.text[k], new.text[k])
    new.present |= unsent


def _changed(
    new: _Side, old: _Side | None, kind: npt.NDArray[np.uint8], full: Bools, has_old: Bools, key: Bools
) -> Bools:
    """Returns the change mask, per row and column (spec/qlik.md §2).

    Inserts: every column. Updates with a full old image: the columns that differ. Updates without: every
    column that was sent, the key only where the old key differs (the source reports no more). Deletes: the
    key.
    """
    bits = new.present.copy()
    updates = kind == ord("U")
    if updates.any():
        differs = np.zeros_like(bits)
        if old is not None:
            for k in range(bits.shape[1]):
                differs[:, k] = _differ(old.text[k], new.text[k])
        by_key = np.where(key[None, :], differs & has_old[:, None], new.present)
        whole = full[:, None] & (old.present if old is not None else full[:, None])
        bits[updates] = np.where(whole, differs & new.present, by_key)[updates]
    bits[kind == ord("D")] = key
    return np.asarray(bits, np.bool_)


def _differ(left: pa.Array, right: pa.Array) -> Bools:
    different = pc.fill_null(pc.not_equal(left, right), False)
    one_null = pc.xor(pc.is_null(left), pc.is_null(right))
    found: Bools = pc.or_(different, one_null).to_numpy(zero_copy_only=False)
    return found


def _assemble(
    records: pa.RecordBatch,
    schema: pa.Schema,
    ordinals: list[int],
    new: _Side,
    old: _Side | None,
    deletes: Bools,
    befores: Bools,
    kind: npt.NDArray[np.uint8],
    changed: Bools,
    present: Bools,
) -> pa.RecordBatch:
    """Returns main rows (I, U, D) and before rows (B), each B directly before its U."""
    n = records.num_rows
    b_rows = np.flatnonzero(befores)
    main_at = np.arange(n) + np.cumsum(befores)
    order = np.empty(n + len(b_rows), np.int64)
    order[main_at] = np.arange(n)
    order[main_at[b_rows] - 1] = n + np.arange(len(b_rows))
    pick, place = pa.array(b_rows), pa.array(order)

    def both(main: pa.Array, before: pa.Array) -> pa.Array:
        if not len(b_rows):
            return main
        return pa.concat_arrays([main, before]).take(place)

    width = len(ordinals)
    masks = mask.pack(changed, ordinals)
    nothing = pa.repeat(pa.scalar(b"", pa.binary()), len(b_rows))
    operations = np.select(
        [kind == ord("I"), kind == ord("U")], [_NUMBER[INSERT], _NUMBER[UPDATE]], _NUMBER[DELETE]
    )
    if len(b_rows):
        operations = np.concatenate([operations, np.full(len(b_rows), _NUMBER[BEFORE])])[order]
    columns: dict[int, pa.Array] = {
        2: both(masks, nothing),
        **_positions(records, lambda a: both(a, a.take(pick))),
    }
    columns[1], columns[4] = _LETTERS.take(pa.array(operations)), _WORDS.take(pa.array(operations))
    carried = np.vstack([present, old.present[b_rows]]) if old is not None and len(b_rows) else present
    columns[7] = _column_masks(carried[order] if len(b_rows) else carried, ordinals, width)
    dead = pa.array(deletes) if deletes.any() else None
    for k, at in enumerate(ordinals):
        main = new.columns[k]
        if dead is not None and old is not None:
            main = pc.if_else(dead, old.columns[k], main)
        columns[at] = both(main, old.columns[k].take(pick) if old is not None else main.slice(0, 0))
    total = n + len(b_rows)
    arrays = [columns[i] if i in columns else pa.nulls(total, f.type) for i, f in enumerate(schema)]
    arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def _column_masks(present: Bools, ordinals: list[int], width: int) -> pa.Array:
    whole = present.all(axis=1) if width else np.ones(len(present), np.bool_)
    if whole.all():
        return pa.nulls(len(present), pa.binary())
    return pc.if_else(pa.array(whole), pa.scalar(None, pa.binary()), mask.pack(present, ordinals))


def _positions(records: pa.RecordBatch, spread: Callable[[pa.Array], pa.Array]) -> dict[int, pa.Array]:
    return {
        0: spread(records["CHANGE_SEQ"]),
        3: spread(hex_text(records["LOGADDR"])),
        5: spread(transaction_ids(records["TRXID"])),
        6: spread(records["COMMIT_TIME"]),
    }


_HEX = np.frombuffer(b"".join(b"%02X" % i for i in range(256)), np.uint8).reshape(256, 2)


def hex_text(positions: pa.Array) -> pa.Array:
    """Returns LOGADDR as 40 upper-case hex digits: the stream position of change tables."""
    n = len(positions)
    if not n:
        return pa.array([], pa.string())
    offsets = np.frombuffer(positions.buffers()[1], np.int32)[positions.offset : positions.offset + n + 1]
    raw = np.frombuffer(positions.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    return _fixed_text(_HEX[raw].reshape(n, -1))


def transaction_ids(ids: pa.Array) -> pa.Array:
    """Returns transaction ids as 32 upper-case hex digits."""
    big = ids.to_numpy().astype(">u8").view(np.uint8).reshape(len(ids), 8)
    digits = np.full((len(ids), 32), ord("0"), np.uint8)
    digits[:, 16:] = _HEX[big].reshape(len(ids), 16)
    return _fixed_text(digits)


def _fixed_text(digits: npt.NDArray[np.uint8]) -> pa.Array:
    n, width = digits.shape
    offsets = np.arange(0, (n + 1) * width, width, dtype=np.int32)
    raw = pa.py_buffer(np.ascontiguousarray(digits).reshape(-1))
    return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(offsets), raw])


def truncates(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the T rows of truncate records: headers only."""
    n = records.num_rows
    columns = _positions(records, lambda a: a)
    columns[1] = pa.repeat(TRUNCATE, n)
    columns[2] = pa.repeat(pa.scalar(b"", pa.binary()), n)
    columns[4] = pa.repeat(OPERATIONS[TRUNCATE], n)
    arrays = [columns.get(i, None) for i in range(len(schema))]
    filled = [a if a is not None else pa.nulls(n, f.type) for a, f in zip(arrays, schema, strict=True)]
    return pa.record_batch(filled, schema=schema)
