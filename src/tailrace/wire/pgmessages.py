"""The rare pgoutput messages, one at a time: Relation, Type, Truncate, Logical Message, Origin.

Layouts: spec/logreaders.md §1.3, outside stream blocks (protocol 1), without the leading transaction id.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from ..errors import FormatError


@dataclass(frozen=True)
class RelationColumn:
    """A column in a Relation message: `flags` 1 = part of the replica identity's key."""

    flags: int
    name: str
    type_oid: int
    typmod: int


@dataclass(frozen=True)
class RelationMessage:
    """R: Int32 relid, String schema, String name, Int8 identity (d n f i), Int16 count, the columns."""

    relid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class TypeMessage:
    """Y: Int32 oid, String schema, String name; sent before an R that uses a type which is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True)
class TruncateMessage:
    """T: Int32 count, Int8 options, Int32 relid each. `options`: 1 CASCADE, 2 RESTART IDENTITY."""

    relids: tuple[int, ...]
    options: int


@dataclass(frozen=True)
class LogicalMessage:
    """M: Int8 flags (1 = transactional), Int64 LSN, String prefix, Int32 length, content."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True)
class OriginMessage:
    """O: Int64 commit LSN at the origin, String name of the origin."""

    lsn: int
    name: str


def relation(data: bytes) -> RelationMessage:
    """Parses a Relation message; an empty schema name means pg_catalog."""
    read = _Reader(data, "R")
    (relid,) = read.fields(">I")
    schema, name = read.text() or "pg_catalog", read.text()
    identity, count = read.fields(">cH")
    columns = []
    for _ in range(count):
        (flags,) = read.fields(">B")
        column = read.text()
        columns.append(RelationColumn(flags, column, *read.fields(">Ii")))
    read.end()
    return RelationMessage(relid, schema, name, identity.decode("latin-1"), tuple(columns))


def type_(data: bytes) -> TypeMessage:
    """Parses a Type message.

    >>> type_(b"Y\\x00\\x00\\x40\\x02shop\\x00mood\\x00")
    TypeMessage(oid=16386, schema='shop', name='mood')
    """
    read = _Reader(data, "Y")
    (oid,) = read.fields(">I")
    found = TypeMessage(oid, read.text() or "pg_catalog", read.text())
    read.end()
    return found


def truncate(data: bytes) -> TruncateMessage:
    """Parses a Truncate message.

    >>> truncate(b"T\\x00\\x00\\x00\\x01\\x03\\x00\\x00\\x40\\x07")
    TruncateMessage(relids=(16391,), options=3)
    """
    read = _Reader(data, "T")
    count, options = read.fields(">IB")
    if 4 * count != read.left():
        raise read.error(f"{count} relations announced, but {read.left()} bytes left")
    return TruncateMessage(read.fields(f">{count}I"), options)


def message(data: bytes) -> LogicalMessage:
    """Parses a message of pg_logical_emit_message."""
    read = _Reader(data, "M")
    flags, lsn = read.fields(">Bq")
    prefix = read.text()
    (size,) = read.fields(">I")
    if size != read.left():
        raise read.error(f"{size} bytes announced, but {read.left()} left")
    return LogicalMessage(bool(flags & 1), lsn, prefix, bytes(data[len(data) - size :]))


def origin(data: bytes) -> OriginMessage:
    """Parses an Origin message."""
    read = _Reader(data, "O")
    (lsn,) = read.fields(">q")
    found = OriginMessage(lsn, read.text())
    read.end()
    return found


class _Reader:
    """A cursor over one message that raises an error instead of reading past its end."""

    def __init__(self, data: bytes, letter: str) -> None:
        self.data, self.letter, self.at = bytes(data), letter, 1
        if self.data[:1] != letter.encode():
            raise self.error("it begins with another letter")

    def fields(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize(layout)
        if size > self.left():
            raise self.error("it is truncated")
        self.at += size
        return struct.unpack_from(layout, self.data, self.at - size)

    def text(self) -> str:
        stop = self.data.find(b"\0", self.at)
        if stop < 0:
            raise self.error("a text is not terminated")
        raw, self.at = self.data[self.at : stop], stop + 1
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error("a name is not UTF-8") from error

    def left(self) -> int:
        return len(self.data) - self.at

    def end(self) -> None:
        if self.left():
            raise self.error(f"{self.left()} bytes left over")

    def error(self, what: str) -> FormatError:
        return FormatError(
            f"not a pgoutput message {self.letter!r}: {what}",
            where=f"{len(self.data)} bytes {self.data[:16].hex()}, at {self.at}",
            hint="check that the slot uses pgoutput, protocol 1, without streaming",
        )
