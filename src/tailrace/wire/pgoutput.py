"""PostgreSQL's logical replication messages (pgoutput, protocol 1, text values), many at a time.

Sources: PostgreSQL manual, "Logical Replication Message Formats"; spec/logreaders.md §1.3. Row messages (I,
U, D) and B, C are parsed by column with NumPy; the rare ones (R, Y, T, M, O) one by one in `pgmessages`.
Every length is checked against the end of its message before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import FormatError
from .pgmessages import message, origin, relation, truncate, type_

__all__ = ["EPOCH_US", "TupleImages", "begins", "commits", "flat", "heads", "images"]
__all__ += ["message", "origin", "relation", "truncate", "type_"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

EPOCH_US = 946_684_800_000_000
"""Unix time of PostgreSQL's epoch, 2000-01-01 UTC, in microseconds."""

_I, _U, _D, _K, _O, _N = b"IUDKON"
_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"


@dataclass(frozen=True)
class TupleImages:
    """The row images of many I, U, D messages of one relation layout; all arrays have one entry per message.

    Attributes:
        kind: the message's letter, I, U or D.
        old: the kind of old image: K (key columns only), O (all columns), 0 (none).
        new_text: per column the new values as PostgreSQL's text; null where `new_state` is not t.
        new_state: [message, column] the letter before the value: t text, n NULL, u unchanged and not sent; 0
            without a new image.
        old_text: as `new_text`, for the old image. In a K image, n means "not part of the key".
        old_state: as `new_state`, for the old image.
    """

    kind: Bytes
    old: Bytes
    new_text: list[pa.StringArray]
    new_state: Bytes
    old_text: list[pa.StringArray]
    old_state: Bytes


def flat(data: pa.BinaryArray) -> tuple[Bytes, Ints, Ints]:
    """Returns the bytes of a binary array without copying, and the start and end of each value.

    Sliced arrays are supported.

    Raises:
        FormatError: there are null values, or offsets are not 32-bit.

    >>> buf, starts, ends = flat(pa.array([b"ab", b"c"]).slice(1))
    >>> bytes(buf[starts[0] : ends[0]])
    b'c'
    """
    if not (isinstance(data, pa.Array) and pa.types.is_binary(data.type)):
        raise FormatError(
            f"messages must be one binary array, not {data.type}", hint="split the batch below 2 GiB"
        )
    if data.null_count:
        raise FormatError(f"{data.null_count} messages are NULL", hint="filter the log to row messages first")
    _, offsets, values = data.buffers()
    if offsets is None or not len(data):
        return np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)
    places = np.frombuffer(offsets, np.int32)[data.offset : data.offset + len(data) + 1].astype(np.int64)
    buf = np.zeros(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)
    return buf, places[:-1], places[1:]


def heads(buf: Bytes, starts: Ints, ends: Ints) -> tuple[Bytes, Ints]:
    """Returns the kind (first byte) of each message, and its relation id; 0 for messages other than I, U, D.

    >>> buf, starts, ends = flat(pa.array([b"C", b"I\\x00\\x00\\x01\\x02N"]))
    >>> [x.tolist() for x in heads(buf, starts, ends)]
    [[67, 73], [0, 258]]
    """
    _refuse(ends - starts < 1, "a message is empty")
    kind = buf[starts]
    row = (kind == _I) | (kind == _U) | (kind == _D)
    _refuse(row & (ends - starts < 6), "a message ends before its first tuple")
    rows = np.flatnonzero(row)
    relid = np.zeros(len(starts), np.int64)
    relid[rows] = _at(buf, ">u4")[starts[rows] + 1]
    return kind, relid


def begins(buf: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns final LSN, commit time (Unix microseconds, UTC) and transaction id of B messages."""
    _are(buf, starts, ends, "B", 21)
    long = _at(buf, ">i8")
    return _int64(long[starts + 1]), long[starts + 9] + EPOCH_US, _int64(_at(buf, ">u4")[starts + 17])


def commits(buf: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns commit LSN, end LSN (where the stream continues) and commit time (Unix microseconds, UTC) of C
    messages."""
    _are(buf, starts, ends, "C", 26)
    long = _at(buf, ">i8")
    return _int64(long[starts + 2]), _int64(long[starts + 10]), long[starts + 18] + EPOCH_US


def images(data: pa.BinaryArray, ncolumns: int) -> TupleImages:
    """Returns all row images of messages I, U, D (mixed) of one relation layout with `ncolumns` columns.

    Raises:
        FormatError: a message is malformed; the error names the row.
    """
    buf, starts, ends = flat(data)
    rows = _Rows(buf, starts, ends, np.zeros(0, np.uint8))
    rows.refuse(ends - starts < 6, None, "it ends before its first tuple")
    kind, tag = buf[starts], buf[starts + 5]
    rows = _Rows(buf, starts, ends, kind)
    rows.refuse(~np.isin(kind, [_I, _U, _D]), None, "not a row message")
    with_old = (tag == _K) | (tag == _O)
    rows.refuse(np.where(kind == _D, ~with_old, (kind == _I) & with_old), None, "tuple of the wrong kind")
    rows.refuse(~with_old & (tag != _N), None, "unknown tuple letter")
    after = starts + 6
    older = _Side(rows, np.flatnonzero(with_old), ncolumns)
    after[older.rows] = older.walk(after[older.rows])
    both = np.flatnonzero(with_old & (kind == _U))
    rows.refuse(after[both] >= ends[both], both, "it ends before its new tuple")
    rows.refuse(buf[after[both]] != _N, both, "no new tuple after the old one")
    after[both] += 1
    newer = _Side(rows, np.flatnonzero(kind != _D), ncolumns)
    after[newer.rows] = newer.walk(after[newer.rows])
    rows.refuse(after != ends, None, "bytes left over after the last value")
    old = np.where(with_old, tag, np.uint8(0))
    return TupleImages(kind, old, newer.texts(), newer.state, older.texts(), older.state)


@dataclass
class _Rows:
    """The offsets of messages, for errors that name the first invalid one."""

    buf: Bytes
    starts: Ints
    ends: Ints
    kind: Bytes

    def refuse(self, wrong: Bools, rows: Ints | None, what: str, hint: str | None = None) -> None:
        if not wrong.any():
            return
        first = int(np.argmax(wrong))
        row = first if rows is None else int(rows[first])
        letter = f" (message {chr(self.kind[row])!r})" if len(self.kind) else ""
        size = int(self.ends[row] - self.starts[row])
        raise FormatError(
            f"{what}: not a pgoutput row message of this relation",
            where=f"row {row}{letter}, {size} bytes",
            hint=hint
            or "check that the log is complete and that the layout is the relation's at that position",
        )


class _Side:
    """The old or the new tuples, parsed by column over all messages that have one."""

    def __init__(self, messages: _Rows, rows: Ints, ncolumns: int) -> None:
        self.messages, self.rows, self.ncolumns = messages, rows, ncolumns
        self.state: Bytes = np.zeros((len(messages.starts), ncolumns), np.uint8, order="F")
        self.places: list[tuple[Ints, Ints]] = []

    def walk(self, at: Ints) -> Ints:
        """Parses the tuples that begin at these offsets, and returns the offsets after them."""
        messages = self.messages
        ends: Ints = messages.ends[self.rows]
        messages.refuse(at + 2 > ends, self.rows, "it ends in a tuple's column count")
        count = _at(messages.buf, ">u2")[at]
        messages.refuse(
            count != self.ncolumns, self.rows, f"a tuple that does not have {self.ncolumns} columns"
        )
        at = at + 2
        for column in range(self.ncolumns):
            at = self._column(column, at, ends)
        return at

    def _column(self, column: int, at: Ints, ends: Ints) -> Ints:
        messages = self.messages
        messages.refuse(at >= ends, self.rows, f"it ends before column {column}")
        letter = messages.buf[at]
        self.state[self.rows, column] = letter
        texts: Ints | slice = slice(None)
        if not (present := letter == _TEXT).all():
            self._letters(column, letter)
            texts = np.flatnonzero(present)
        first = at + 1
        begin, limit, rows = first[texts] + 4, ends[texts], self.rows[texts]
        messages.refuse(begin > limit, rows, f"it ends in the length of column {column}")
        size = _int64(_at(messages.buf, ">i4")[begin - 4])
        messages.refuse(
            (size < 0) | (size > limit - begin), rows, f"column {column} is longer than its message"
        )
        first[texts] = begin
        last: Ints = first.copy()
        last[texts] += size
        self.places.append((first, last))
        return last

    def _letters(self, column: int, letter: Bytes) -> None:
        messages = self.messages
        messages.refuse(
            letter == _BINARY,
            self.rows,
            f"column {column} is binary",
            "start replication without the option binary",
        )
        known = (letter == _TEXT) | (letter == _NULL) | (letter == _UNCHANGED)
        messages.refuse(~known, self.rows, f"unknown value letter in column {column}")

    def texts(self) -> list[pa.StringArray]:
        """Returns one string array per column, with an entry for every message."""
        total = len(self.messages.starts)
        if not len(self.rows):
            return [pa.nulls(total, pa.string()) for _ in range(self.ncolumns)]
        values = pa.array(np.arange(0, 2 * total, 2, dtype=np.int32))
        return [self._text(column, values) for column in range(self.ncolumns)]

    def _text(self, column: int, values: pa.Array) -> pa.StringArray:
        """Returns the values of a column.

        Values and the gaps between them form one binary array over the messages' bytes. Taking every second
        entry copies whole values in native code.
        """
        messages, total = self.messages, len(self.messages.starts)
        borders = np.empty(2 * total + 1, np.int32)
        first, last = self.places[column]
        if len(self.rows) < total:
            borders[:-1:2] = borders[1::2] = messages.starts
            borders[2 * self.rows], borders[2 * self.rows + 1] = first, last
        else:
            borders[:-1:2], borders[1::2] = first, last
        borders[-1] = borders[-2]
        parts = [None, pa.py_buffer(borders), pa.py_buffer(messages.buf)]
        taken = pa.Array.from_buffers(pa.binary(), 2 * total, parts).take(values)
        present = self.state[:, column] == _TEXT
        _, offsets, content = taken.buffers()
        valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
        taken = pa.Array.from_buffers(pa.binary(), total, [valid, offsets, content or pa.py_buffer(b"")])
        try:
            return taken.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = np.array([not _is_utf8(value) for value in taken.to_pylist()])
            self.messages.refuse(
                wrong, None, f"column {column} is not UTF-8", "connect with client_encoding UTF8"
            )
            raise


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _at(buf: Bytes, dtype: str) -> npt.NDArray[Any]:
    """Returns the buffer as integers that begin at every byte, to read unaligned big-endian
    fields by index."""
    size = max(0, len(buf) - np.dtype(dtype).itemsize + 1)
    every: npt.NDArray[Any] = np.ndarray((size,), dtype, buf, strides=(1,))
    return every


def _int64(values: npt.NDArray[Any]) -> Ints:
    return values.astype(np.int64)


def _refuse(wrong: Bools, what: str) -> None:
    if wrong.any():
        raise FormatError(
            what,
            where=f"message {int(np.argmax(wrong))} of {len(wrong)}",
            hint="check that the slot uses pgoutput, protocol 1, without streaming",
        )


def _are(buf: Bytes, starts: Ints, ends: Ints, letter: str, size: int) -> None:
    _refuse(ends - starts != size, f"not a message {letter!r} of {size} bytes")
    _refuse(buf[starts] != ord(letter), f"not a message {letter!r}")
