"""Reduces decoded changes to what a capture policy (`config/policies.py`) stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..config.policies import BIT_MAP, MAXIMUM, MEDIUM
from ..model import mask
from ..model.change import HEADERS, PREFIX, Relation
from .images import DecodedImages

Bools = npt.NDArray[np.bool_]
OPER, CHANGED, CARRIED = (PREFIX + h for h in ("change_oper", "change_mask", "column_mask"))


def reduced(decoded: DecodedImages, relation: Relation, level: int, levels: Sequence[int]) -> DecodedImages:
    """Returns the parts of decoded changes that a policy stores: rows, masks, field maps and counts.

    `level`, `levels`: of the table, and of each of its columns.
    """
    if min(levels, default=level) == MAXIMUM and level == MAXIMUM:
        return decoded
    schema = decoded.rows.schema
    ordinals = [schema.get_field_index(c.name) for c in relation.columns]
    rows = decoded.rows if level >= MEDIUM else decoded.rows.slice(0, 0)
    known = np.array(levels) >= BIT_MAP
    maps = unpack(decoded.field_maps, [n - len(HEADERS) for n in ordinals], little=True) & known[None, :]
    packed = mask.pack(maps, [n - len(HEADERS) for n in ordinals], little=True)
    nothing = pa.scalar(None, pa.binary())
    untold = decoded.field_maps.is_null() if level >= BIT_MAP else pa.array([True] * len(maps))
    counts = dict(decoded.counts)
    if level < MEDIUM:
        counts = dict.fromkeys(counts, 0)
    elif rows.num_rows:
        rows = _images(rows, relation, levels, ordinals, befores=level == MEDIUM and bool(relation.key))
        updates = pc.equal(rows[OPER], "U")
        counts["absent"] = int(pc.sum(pc.and_(updates, pc.is_valid(rows[CARRIED]))).as_py() or 0)
    hidden = {c.name for c, one in zip(relation.columns, levels, strict=True) if one < MEDIUM}
    bad = [b for b in decoded.bad if b.column not in hidden]
    return replace(decoded, rows=rows, field_maps=pc.if_else(untold, nothing, packed), counts=counts, bad=bad)


def _images(
    rows: pa.RecordBatch, relation: Relation, levels: Sequence[int], ordinals: Sequence[int], *, befores: bool
) -> pa.RecordBatch:
    """Returns images without the values that their columns' levels exclude; `befores`: before images only of
    changed keys."""
    level = np.array(levels)
    keys = np.array([c.key for c in relation.columns], np.bool_)
    changed = unpack(rows[CHANGED], ordinals) & (level >= BIT_MAP)[None, :]
    before = pc.equal(rows[OPER], "B").to_numpy(zero_copy_only=False)
    carried = (
        unpack(rows[CARRIED], ordinals) | rows[CARRIED].is_null().to_numpy(zero_copy_only=False)[:, None]
    )
    # Without a key, all values identify a row: its old image keeps the values that its other images keep.
    old = (level >= MAXIMUM) | keys if keys.any() else level >= MEDIUM
    carried &= np.where(before[:, None], old, level >= MEDIUM)
    columns = {CHANGED: mask.pack(changed, ordinals)}
    whole = pa.array(carried.all(axis=1))
    columns[CARRIED] = pc.if_else(whole, pa.scalar(None, pa.binary()), mask.pack(carried, ordinals))
    for k, at in enumerate(ordinals):
        if not carried[:, k].all():
            kind = rows.schema.field(at).type
            columns[rows.schema.field(at).name] = pc.if_else(
                pa.array(carried[:, k]), rows.column(at), pa.scalar(None, kind)
            )
    result = pa.record_batch(
        [columns.get(f.name, rows.column(i)) for i, f in enumerate(rows.schema)], schema=rows.schema
    )
    if not befores:
        return result
    # A before image is directly before its update.
    moved = np.zeros(len(before), np.bool_)
    moved[:-1] = np.any(changed & keys[None, :], axis=1)[1:]
    return result.filter(pa.array(~before | moved))


def unpack(masks: pa.Array, ordinals: Sequence[int], *, little: bool = False) -> Bools:
    """Returns `bits[i, k]`: whether mask i has `ordinals[k]` set; the inverse of `mask.pack`. NULL sets none.

    >>> unpack(pa.array([b"\\x01\\x80", None, b""]), [7, 8]).tolist()
    [[True, True], [False, False], [False, False]]
    """
    n, width = len(masks), max(ordinals, default=-1) // 8 + 1
    wide = np.zeros((n, width), np.uint8)
    filled = pc.fill_null(masks, b"")
    sizes = pc.binary_length(filled).to_numpy(zero_copy_only=False).astype(np.int64)
    raw = _bytes(filled)
    row = np.repeat(np.arange(n), sizes)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = np.arange(len(raw)) - starts
    if not little:
        place = np.repeat(sizes, sizes) - 1 - place  # byte k from the end holds ordinals 8k..8k+7
    inside = place < width
    wide[row[inside], place[inside]] = raw[inside]
    bits = np.unpackbits(wide, axis=1, bitorder="little").astype(np.bool_)
    return np.asarray(bits[:, list(ordinals)], np.bool_)


def _bytes(values: pa.Array) -> npt.NDArray[np.uint8]:
    """Returns the bytes of all values, concatenated."""
    if not len(values):
        return np.empty(0, np.uint8)
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    first, end = int(offsets[values.offset]), int(offsets[values.offset + len(values)])
    data = values.buffers()[2]
    return np.frombuffer(data, np.uint8)[first:end] if data is not None else np.empty(0, np.uint8)
