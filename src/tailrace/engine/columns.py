"""Columns that change rows have beside the data on their way through the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEQ, OPER = "header__seq", "header__oper"
"""`change_seq` and the operation, one letter (strings)."""
OP, KEPT = "header__op", "header__kept"
"""Of a folded row. `OP`: U (write) or D (delete). `KEPT`: one character a data column, `1` where the target's
value stays; NULL when nothing does."""
UPSERT: Final = "U"
MASK, AT, DETAIL = "header__mask", "header__at", "header__detail"
"""Beside the images: `column_mask` (binary), `timestamp`, `change_row_log_detail` (string)."""
LETTER = "header__letter"
"""Beside rows of an archive: `change_oper` (string), where `OPER` says that they are inserted."""


def one(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def typed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, in its types: Spark's differ in time zone names and text widths."""
    arrays = [batch[f.name] for f in wanted]
    arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, wanted, strict=True)]
    return pa.record_batch(arrays, schema=wanted)


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


def letters(oper: pa.StringArray) -> npt.NDArray[np.str_]:
    """Operations as NumPy has them; `?` for NULL.

    >>> letters(pa.array(["I", None, "I"])).tolist()
    ['I', '?', 'I']
    """
    known = oper.dictionary_encode()
    words = np.array([*known.dictionary.to_pylist(), "?"])
    found: npt.NDArray[np.str_] = words[known.indices.fill_null(len(words) - 1).to_numpy()]
    return found
