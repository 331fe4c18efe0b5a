"""Bytes as hex digits, whole columns at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_DIGITS = np.frombuffer("".join(f"{n:02X}" for n in range(256)).encode(), np.uint16)


def hex_digits(values: pa.BinaryArray) -> pa.StringArray:
    """The bytes as upper-case hex; NULL stays NULL.

    >>> hex_digits(pa.array([b"\\x0a\\xff", None, b""])).to_pylist()
    ['0AFF', None, '']
    """
    values = values.cast(pa.binary())
    if values.offset:
        values = pa.concat_arrays([values])
    valid, offsets, data = values.buffers()
    octets = np.frombuffer(data or b"", np.uint8)
    ends = np.frombuffer(offsets, np.int32)[: len(values) + 1] * 2
    return pa.Array.from_buffers(
        pa.string(), len(values), [valid, pa.py_buffer(ends), pa.py_buffer(_DIGITS[octets])]
    )
