"""Columns of change rows inside the engine, in addition to the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..model import mask

SEQ, OPER = "header__seq", "header__oper"
"""`change_seq` and the operation, one letter (strings)."""
OP, KEPT = "header__op", "header__kept"
"""Columns of a folded row. `OP`: U (write) or D (delete). `KEPT`: one character per data column, `1` if the
target's value is kept; NULL if none is."""
UPSERT: Final = "U"
HAVE, TAKE, ADD, LEFT = "header__have", "header__take", "header__add", "header__left"
"""Columns of a row of a keyless table (bigint): copies in the target; copies that changes remove, if they
exist; copies that changes add after that; the resulting copies."""
WHY = "header__why"
"""Column of images: the error in a change's values (string; NULL: none)."""
MASK, AT, DETAIL = "header__mask", "header__at", "header__detail"
"""Columns of an image: `column_mask` (binary), `timestamp`, `change_row_log_detail` (string)."""
NATIVE_OF = "header__native_{}"
"""Prefix for rows of a key log: the log's own value of a column."""
RAW_OF = "header__raw_{}"
"""Prefix for checked changes: a column's value in the type of the changes, if the target's type differs."""
LETTER = "header__letter"
"""Column of an archive's rows: `change_oper` (string); `OPER` is then an insert."""


def one(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def typed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Returns a batch in the columns and types of a schema; Spark's types differ in time zone names and text
    widths."""
    arrays = [batch[f.name] for f in wanted]
    arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, wanted, strict=True)]
    return pa.record_batch(arrays, schema=wanted)


def raw_values(rows: pa.Table) -> pa.Table:
    """Returns checked changes with their original values (`RAW_OF`)."""
    prefix = RAW_OF.format("")
    for name in [n for n in rows.schema.names if n.startswith(prefix)]:
        field = rows.schema.field(name).with_name(name.removeprefix(prefix))
        rows = rows.set_column(rows.schema.names.index(field.name), field, rows[name])
    return rows


def carried(rows: pa.Table, ordinals: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """Returns which columns each image has; None if all have all."""
    return mask.unpack(one(rows[MASK]), ordinals) if MASK in rows.schema.names else None


@dataclass(frozen=True)
class MaskBits:
    """Masks (binary, see `model.mask`) as bits. Distinct masks are few, and each is decoded once.

    Attributes:
        codes: the index of each row's mask in `bits`.
        bits: one row per distinct mask, one column per ordinal; the last row stands for NULL.
    """

    codes: npt.NDArray[np.int64]
    bits: npt.NDArray[np.bool_]

    @staticmethod
    def of(masks: pa.ChunkedArray, ordinals: Sequence[int], *, null: bool = True) -> MaskBits:
        """Decodes the bits of these ordinals; `null` is the value of the bits of NULL masks.

        >>> found = MaskBits.of(pa.chunked_array([[b"\x03", None, b"\x02"]]), [0, 1])
        >>> found.bits[found.codes].tolist()
        [[True, True], [True, True], [False, True]]
        """
        known = one(masks).dictionary_encode()
        bits = mask.unpacked(known.dictionary.to_pylist(), ordinals)
        codes = known.indices.fill_null(len(bits)).to_numpy()
        return MaskBits(codes.astype(np.int64), np.vstack([bits, np.full((1, len(ordinals)), null)]))


def letters(oper: pa.StringArray) -> npt.NDArray[np.str_]:
    """Returns operations as a NumPy array, with `?` for NULL.

    >>> letters(pa.array(["I", None, "I"])).tolist()
    ['I', '?', 'I']
    """
    known = oper.dictionary_encode()
    words = np.array([*known.dictionary.to_pylist(), "?"])
    found: npt.NDArray[np.str_] = words[known.indices.fill_null(len(words) - 1).to_numpy()]
    return found


def words(oper: npt.NDArray[np.str_]) -> pa.StringArray:
    """Returns operations from `letters` as an Arrow array.

    >>> words(np.array(["I", "D"])[1:]).to_pylist(), words(np.array(["I", "odd"])).to_pylist()
    (['D'], ['I', 'odd'])
    """
    points = np.ascontiguousarray(oper).view(np.uint32)
    if len(points) != len(oper) or not len(oper) or points.max() > 127 or points.min() == 0:
        return pa.array(oper, pa.string())
    ends = np.arange(len(oper) + 1, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(oper), [None, pa.py_buffer(ends), pa.py_buffer(points.astype(np.uint8))]
    )


def codes(oper: pa.ChunkedArray) -> npt.NDArray[np.uint8]:
    """Returns the ASCII codes of the operations' first letters; that of `?` for NULL and other characters.

    >>> codes(pa.chunked_array([["I", None], ["D"]])).tolist() == [ord("I"), ord("?"), ord("D")]
    True
    """
    found = [_codes(chunk) for chunk in oper.chunks]
    return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, np.uint8), *found])


def _codes(oper: pa.Array) -> npt.NDArray[np.uint8]:
    if oper.type == pa.string() and not oper.null_count and len(oper):
        _, ends, data = oper.buffers()
        ends = np.frombuffer(ends, np.int32)[oper.offset : oper.offset + len(oper) + 1]
        if data is not None and ends[-1] - ends[0] == len(oper) and (np.diff(ends) == 1).all():
            return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    found = letters(oper).astype("U1").view(np.int32)
    return np.where((found > 0) & (found < 128), found, ord("?")).astype(np.uint8)
