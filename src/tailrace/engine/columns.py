"""Columns that change rows have in addition to the data on their way through the engine."""

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
"""Of a folded row. `OP`: U (write) or D (delete). `KEPT`: one character a data column, `1` where the target's
value stays; NULL when nothing does."""
UPSERT: Final = "U"
HAVE, TAKE, ADD, LEFT = "header__have", "header__take", "header__add", "header__left"
"""Of a row of a table without key (bigint): copies that the target has; copies that changes take away, as far
as they are there; copies that changes add after that; copies that there are then."""
WHY = "header__why"
"""Next to the images: what is wrong with a change's values (string; NULL: nothing)."""
MASK, AT, DETAIL = "header__mask", "header__at", "header__detail"
"""Next to the images: `column_mask` (binary), `timestamp`, `change_row_log_detail` (string)."""
NATIVE_OF = "header__native_{}"
"""Next to rows that came from a key log: its own value of a column of key logs."""
RAW_OF = "header__raw_{}"
"""Next to judged changes: the value of a column in the type of the changes, where the target's is another."""
LETTER = "header__letter"
"""Next to rows of an archive: `change_oper` (string), where `OPER` says that they are inserted."""


def one(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def typed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, in its types: Spark's differ in time zone names and text widths."""
    arrays = [batch[f.name] for f in wanted]
    arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, wanted, strict=True)]
    return pa.record_batch(arrays, schema=wanted)


def raw_values(rows: pa.Table) -> pa.Table:
    """Judged changes with the values that they came with (`RAW_OF`)."""
    prefix = RAW_OF.format("")
    for name in [n for n in rows.schema.names if n.startswith(prefix)]:
        field = rows.schema.field(name).with_name(name.removeprefix(prefix))
        rows = rows.set_column(rows.schema.names.index(field.name), field, rows[name])
    return rows


def carried(rows: pa.Table, ordinals: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """Which columns each image carries; None: all in all."""
    return mask.unpack(one(rows[MASK]), ordinals) if MASK in rows.schema.names else None


@dataclass(frozen=True)
class MaskBits:
    """Masks (binary, as `model.mask` has them) as bits. Masks are few: each is looked at once.

    Attributes:
        codes: which of the different masks each row has; bits: the bits of each of them, a column an ordinal.
            The last one stands for no mask (NULL).
    """

    codes: npt.NDArray[np.int64]
    bits: npt.NDArray[np.bool_]

    @staticmethod
    def of(masks: pa.ChunkedArray, ordinals: Sequence[int], *, null: bool = True) -> MaskBits:
        """The bits of these ordinals; `null`: the bits of rows without a mask.

        >>> found = MaskBits.of(pa.chunked_array([[b"\x03", None, b"\x02"]]), [0, 1])
        >>> found.bits[found.codes].tolist()
        [[True, True], [True, True], [False, True]]
        """
        known = one(masks).dictionary_encode()
        bits = mask.unpacked(known.dictionary.to_pylist(), ordinals)
        codes = known.indices.fill_null(len(bits)).to_numpy()
        return MaskBits(codes.astype(np.int64), np.vstack([bits, np.full((1, len(ordinals)), null)]))


def letters(oper: pa.StringArray) -> npt.NDArray[np.str_]:
    """Operations as NumPy has them; `?` for NULL.

    >>> letters(pa.array(["I", None, "I"])).tolist()
    ['I', '?', 'I']
    """
    known = oper.dictionary_encode()
    words = np.array([*known.dictionary.to_pylist(), "?"])
    found: npt.NDArray[np.str_] = words[known.indices.fill_null(len(words) - 1).to_numpy()]
    return found


def words(oper: npt.NDArray[np.str_]) -> pa.StringArray:
    """What `letters` gives, as Arrow has it.

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
    """Operations as the codes of their first letters; that of `?` for NULL, and for what is no ASCII letter.

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
