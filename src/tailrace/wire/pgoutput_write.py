"""Encodes row images as pgoutput messages, many at a time.

Sources of other databases write them to LOG's DATA, so that LOG has only one kind of image (`pgoutput` parses
them). Source: PostgreSQL manual, "Logical Replication Message Formats": I, U, D with text values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .soliddb import plain_decimal
from .soliddb_rows import binary, flat

_HEX = np.frombuffer(b"".join(b"%02x" % i for i in range(256)), np.uint8).reshape(256, 2)
_NOTHING = pa.scalar(b"", pa.binary())


def text_of(values: pa.Array) -> pa.Array:
    """Returns typed values as PostgreSQL's text.

    >>> text_of(pa.array([True, None])).to_pylist(), text_of(pa.array([b"\\x0a"])).to_pylist()
    (['t', None], ['\\\\x0a'])
    """
    kind = values.type
    if pa.types.is_boolean(kind):
        return pc.if_else(values, "t", "f")
    if pa.types.is_decimal(kind):
        return plain_decimal(values)
    if pa.types.is_binary(kind):
        return _hex(values)
    if pa.types.is_timestamp(kind) and kind.tz:
        text = values.cast(pa.timestamp("us")).cast(pa.string())
        return pc.binary_join_element_wise(text, "+00", "")
    text = values.cast(pa.string())
    if pa.types.is_floating(kind):
        text = pc.if_else(pc.is_inf(values), pc.if_else(pc.greater(values, 0), "Infinity", "-Infinity"), text)
        return pc.if_else(pc.is_nan(values), "NaN", text)
    return text


def messages(
    kind: str, relid: int, new: Sequence[pa.Array] | None, old: Sequence[pa.Array] | None
) -> pa.Array:
    """Returns messages of one kind (I, U or D) for one table, from the text of the new and old values by
    column.

    >>> messages("I", 258, [pa.array(["a"]), pa.nulls(1, pa.string())], None).to_pylist()
    [b'I\\x00\\x00\\x01\\x02N\\x00\\x02t\\x00\\x00\\x00\\x01an']
    """
    parts: list[pa.Array | pa.Scalar] = [_scalar(kind.encode() + relid.to_bytes(4, "big"))]
    for letter, columns in ((b"O", old), (b"N", new)):
        if columns is None:
            continue
        parts.append(_scalar(letter + len(columns).to_bytes(2, "big")))
        for text in columns:
            raw = text.cast(pa.binary())
            parts += [_lengths(raw), pc.fill_null(raw, b"")]
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


def _lengths(raw: pa.Array) -> pa.Array:
    """Returns `t` and the length in four bytes, or `n` for NULL."""
    size: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(raw), -1).to_numpy(zero_copy_only=False)
    made = np.empty((len(size), 5), np.uint8)
    made[:, 0] = np.where(size < 0, ord("n"), ord("t"))
    made[:, 1:] = np.maximum(size, 0).astype(">u4").view(np.uint8).reshape(-1, 4)
    return binary(made, np.where(size < 0, 1, 5).astype(np.int64))


def _hex(values: pa.Array) -> pa.Array:
    buf, starts, ends = flat(values)
    raw = buf[starts[0] : ends[-1]] if len(starts) else buf
    offsets = (
        2 * np.append(starts, ends[-1] if len(ends) else 0) - (2 * starts[0] if len(starts) else 0)
    ).astype(np.int32)
    digits = pa.py_buffer(np.ascontiguousarray(_HEX[raw]).reshape(-1))
    text = pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), digits])
    made = pc.binary_join_element_wise("\\x", text, "")
    return pc.if_else(pc.is_valid(values), made, pa.scalar(None, pa.string())) if values.null_count else made
