"""Chunks end anywhere, commits of LOG with a transaction's end: capture's own loop over chunks cut at random."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.process import Capture
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.state.capture_state import CaptureState
from tailrace.wire.records import RECORDS, Chunk

from ..examples import examples
from .messages import insert
from .test_log_and_store import ITEM, chunk

pytestmark = pytest.mark.unit


def whole(sizes: Sequence[int]) -> tuple[pa.Table, list[int]]:
    """Transactions of so many changes, as records; the record behind each."""
    made = [
        chunk(100 * (k + 1), b"B", *[insert(7, [n, "1"]) for n in range(many)], b"C").records
        for k, many in enumerate(sizes)
    ]
    ends = [sum(r.num_rows for r in made[: k + 1]) for k in range(len(made))]
    return pa.Table.from_batches(made, RECORDS), ends


def chunks(records: pa.Table, ends: Sequence[int], cuts: Sequence[int]) -> Iterator[Chunk]:
    """The records, cut anew every so many."""
    at, lengths = 0, cycle(cuts)
    while at < records.num_rows:
        upto = min(at + next(lengths), records.num_rows)
        part = records.slice(at, upto - at).combine_chunks().to_batches()[0]
        here = [e for e in ends if at < e <= upto]
        position = (100 * (ends.index(here[-1]) + 1)).to_bytes(8, "big") + bytes(12) if here else None
        yield Chunk(part, [] if at else [(0, ITEM)], here[-1] - at if here else 0, position)
        at = upto


class Source:
    """Gives chunks, then stops the loop."""

    def __init__(self, given: Iterator[Chunk], stop: threading.Event) -> None:
        self._given, self._stop = given, stop
        self.acknowledged: list[bytes] = []

    def read(self, limit: int, wait: float) -> Chunk | None:
        found = next(self._given, None)
        if found is None:
            self._stop.set()
        return found

    def reached(self) -> None:
        return None

    def acknowledge(self, position: bytes) -> None:
        self.acknowledged.append(position)


class Sometimes:
    """Settings of capture; whether a commit is due comes from a list."""

    chunk_bytes = 1

    def __init__(self, due: Sequence[bool]) -> None:
        self._due = cycle(due)

    @property
    def commit_bytes(self) -> int:
        return 0 if next(self._due) else 1 << 40


def captured(given: Iterator[Chunk], home: Path, due: Sequence[bool]) -> list[bytes]:
    """Runs capture's loop over chunks; the positions that the source was told."""
    stop = threading.Event()
    source: Any = Source(given, stop)
    one: Any = SimpleNamespace(
        _task=SimpleNamespace(
            capture=Sometimes(due), freshness=1e9, groups={}, tables={}, run_path=str(home)
        ),
        _once=False,
        stop=stop,
        _state=CaptureState(),
        _followed=SimpleNamespace(tables=[], watch=SimpleNamespace(check=lambda *_: None)),
        _tell_lag=lambda _: None,
        _open=SimpleNamespace(happened=lambda *_: None, hold=lambda *_: None),
        _layouts={},
        _look=lambda *_: None,
    )
    one._commit = lambda *given: Capture._commit(one, *given)
    windows: Any = SimpleNamespace(ends=False, passed=lambda *_: None, logged=lambda _: None)
    work: Any = SimpleNamespace(failed=False, running=False)
    writer = log.LogWriter(str(home / "log"), str(home / "relations"))
    Capture._loop(one, source, writer, work, windows)
    return list(source.acknowledged)


def versions(path: str) -> list[pa.Table]:
    """What each commit of LOG has added, in order."""
    found, before = [], 0
    for version in range(1, DeltaTable(path).version() + 1):
        rows = DeltaTable(path, version=version).to_pyarrow_table(columns=["RECID", "CHANGE_SEQ"])
        rows = rows.sort_by("CHANGE_SEQ")
        found.append(rows.slice(before))
        before = rows.num_rows
    return [rows for rows in found if rows.num_rows]


@examples(8)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 14), min_size=1, max_size=4),
    due=st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_each_commit_of_the_log_ends_with_a_transaction(
    sizes: list[int], cuts: list[int], due: list[bool]
) -> None:
    with tempfile.TemporaryDirectory() as home:
        records, ends = whole(sizes)
        told = captured(chunks(records, ends, cuts), Path(home), due)
        added = versions(f"{home}/log")
        assert [rows["RECID"][-1].as_py() for rows in added] == [log.COMMIT] * len(added)
        numbers = [int(s[16:]) for rows in added for s in rows["CHANGE_SEQ"].to_pylist()]
        assert numbers == list(range(1, ends[-1] + 1))
        reached = [sum(rows.num_rows for rows in added[: k + 1]) for k in range(len(added))]
        positions = [(100 * (ends.index(n) + 1)).to_bytes(8, "big") + bytes(12) for n in reached]
        assert told == positions
        assert log.state(f"{home}/log").number == ends[-1]
        assert lake.read(f"{home}/log").num_rows == ends[-1]


def test_a_writer_takes_no_beginning_of_a_transaction_while_whole_ones_wait(tmp_path: Path) -> None:
    records, ends = whole([1, 1, 1])
    first, second, third, last = chunks(records, ends, [3, 1, 3, 9])
    writer = log.LogWriter(str(tmp_path / "log"), str(tmp_path / "relations"))
    writer.add(first)
    assert not writer.takes(second)
    with pytest.raises(ValueError, match="commit the waiting ones before adding it"):
        writer.add(second)
    done = writer.commit()
    assert done is not None and done.records == 3
    for more in (second, third, last):  # the third has an end, and a beginning behind it
        assert writer.takes(more)
        writer.add(more)
    done = writer.commit()
    assert done is not None and (done.records, done.transactions) == (6, 2)
