"""Converts PostgreSQL's text of values for `COPY ... (FORMAT binary)` into columns of their source type.

Source: the types' `..._recv` functions. Most need more than the text. Those supported here are cheap to
convert, whole columns at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .pgoutput import flat

_HYPHENS = [8, 13, 18, 23]
_WIDTH = 36
_DIGITS = np.zeros(256, np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def _same(text: pa.StringArray) -> pa.Array:
    return text


def _jsonb(text: pa.StringArray) -> pa.Array:
    """Returns the text with a version number before it."""
    return pc.binary_join_element_wise(b"\1", text.cast(pa.binary()), b"")


def _uuid(text: pa.StringArray) -> pa.Array:
    """Returns sixteen bytes; the server writes 32 lower-case digits and four hyphens."""
    data, starts, ends = flat(text.cast(pa.binary()).fill_null(b"0" * _WIDTH))
    if not len(text):
        return text.cast(pa.binary())
    digits = _DIGITS[np.delete(data[starts[0] : ends[-1]].reshape(-1, _WIDTH), _HYPHENS, axis=1)]
    values = pa.py_buffer(np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2]))
    offsets = pa.py_buffer(np.arange(len(text) + 1, dtype=np.int32) * 16)
    bits = pa.py_buffer(np.packbits(text.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(text), [bits, offsets, values])


SENT: dict[str, Callable[[pa.StringArray], pa.Array]] = {
    "varchar": _same, "bpchar": _same, "json": _same, "jsonb": _jsonb, "uuid": _uuid,
}  # fmt: skip
"""Converters by kind (a key of the source's type map)."""
