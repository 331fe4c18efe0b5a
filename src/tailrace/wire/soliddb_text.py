"""solidDB's CHAR and UNICODE values, whole columns at a time.

Source: spec/soliddb.md §5.1: CHAR is bytes, UNICODE is two-byte units, big-endian. One trailing 0x00 belongs
to the engine, not to the value.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError, FormatError
from .soliddb_rows import Bools, Bytes, Ints, cut, flat

Wrong: TypeAlias = pa.Array | None


def char_text(raw: pa.Array, encoding: str) -> tuple[pa.Array, Wrong]:
    """Returns CHAR values as text without a trailing 0x00, and which ones are invalid in the encoding."""
    buf, starts, ends = flat(raw)
    nul = (ends > starts) & (_last(buf, ends) == 0)
    bare = cut(buf, starts, ends - nul, _valid(raw))
    if encoding == "latin-1":
        return _latin(bare), None
    if encoding != "utf-8":
        raise ConfigError(f"CHAR values in {encoding} are not supported", hint="char is utf-8 or latin-1")
    text = _utf8(bare)
    bad = text.null_count != bare.null_count
    return text, pc.and_(pc.is_valid(bare), pc.is_null(text)) if bad else None


def char_bytes(values: pa.Array, encoding: str, *, nul: bool, where: str) -> pa.Array:
    """Returns text as CHAR values.

    Raises:
        FormatError: the encoding cannot represent a text.
    """
    raw = values.cast(pa.binary())
    if encoding == "latin-1":
        if pc.any(pc.match_substring_regex(values, r"[^\x00-\x{FF}]")).as_py():
            raise FormatError("text that is not latin-1", where=f"column {where}", hint="set char=utf-8")
        whole = _content(raw)
        made = np.frombuffer(whole.tobytes().decode().encode("latin-1"), np.uint8)
        raw = _array(made, _offsets(raw, _starts(whole)), raw)
    return pc.binary_join_element_wise(raw, _NUL, _NOTHING) if nul else raw


def unicode_text(raw: pa.Array) -> tuple[pa.Array, Wrong]:
    """Returns UNICODE values as text without a 0x00 after whole units, and which ones are not UTF-16."""
    buf, starts, ends = flat(raw)
    valid, size = _valid(raw), ends - starts
    odd = size % 2 == 1
    good = valid & ~(odd & (_last(buf, ends) != 0))
    values, borders = _units(cut(buf, starts, np.where(good, ends - odd, starts), good))
    most = int(values.max(initial=0))
    if most >= _SURROGATES and (lone := _lone_surrogates(values, borders)).any():
        good = good & ~lone
        values, borders = _units(cut(buf, starts, np.where(good, ends - odd, starts), good))
    text, places = _utf8_of(values, borders)
    bits = None if good.all() else pa.py_buffer(np.packbits(good, bitorder="little"))
    parts = [bits, pa.py_buffer(places), pa.py_buffer(text)]
    wrong = valid & ~good
    return pa.Array.from_buffers(pa.string(), len(raw), parts), pa.array(wrong) if wrong.any() else None


def _utf8_of(units: npt.NDArray[np.uint16], borders: Ints) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Returns units as UTF-8, and the borders of the values in it."""
    if int(units.max(initial=0)) < 0x80:
        return units.astype(np.uint8), borders.astype(np.int32)
    sizes = np.select(
        [units < 0x80, units < 0x800, units >> 10 == 0x36, units >> 10 == 0x37], [1, 2, 4, 0], 3
    )
    text = np.frombuffer(units.astype(">u2").tobytes().decode("utf-16-be").encode(), np.uint8)
    return text, np.concatenate([[0], np.cumsum(sizes)])[borders].astype(np.int32)


def unicode_bytes(values: pa.Array, *, nul: bool) -> pa.Array:
    """Returns text as UNICODE values."""
    raw = values.cast(pa.binary())
    whole = _content(raw)
    if int(whole.max(initial=0)) < 0x80:
        made = np.zeros(2 * len(whole), np.uint8)
        made[1::2] = whole
        places = (2 * _borders(raw)).astype(np.int32)
    else:
        made = np.frombuffer(whole.tobytes().decode().encode("utf-16-be"), np.uint8)
        # The first byte of a character determines its number of units: one, or two from 0xF0 on.
        places = _offsets(raw, 2 * (_starts(whole).astype(np.int64) + (whole >= 0xF0)))
    out = _array(made, places, raw)
    return pc.binary_join_element_wise(out, _NUL, _NOTHING) if nul else out


def has_nul(raw: pa.Array, *, units: bool) -> Bools:
    """Returns which values have a trailing 0x00; with `units`, one after whole units of two bytes."""
    buf, starts, ends = flat(raw)
    behind = (ends > starts) & (_last(buf, ends) == 0)
    return np.asarray(behind & ((ends - starts) % 2 == 1) if units else behind, np.bool_)


_SURROGATES = 0xD800
_NUL, _NOTHING = pa.scalar(b"\0", pa.binary()), pa.scalar(b"", pa.binary())


def _valid(values: pa.Array) -> Bools:
    return np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), np.bool_)


def _last(buf: Bytes, ends: Ints) -> Bytes:
    """Returns the byte before each position; 0 at the start of the buffer."""
    if not len(buf):
        return np.zeros(len(ends), np.uint8)
    return buf[np.maximum(ends - 1, 0)]


def _units(raw: pa.Array) -> tuple[npt.NDArray[np.uint16], Ints]:
    """Returns two-byte units of all values together, and the borders of the values among them."""
    buf, starts, ends = flat(raw)
    if not len(starts):
        return np.zeros(0, np.uint16), np.zeros(1, np.int64)
    units = buf[starts[0] : ends[-1]].copy().view(">u2").astype(np.uint16)
    return units, np.append(starts, ends[-1]) // 2 - starts[0] // 2


def _lone_surrogates(units: npt.NDArray[np.uint16], borders: Ints) -> Bools:
    """Returns which values have half of a surrogate pair without the other."""
    rows = len(borders) - 1
    high, low = units >> 10 == 0x36, units >> 10 == 0x37
    if not (high.any() or low.any()):
        return np.zeros(rows, np.bool_)
    first = np.zeros(len(units) + 1, np.bool_)
    first[borders] = True  # a value begins (or all end) here, so no pair crosses it
    paired_low = np.r_[False, high[:-1]] & ~first[:-1]
    paired_high = np.r_[low[1:], False] & ~first[1:]
    bad = (low & ~paired_low) | (high & ~paired_high)
    counts = np.concatenate([[0], np.cumsum(bad)])[borders]
    return np.asarray(np.diff(counts) > 0, np.bool_)


def _content(raw: pa.Array) -> Bytes:
    """Returns all bytes of a binary array's values; nulls have none."""
    buf, starts, ends = flat(raw)
    return buf[starts[0] : ends[-1]] if len(starts) else buf


def _starts(text: Bytes) -> Bools:
    """Returns where a character of UTF-8 text begins."""
    return np.asarray(text & 0xC0 != 0x80, np.bool_)


def _offsets(raw: pa.Array, counts: npt.NDArray[np.generic]) -> npt.NDArray[np.int32]:
    """Returns the borders of the values in other units; `counts` is the number of units per byte."""
    sums = np.concatenate([[0], np.cumsum(counts)])
    return np.asarray(sums[_borders(raw)], np.int32)


def _borders(raw: pa.Array) -> Ints:
    """Returns the borders of the values in `_content`."""
    _, starts, ends = flat(raw)
    return np.append(starts, ends[-1]) - starts[0] if len(starts) else np.zeros(1, np.int64)


def _array(content: Bytes, offsets: npt.NDArray[np.int32], like: pa.Array) -> pa.Array:
    valid = _valid(like)
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(like), [bits, pa.py_buffer(offsets), pa.py_buffer(content)])


def _latin(raw: pa.Array) -> pa.Array:
    whole = _content(raw)
    text = np.frombuffer(whole.tobytes().decode("latin-1").encode(), np.uint8)
    return _array(text, _offsets(raw, 1 + (whole >= 0x80)), raw).cast(pa.string())


def _utf8(raw: pa.Array) -> pa.Array:
    """Returns the cast, null for refused values, which are found by bisection."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        if len(raw) == 1:
            return pa.nulls(1, pa.string())
        half = len(raw) // 2
        return pa.concat_arrays([_utf8(raw[:half]), _utf8(raw[half:])])
