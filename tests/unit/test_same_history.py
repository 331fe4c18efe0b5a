"""What a source sends again is compared with LOG: another server's transactions are told by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tailrace.capture.baselines import Stopped
from tailrace.capture.stream_identity import check_stream
from tailrace.errors import PositionError
from tailrace.lake import log
from tailrace.sources.base import LogSource, Resent
from tailrace.store.trimming import Bound, trim
from tailrace.wire.records import RECORDS, Chunk

pytestmark = pytest.mark.unit

Made = tuple[int, int, int]
"""A transaction: its position, its number, the second of its commit."""
ONE, TWO, THREE, FOUR = (10, 1, 100), (20, 2, 200), (30, 3, 300), (40, 4, 400)


def at(position: int, ordinal: int = 0) -> bytes:
    return position.to_bytes(8, "big") + ordinal.to_bytes(8, "big") + bytes(4)


def chunk(*made: Made, cut: bool = False) -> Chunk:
    """Transactions of an insert each; the last one goes on in the next chunk if it is `cut`."""
    rows = [
        {"RECID": kind, "TRXID": number, "STMTTRXID": number, "RELID": 7, "FLAGS": 1, "DATA": b"",
         "LOGADDR": at(position, k), "COMMIT_TIME": second * 1_000_000}
        for position, number, second in made for k, kind in enumerate((log.BEGIN, log.INSERT, log.COMMIT))
    ]  # fmt: skip
    whole = made[:-1] if cut else made
    end = at(whole[-1][0] + 5) if whole else None
    return Chunk(pa.RecordBatch.from_pylist(rows, RECORDS), [], 3 * len(whole), end)


def rest(made: Made) -> Chunk:
    """The end of a transaction that was cut."""
    one = chunk(made)
    return Chunk(one.records.slice(2), [], 1, one.position)


class Source:
    """Sends chunks again, from a position on."""

    def __init__(self, begin: int, *chunks: Chunk) -> None:
        self._found: Resent | None = Resent(at(begin), at(45), iter(chunks), "server x")

    @contextmanager
    def resent(self, upto: bytes, stopped: Any) -> Iterator[Resent | None]:
        yield self._found


@pytest.fixture
def logged(tmp_path: Path) -> str:
    """LOG with three transactions in two files; its position is 45, for the source was idle."""
    writer = log.LogWriter(str(tmp_path / "log"), str(tmp_path / "relations"))
    idle = Chunk(pa.RecordBatch.from_pylist([], RECORDS), [], 0, at(45))
    for one in (chunk(ONE, TWO), chunk(THREE), idle):
        writer.add(one)
        writer.commit()
    return str(tmp_path / "log")


def look(source: Source, path: str, *, stopped: bool = False) -> None:
    check_stream(cast(LogSource, source), path, at(45), lambda: stopped)


@pytest.mark.parametrize(
    ("begin", "chunks"),
    [
        (45, []),
        (35, []),
        (35, [chunk((50, 5, 500))]),
        (30, [chunk(THREE)]),
        (15, [chunk(TWO), chunk(THREE, (50, 5, 500))]),
        (5, [chunk(ONE, TWO, THREE)]),
        (5, [chunk(ONE, TWO, cut=True), rest(TWO), chunk(THREE)]),
        (5, [chunk(ONE, cut=True), rest(ONE), chunk(TWO, THREE, (50, 5, 500), cut=True)]),
    ],
)
def test_the_same_transactions_again_are_fine(logged: str, begin: int, chunks: list[Chunk]) -> None:
    look(Source(begin, *chunks), logged)


CAPTURED = "was captured, and the server's log no longer has it"
MADE = "is in the server's log, and was not captured"


@pytest.mark.parametrize(
    ("begin", "chunks", "what"),
    [
        (25, [], f"transaction 3, committed 1970-01-01 00:05:00.00:00, {CAPTURED}"),
        (25, [chunk((30, 3, 301))], f"transaction 3, .* {CAPTURED}"),
        (25, [chunk((30, 4, 300))], f"transaction 3, .* {CAPTURED}"),
        (25, [chunk((28, 3, 300))], f"transaction 3, .* {MADE}"),
        (25, [chunk(THREE, FOUR)], f"transaction 4, committed 1970-01-01 00:06:40.00:00, {MADE}"),
        (35, [chunk(FOUR)], f"transaction 4, .* {MADE}"),
        (15, [chunk(THREE)], f"transaction 2, .* {CAPTURED}"),
        (5, [chunk(ONE), chunk(THREE)], f"transaction 2, .* {CAPTURED}"),
        (5, [chunk(ONE, TWO), chunk((50, 5, 500))], f"transaction 3, .* {CAPTURED}"),
    ],
)
def test_other_transactions_are_another_history(
    logged: str, begin: int, chunks: list[Chunk], what: str
) -> None:
    with pytest.raises(PositionError, match=what) as caught:
        look(Source(begin, *chunks), logged)
    assert "restored from a backup" in caught.value.what and caught.value.where == "server x"
    assert "start a new task" in (caught.value.hint or "")


def test_what_retention_removed_of_log_cannot_be_compared_and_the_rest_can(logged: str) -> None:
    assert trim(logged, "CHANGE_SEQ", Bound(6)).files == 1
    look(Source(5, chunk((12, 9, 900)), chunk(THREE)), logged)
    with pytest.raises(PositionError, match="transaction 3"):
        look(Source(5, chunk(ONE, TWO), chunk((30, 3, 301))), logged)
    assert trim(logged, "CHANGE_SEQ", Bound(9)).files == 1  # as earlier releases left it
    look(Source(5, chunk(ONE, (30, 3, 301))), logged)


def test_a_stop_comes_first_and_a_source_that_sends_nothing_again_is_not_asked(logged: str) -> None:
    with pytest.raises(Stopped):
        look(Source(5), logged, stopped=True)
    nothing = Source(5)
    nothing._found = None
    look(nothing, logged)
    check_stream(cast(LogSource, None), "no log", None, lambda: False)
