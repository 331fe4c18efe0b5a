"""solidDB's 11-byte dates, many at a time.

Source: spec/soliddb.md §5.1: year (2 bytes, big-endian, with or without 0x8000 added), month, day, hour,
minute, second, nanoseconds (4).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .soliddb_rows import Bools, Bytes, Ints, binary, cut, flat

_DAY_US = 86_400_000_000
_TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?$"


def date_values(matrix: Bytes, good: Bools, type: str) -> tuple[pa.Array, Bools]:
    """Returns dates, timestamps, or times of day (as text) from rows of 11 bytes, and which of them are
    valid.

    A year from 0x8000 on has the bias; years before 1 are not supported.
    """
    part = matrix.astype(np.int64)
    year = part[:, 0] << 8 | part[:, 1]
    year = np.where(year >= 0x8000, year - 0x8000, year)
    nanos = matrix[:, 7:].copy().view(">u4")[:, 0].astype(np.int64)
    clock = (part[:, 4] < 24) & (part[:, 5] < 60) & (part[:, 6] < 60) & (nanos < 1_000_000_000)
    good = good & clock
    if type == "string":
        return _times(part, nanos, good), good
    month = np.where((part[:, 2] >= 1) & (part[:, 2] <= 12), part[:, 2], 0)
    months = (year - 1970) * 12 + np.maximum(month, 1) - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    length = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) - first
    good = good & (month > 0) & (part[:, 3] >= 1) & (part[:, 3] <= length) & (year >= 1) & (year <= 9999)
    days = np.where(good, first + part[:, 3] - 1, 0)
    if type == "date":
        return pa.array(days.astype(np.int32), pa.int32(), mask=~good).cast(pa.date32()), good
    seconds = part[:, 4] * 3600 + part[:, 5] * 60 + part[:, 6]
    us = np.where(good, days * _DAY_US + seconds * 1_000_000 + nanos // 1000, 0)
    target = pa.timestamp("us", "UTC" if type == "timestamp" else None)
    return pa.array(us, pa.int64(), mask=~good).cast(target), good


def is_finer(matrix: Bytes) -> Bools:
    """Returns which rows of 11 bytes have a fraction finer than microseconds."""
    nanos = matrix[:, 7:].copy().view(">u4")[:, 0].astype(np.int64)
    return np.asarray(nanos % 1000 != 0)


def date_bytes(values: pa.Array, type: str, *, year_bias: bool) -> tuple[pa.Array, Bools]:
    """Returns the 11 bytes of dates, timestamps (in UTC) or times of day, and which rows are valid."""
    n = len(values)
    matrix = np.zeros((n, 11), np.uint8)
    if type == "string":
        good = _time_parts(values, matrix)
        year: Ints = np.zeros(n, np.int64)
    else:
        if type == "date":
            days = pc.fill_null(values.cast(pa.int32()), 0).to_numpy().astype(np.int64)
            rest: Ints = np.zeros(n, np.int64)
        else:
            us = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
            days, rest = np.divmod(us, _DAY_US)
        date = days.astype("datetime64[D]")
        months = date.astype("datetime64[M]")
        month = months.astype(np.int64)
        year = 1970 + month // 12
        matrix[:, 2] = month % 12 + 1
        matrix[:, 3] = (date - months.astype("datetime64[D]")).astype(np.int64) + 1
        seconds, micros = np.divmod(rest, 1_000_000)
        matrix[:, 4], matrix[:, 5], matrix[:, 6] = seconds // 3600, seconds // 60 % 60, seconds % 60
        matrix[:, 7:] = (micros * 1000).astype(">u4").view(np.uint8).reshape(-1, 4)
        good = (year >= 1) & (year <= 0x7FFF)
    stored = np.clip(year, 0, 0x7FFF) + (0x8000 if year_bias else 0)
    matrix[:, :2] = stored.astype(">u2").view(np.uint8).reshape(-1, 2)
    return binary(matrix), np.asarray(good, np.bool_)


def _times(part: Ints, nanos: Ints, good: Bools) -> pa.Array:
    """Returns `HH:MM:SS`, with `.` and nine digits if there is a fraction."""
    text = np.full((len(part), 18), ord(":"), np.uint8)
    for place, column in ((0, 4), (3, 5), (6, 6)):
        text[:, place], text[:, place + 1] = 48 + part[:, column] // 10, 48 + part[:, column] % 10
    text[:, 8] = ord(".")
    rest = nanos
    for place in range(17, 8, -1):
        rest, digit = np.divmod(rest, 10)
        text[:, place] = 48 + digit
    widths = np.where(nanos > 0, 18, 8)
    widths[~good] = 0
    made = binary(text, widths).cast(pa.string())
    return made if good.all() else pc.if_else(pa.array(good), made, pa.scalar(None, pa.string()))


def _time_parts(values: pa.Array, matrix: Bytes) -> Bools:
    good = pc.fill_null(pc.match_substring_regex(values, _TIME), False).to_numpy(zero_copy_only=False)
    clean = pc.if_else(pa.array(good), values, "00:00:00")
    clean = pc.utf8_rpad(
        pc.if_else(pc.equal(pc.utf8_length(clean), 8), pc.binary_join_element_wise(clean, ".", ""), clean),
        18,
        "0",
    )
    buf, _, ends = flat(cut(*flat(clean.cast(pa.binary())), np.ones(len(clean), np.bool_)))
    digit = (buf[: ends[-1] if len(ends) else 0].reshape(-1, 18) - 48).astype(np.int64)
    for place, column in ((0, 4), (3, 5), (6, 6)):
        matrix[:, column] = digit[:, place] * 10 + digit[:, place + 1]
    nanos = digit[:, 9:] @ (10 ** np.arange(8, -1, -1))
    matrix[:, 7:] = nanos.astype(">u4").view(np.uint8).reshape(-1, 4)
    return np.asarray(good, np.bool_)
