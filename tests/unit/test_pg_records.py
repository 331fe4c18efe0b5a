"""Messages of PostgreSQL's stream as log records: what a restart takes again, and what it leaves out."""

from __future__ import annotations

import struct

import pytest

from tailrace.sources.postgresql.connect import lsn_of
from tailrace.sources.postgresql.records import Built, RecordBuilder

pytestmark = pytest.mark.unit


def sent(*messages: bytes) -> list[bytes]:
    return [b"w" + bytes(24) + one for one in messages]


def outside(end: int) -> bytes:
    """A message outside of transactions whose record ends at an LSN."""
    return b"M\0" + struct.pack(">Q", end) + b"p\0" + struct.pack(">I", 1) + b"x"


def transaction(commit: int, end: int) -> list[bytes]:
    """A transaction with one row; its commit's record begins and ends at these LSNs."""
    begin = b"B" + struct.pack(">QQI", commit, 0, 7)
    return [begin, b"I\0\0\0\1N\0\1n", b"C\0" + struct.pack(">QQQ", commit, end, 0)]


def found(built: Built) -> list[tuple[int, int]]:
    """(RECID, LSN) of all records."""
    rows = built.records.select(["RECID", "LOGADDR"]).to_pylist()
    return [(row["RECID"], lsn_of(row["LOGADDR"])) for row in rows]


def test_a_message_outside_ends_before_the_commit_directly_behind_it() -> None:
    built = RecordBuilder().build(sent(outside(0x100), *transaction(0x100, 0x130)))
    assert found(built) == [(100, 0xFF), (7, 0x100), (1, 0x100), (12, 0x100)]
    assert (built.complete, built.end) == (4, 0x130)


def test_after_a_message_outside_the_commit_directly_behind_it_comes_and_the_message_does_not() -> None:
    first = RecordBuilder().build(sent(outside(0x100)))
    assert (found(first), first.complete, first.end) == ([(100, 0xFF)], 1, 0x100)
    again = RecordBuilder(first.end or 0).build(
        sent(outside(0x100), *transaction(0x100, 0x130), outside(0x168))
    )
    assert found(again) == [(7, 0x100), (1, 0x100), (12, 0x100), (100, 0x167)]
    assert (again.complete, again.end) == (4, 0x168)


def test_a_message_behind_a_commit_comes_after_it() -> None:
    first = RecordBuilder().build(sent(*transaction(0xD0, 0x100)))
    again = RecordBuilder(first.end or 0).build(sent(*transaction(0xD0, 0x100), outside(0x138)))
    assert (found(again), again.complete, again.end) == ([(100, 0x137)], 1, 0x138)
