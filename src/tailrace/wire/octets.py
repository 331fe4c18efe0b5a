"""Bytes of whole columns, and their hex digits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import UnsupportedError

_MOST = 2**31 - 1
_DIGITS = np.frombuffer("".join(f"{n:02X}" for n in range(256)).encode(), np.uint16)


def hex_digits(values: pa.BinaryArray) -> pa.StringArray:
    """Returns the bytes as upper-case hex; NULL stays NULL.

    Raises:
        UnsupportedError: the column has more than 1 GiB, the limit of a text array.

    >>> hex_digits(pa.array([b"\\x0a\\xff", None, b""])).to_pylist()
    ['0AFF', None, '']
    """
    values = values.cast(pa.binary())
    if not len(values):
        return pa.array([], pa.string())
    if values.offset:
        values = pa.concat_arrays([values])
    valid, offsets, _ = values.buffers()
    digits = _DIGITS[all_bytes(values)]
    if digits.nbytes > _MOST:
        raise UnsupportedError(
            f"{digits.nbytes:,} hex digits are too many for one array",
            hint="lower `apply.merge_memory`, so that fewer rows are processed together",
        )
    ends = np.frombuffer(offsets, np.int32)[: len(values) + 1]
    ends = (ends - ends[0]) * np.int32(2)
    return pa.Array.from_buffers(pa.string(), len(values), [valid, pa.py_buffer(ends), pa.py_buffer(digits)])


def all_bytes(values: pa.BinaryArray | pa.StringArray) -> npt.NDArray[np.uint8]:
    """Returns the concatenated bytes of all values without copying; bytes of NULLs are undefined.

    >>> all_bytes(pa.array(["ab", "c", "d"]).slice(1)).tobytes()
    b'cd'
    """
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
