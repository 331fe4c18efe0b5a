"""Change masks and field maps: bytes <-> column ordinals, and as Spark Columns.

A change mask is one big-endian integer, leading zero bytes trimmed; bit *n* is the column with ordinal *n*
(0-based) in the change table, header columns included (spec/qlik.md §2). A field map (OpenEdge) counts user
columns from 1, least significant bit of the first byte first (spec/openedge.md §2.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column

FIELD_MAP_BYTES = 256


def encode(ordinals: Iterable[int]) -> bytes:
    """The change mask with these bits set.

    >>> encode([7, 8]).hex()
    '0180'
    >>> encode([])
    b''
    """
    value = 0
    for n in ordinals:
        value |= 1 << n
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def decode(mask: bytes | None) -> list[int]:
    """The ordinals whose bits are set, ascending.

    >>> decode(bytes.fromhex("0180"))
    [7, 8]
    >>> decode(None)
    []
    """
    value = int.from_bytes(mask or b"", "big")
    return [n for n in range(value.bit_length()) if value >> n & 1]


def encode_field_map(positions: Iterable[int]) -> bytes:
    """The OpenEdge field map with these 1-based positions set, trimmed at the end.

    >>> encode_field_map([1, 9]).hex()
    '0101'
    """
    value = 0
    for n in positions:
        value |= 1 << (n - 1)
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def decode_field_map(field_map: bytes | None) -> list[int]:
    """The 1-based positions set in an OpenEdge field map.

    >>> decode_field_map(bytes.fromhex("0101"))
    [1, 9]
    """
    value = int.from_bytes(field_map or b"", "little")
    return [n + 1 for n in range(value.bit_length()) if value >> n & 1]


def pack(bits: npt.NDArray[np.bool_], ordinals: Sequence[int], *, little: bool = False) -> pa.Array:
    """Masks for many rows at once: `bits[i, k]` says whether row i has `ordinals[k]` set.

    Gives a binary array: change masks (big-endian, trimmed), or with `little` field maps, where
    ordinal 0 stands for position 1.

    >>> pack(np.array([[True, False], [False, False]]), [7, 8]).to_pylist()
    [b'\\x80', b'']
    """
    rows, width = len(bits), (max(ordinals, default=-1) + 8) // 8 * 8
    wide = np.zeros((rows, width), np.bool_)
    if len(ordinals):
        wide[:, list(ordinals)] = bits
    raw = np.packbits(wide, axis=1, bitorder="little")  # byte k holds ordinals 8k..8k+7
    used = (raw != 0)[:, ::-1].argmax(axis=1) if width else np.zeros(rows, np.int64)
    size = np.where(raw.any(axis=1), width // 8 - used, 0) if width else used
    if not little:
        raw = raw[:, ::-1]
    keep = np.arange(width // 8)[None, :] < size[:, None]
    if not little:
        keep = keep[:, ::-1]
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(size, out=offsets[1:])
    data = pa.py_buffer(np.ascontiguousarray(raw[keep]))
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), data])


def is_set(mask: Column, ordinal: int) -> Column:
    """Whether a change mask has the bit of one ordinal set, as a native Spark expression (boolean)."""
    from pyspark.sql import functions as F

    byte, bit = divmod(ordinal, 8)
    octet = F.conv(F.hex(F.substring(mask, -(byte + 1), 1)), 16, 10).cast("int")
    inside = F.octet_length(mask) > byte
    return F.coalesce(F.when(inside, F.getbit(octet, F.lit(bit)) == 1), F.lit(False))
