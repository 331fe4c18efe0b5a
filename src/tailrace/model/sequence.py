"""The 35-digit change sequence: 16 digits of commit time, 19 digits of change number.

`YYYYMMDDHHmmSShh` (UTC, hundredths) + zero-padded number. The fixed width makes text order equal numeric
order. The time part never decreases within a task. The number counts the task's log records, so gaps between
changes are normal (source: spec/qlik.md §1.2).
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from .positions import ChangeNumber, ChangeSeq

if TYPE_CHECKING:
    import pyarrow as pa

WIDTH = 35
TIME_DIGITS = 16
NUMBER_DIGITS = 19
FIRST = ChangeSeq("0" * WIDTH)
"""A sequence that is smaller than every real one."""
_EPOCH, _END = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc), 9999_12_31_23_59_59_99
_SEQ = f"[0-9]{{{WIDTH}}}"

_THOUSANDS = np.frombuffer("".join(f"{i:03d}" for i in range(1000)).encode(), np.uint8).reshape(1000, 3)


def time_parts(commit_us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the 16 digits of commit times (microseconds since 1970, UTC), as integers.

    >>> time_parts(np.array([0, 1_700_000_000_123_456]))
    array([1970010100000000, 2023111422132012])
    """
    at = commit_us.astype("datetime64[us]")
    months = at.astype("datetime64[M]")
    day = (at.astype("datetime64[D]") - months.astype("datetime64[D]")).astype(np.int64) + 1
    month = months.astype(np.int64)
    hundredths = commit_us % 86_400_000_000 // 10_000
    seconds = hundredths // 100
    date = (1970 + month // 12) * 10_000 + (month % 12 + 1) * 100 + day
    clock = seconds // 3600 * 10_000 + seconds // 60 % 60 * 100 + seconds % 60
    return np.asarray(date * 100_000_000 + clock * 100 + hundredths % 100)


def time_part(at: dt.datetime) -> int:
    """Returns the 16 digits of a time; times after the year 9999 in UTC count as its end.

    >>> time_part(dt.datetime(2023, 11, 14, 22, 13, 20, 123456, dt.timezone.utc))
    2023111422132012
    >>> time_part(dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-1))))
    9999123123595999
    """
    commit_us = (at - _EPOCH) // dt.timedelta(microseconds=1)  # exact, as a float's seconds are not
    return min(int(time_parts(np.array([commit_us]))[0]), _END)


def make(time: int, number: int) -> ChangeSeq:
    """Returns a change sequence from its two parts.

    >>> make(2023111422132012, 7)
    '20231114221320120000000000000000007'
    """
    return ChangeSeq(f"{time:0{TIME_DIGITS}d}{number:0{NUMBER_DIGITS}d}")


def number_of(seq: str) -> ChangeNumber:
    """Returns the change number of a change sequence.

    >>> number_of("20231114221320120000000000000000007")
    7
    """
    return ChangeNumber(int(seq[TIME_DIGITS:]))


def digits(values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Returns zero-padded ASCII digits, one row per value, without a Python loop over rows.

    >>> digits(np.array([7, 123456]), 8).tobytes()
    b'0000000700123456'
    """
    groups = -(-width // 3)
    out = np.empty((len(values), groups * 3), np.uint8)
    rest = values.astype(np.int64)
    for g in range(groups - 1, -1, -1):
        rest, low = np.divmod(rest, 1000) if g else (rest, rest)
        out[:, g * 3 : g * 3 + 3] = _THOUSANDS[low]
    return out[:, groups * 3 - width :]


def make_many(times: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Returns change sequences as an (n, 35) matrix of ASCII digits.

    >>> make_many(np.array([2023111422132012]), np.array([7])).tobytes()
    b'20231114221320120000000000000000007'
    """
    out = np.empty((len(times), WIDTH), np.uint8)
    # Adjacent sequences share their time and all except the last digits of their number. Each distinct part
    # is rendered once.
    out[:, :TIME_DIGITS] = _runs(times, TIME_DIGITS)
    out[:, TIME_DIGITS:-3] = _runs(numbers // 1000, NUMBER_DIGITS - 3)
    out[:, -3:] = _THOUSANDS[numbers % 1000]
    return out


def _runs(values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Returns `digits` for values with runs of equal ones."""
    if not len(values):
        return np.empty((0, width), np.uint8)
    starts = run_starts(values)
    return np.repeat(digits(values[starts], width), run_lengths(starts, len(values)), axis=0)


def run_starts(values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Returns the starts of runs of equal values.

    >>> run_starts(np.array([7, 7, 8, 7])).tolist()
    [0, 2, 3]
    """
    begins = np.empty(len(values), np.bool_)
    begins[:1] = True
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    return np.flatnonzero(begins)


def run_lengths(starts: npt.NDArray[np.intp], total: int) -> npt.NDArray[np.intp]:
    """Returns the lengths of the runs that begin at these indexes.

    >>> run_lengths(np.array([0, 2, 3]), 4).tolist()
    [2, 1, 1]
    """
    ends = np.empty_like(starts)
    ends[:-1], ends[-1:] = starts[1:], total
    return ends - starts


def matrix(seqs: pa.StringArray) -> npt.NDArray[np.uint8]:
    """Returns change sequences as an (n, 35) matrix of ASCII digits, without copying.

    Raises:
        FormatError: a sequence is NULL, or does not have 35 digits.

    >>> import pyarrow as pa
    >>> matrix(pa.array([FIRST, "1" * WIDTH])[1:]).tobytes() == b"1" * WIDTH
    True
    >>> matrix(pa.array([FIRST, "x" * WIDTH]))
    Traceback (most recent call last):
        ...
    tailrace.errors.FormatError: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' is not a change sequence of 35 digits
    """
    if not len(seqs):
        return np.empty((0, WIDTH), np.uint8)
    _, ends, data = seqs.buffers()
    bounds = np.frombuffer(ends, np.int32)[seqs.offset : seqs.offset + len(seqs) + 1]
    octets = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
    whole = len(octets) == len(seqs) * WIDTH and not seqs.null_count and (np.diff(bounds) == WIDTH).all()
    if not whole or octets.min() < ord("0") or octets.max() > ord("9"):
        wrong = next(s for s in seqs.to_pylist() if s is None or re.fullmatch(_SEQ, s) is None)
        raise FormatError(f"{wrong!r} is not a change sequence of {WIDTH} digits")
    return octets.reshape(len(seqs), WIDTH)


def numbers_of(seqs: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Returns the change numbers of an (n, 35) matrix of ASCII digits.

    >>> numbers_of(np.frombuffer(b"20231114221320120000000000000000007", np.uint8).reshape(1, WIDTH))
    array([7])
    """
    return _parsed(seqs[:, TIME_DIGITS:])


def times_of(seqs: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Returns the time parts of an (n, 35) matrix of ASCII digits.

    >>> times_of(np.frombuffer(b"20231114221320120000000000000000007", np.uint8).reshape(1, WIDTH))
    array([2023111422132012])
    """
    return _parsed(seqs[:, :TIME_DIGITS])


def _parsed(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    found = np.zeros(len(digits), np.int64)
    for k in range(digits.shape[1]):
        found = found * 10 + (digits[:, k].astype(np.int64) - 48)
    return found
