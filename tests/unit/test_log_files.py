"""LOG's files as batches of a store: in order, whole commits, found as they come."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tailrace.lake import delta as lake
from tailrace.store import log_files, running
from tailrace.store.log_files import LogFile, LogFiles

from .test_log_gaps import home, ids, store

pytestmark = pytest.mark.unit


def spans(files: list[LogFile]) -> list[tuple[int, int]]:
    return [(one.low, one.high) for one in files]


def test_batches_are_whole_commits_in_order_and_one_file_at_least(tmp_path: Path) -> None:
    path = str(home(tmp_path, 4) / "log")
    files = LogFiles(path, 3)
    size = next(f.size for f in LogFiles(path, -1).batch(-1, 1))
    assert spans(files.batch(3, 2 * size + size // 2)) == [(4, 6), (7, 9)]
    assert spans(files.batch(9, 1)) == [(10, 12)]
    assert files.batch(12, 1) == []


def test_commits_that_come_are_found_by_their_own_files(tmp_path: Path) -> None:
    at = home(tmp_path, 2)
    files = LogFiles(str(at / "log"), -1)
    assert spans(files.batch(-1, 1 << 30)) == [(1, 3), (4, 6)]
    with mock.patch.object(log_files, "open_table", side_effect=AssertionError("the table was opened again")):
        home(at, 2)
        assert spans(files.batch(6, 1 << 30)) == [(7, 9), (10, 12)]


def test_a_commit_that_was_removed_unread_is_no_loss_where_the_table_knows_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = home(tmp_path, 1)
    files = LogFiles(str(at / "log"), 3)
    home(at, 2)
    DeltaTable(str(at / "log")).create_checkpoint()
    (at / "log" / "_delta_log" / f"{lake.version(str(at / 'log')) - 1:020}.json").unlink()
    assert files.batch(3, 1 << 30) == []
    monkeypatch.setattr(log_files, "LOOK_EVERY_S", 0.0)
    assert spans(files.batch(3, 1 << 30)) == [(4, 6), (7, 9)]


def test_records_come_in_pieces_that_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(home(tmp_path, 1) / "log")
    (file,) = LogFiles(path, -1).batch(-1, 1)
    monkeypatch.setattr(running, "BATCH_ROWS", 2)
    rows = list(running.records(path, [running.Piece(file.path, file.size)]))
    assert [b.num_rows for b in rows] == [2, 1]
    assert pa.Table.from_batches(rows)["CHANGE_SEQ"].to_pylist() == lake.read(path)["CHANGE_SEQ"].to_pylist()


def test_a_batch_runs_in_this_process(tmp_path: Path) -> None:
    at = home(tmp_path, 3)
    path, mine = str(at / "log"), store(at)
    mine.batch(running.runner(path, LogFiles(path, -1).batch(-1, 1 << 30)))
    assert (ids(at), mine.reached) == ([0, 1, 2], 9)


def test_a_large_batch_is_shared_by_threads_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, met = home(tmp_path, 6), set[str]()
    path, mine = str(at / "log"), store(at)
    files, read = LogFiles(path, -1).batch(-1, 1 << 30), running.records
    monkeypatch.setattr(running, "SPLIT_BYTES", sum(f.size for f in files) - 1)
    monkeypatch.setattr(running, "slots", lambda _: 3)
    monkeypatch.setattr(running, "PARTITIONS_PER_SLOT", 1)
    monkeypatch.setattr(running, "PARTITION_BYTES", 1)
    monkeypatch.setattr("tailrace.execution.driver.cores", lambda: 3)
    monkeypatch.setattr(
        running, "records", lambda *of: (met.add(threading.current_thread().name), read(*of))[1]
    )
    mine.batch(running.runner(path, files))
    assert (ids(at), mine.reached) == ([0, 1, 2, 3, 4, 5], 18)
    assert all(name.startswith("store_") for name in met)
    assert DeltaTable(str(at / "item__ct")).count() == 6
    assert len(DeltaTable(str(at / "item__ct")).file_uris()) == 3


@given(st.lists(st.integers(0, 1 << 22), min_size=1, max_size=30), st.integers(1, 8))
def test_shares_hold_every_file_once_and_in_order(sizes: list[int], many: int) -> None:
    files = [LogFile(str(k), size) for k, size in enumerate(sizes)]
    shares = running.partitions("log", files, many)
    assert [piece.path for one in shares for piece in one] == [f.path for f in files]
    assert 1 <= len(shares) <= many and all(shares)
    most = max(sum(p.size for p in one) for one in shares)
    assert most <= sum(sizes) / many + 2 * max(sizes)


def test_a_large_file_is_shared_by_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "log")
    with mock.patch("tailrace.lake.parts.ROW_GROUP", 2):
        home(tmp_path, 1)
    (file,) = LogFiles(path, -1).batch(-1, 1)
    monkeypatch.setattr(running, "SPLIT_BYTES", 0)
    shares = running.partitions(path, [file], 2)
    assert [[p.groups for p in one] for one in shares] == [[(0,)], [(1,)]]
    found = [b for one in shares for b in running.records(path, one)]
    assert pa.Table.from_batches(found)["CHANGE_SEQ"].to_pylist() == lake.read(path)["CHANGE_SEQ"].to_pylist()
