"""What is lost of LOG before it is stored stops the store, and it says what; nobody's loss does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import FormatError, PositionError
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.store import gaps
from tailrace.store import writer as writing
from tailrace.store.kept import kept, spans
from tailrace.store.running import Run
from tailrace.store.task import LOG_COLUMNS
from tailrace.store.writer import Store, StorePaths

from .messages import insert
from .test_log_and_store import chunk, writer

pytestmark = pytest.mark.unit


def tasks(rows: pa.Table, parts: int = 1) -> Run:
    """Runs a store batch of these records as so many tasks, in this process."""
    mine = rows.select(LOG_COLUMNS)
    size = -(-mine.num_rows // parts)
    shares = [mine.slice(k * size, size).combine_chunks().to_batches() for k in range(parts)]
    return lambda plan: [row for one in shares for row in plan(one)]


def home(tmp_path: Path, transactions: int) -> Path:
    """LOG with so many transactions of three records: numbers 1-3, 4-6, ..."""
    w = writer(tmp_path)
    for k in range(transactions):
        w.add(chunk(100 * (k + 1), b"B", insert(7, [k, "1"]), b"C"))
        w.commit()
    return tmp_path


def store(at: Path, passed: int = -1) -> Store:
    path = {n: str(at / n) for n in ("relations", "tracking", "stored", "quarantine")}
    changes, log_path = str(at / "item__ct"), str(at / "log")
    return Store(StorePaths(**path, changes=lambda _: changes, log=log_path, passed=lambda: passed))


def parts(at: Path) -> list[Path]:
    """The files of LOG, in order."""
    return [
        at / "log" / s.path
        for s in sorted(spans(DeltaTable(str(at / "log")), "CHANGE_SEQ"), key=lambda s: s.low)
    ]


def records(at: Path, *numbers: int) -> Run:
    rows = lake.read(str(at / "log")).sort_by("CHANGE_SEQ")
    mine = [int(s[16:]) in numbers for s in rows["CHANGE_SEQ"].to_pylist()]
    return tasks(rows.filter(pa.array(mine)), parts=2)


def ids(at: Path) -> list[int]:
    return sorted(lake.read(str(at / "item__ct"))["id"].to_pylist())


@pytest.mark.parametrize(("numbers", "lack"), [((1, 2, 3, 4, 5), "4 to 5"), ((1, 2), "1 to 2")])
def test_half_a_transaction_is_refused_and_stores_nothing(
    tmp_path: Path, numbers: tuple[int, ...], lack: str
) -> None:
    """No commit of LOG ends inside one; its first half would be stored again with the second."""
    at = home(tmp_path, 2)
    with pytest.raises(FormatError, match=f"LOG ends inside a transaction: its records {lack} have no end"):
        store(at).batch(records(at, *numbers))
    assert not lake.exists(str(at / "stored")) and store(at).reached == -1
    done = store(at).batch(records(at, 1, 2, 3, 4, 5, 6))
    assert done is not None and done.upto == 6 and ids(at) == [0, 1]


def test_what_is_missing_stops_the_store_with_its_numbers(tmp_path: Path) -> None:
    at = home(tmp_path, 4)
    mine = store(at)
    mine.batch(records(at, 1, 2, 3))
    with pytest.raises(PositionError, match="LOG has lost records that were not stored yet: 4 to 6\n"):
        mine.batch(records(at, 7, 8, 9))
    with pytest.raises(PositionError, match=r": 7 to 9\n  where: .*log\n"):
        mine.batch(records(at, 4, 5, 6, 10, 11, 12))
    assert (mine.reached, ids(at)) == (3, [0])  # nothing of them is stored
    mine.batch(records(at, *range(1, 13)))  # they were put back
    assert (mine.reached, ids(at)) == (12, [0, 1, 2, 3])


def test_the_first_records_of_all_are_missed_too(tmp_path: Path) -> None:
    at = home(tmp_path, 2)
    with pytest.raises(PositionError, match=": 1 to 3\n"):
        store(at).batch(records(at, 4, 5, 6))


def test_records_that_come_again_are_no_gap(tmp_path: Path) -> None:
    at = home(tmp_path, 3)
    store(at).batch(records(at, *range(1, 7)))
    again = store(at)
    assert again.batch(records(at, 1, 2, 3)) is None
    assert again.batch(records(at, 4, 5, 6, 7, 8, 9)) is not None
    assert ids(at) == [0, 1, 2]


def test_where_every_table_has_a_newer_baseline_the_store_goes_on_and_says_from_where(tmp_path: Path) -> None:
    at = home(tmp_path, 4)
    store(at).batch(records(at, 1, 2, 3))
    parts(at)[2].unlink()  # 7 to 9
    for passed in (-1, 8):
        with pytest.raises(PositionError, match=": 7 to 9\n"):
            store(at, passed).begin()
    mine = store(at, passed=9)
    assert (mine.begin(), mine.begin(), store(at).begin()) == (9, 9, 9)
    mine.batch(tasks(pa.table(pq.ParquetFile(parts(at)[3]).read())))
    assert (mine.reached, ids(at)) == (12, [0, 3])
    assert [kept(str(at / name)) for name in ("item__ct", "tracking")] == [9, 9]


def test_what_change_tables_had_before_tracking_behind_a_gap_does_not_come_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch ended between the change tables and TRACKING, and LOG lost its first records then."""
    at = home(tmp_path, 3)

    def ends(point: str) -> None:
        if point == "store.tracking":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(writing, "reach", ends)
        store(at).batch(records(at, *range(1, 10)))
    parts(at)[0].unlink()  # 1 to 3
    mine = store(at, passed=3)
    assert mine.begin() == 3
    mine.batch(tasks(pa.concat_tables([pq.ParquetFile(p).read() for p in parts(at)[1:]])))
    assert (mine.reached, ids(at)) == (9, [0, 1, 2])
    assert lake.read(str(at / "tracking")).num_rows == 2


def test_files_that_are_gone_with_nothing_behind_them_are_missed_before_the_store_begins(
    tmp_path: Path,
) -> None:
    at = home(tmp_path, 3)
    mine = store(at)
    mine.batch(records(at, 1, 2, 3))
    assert mine.begin() == 3
    DeltaTable(str(at / "log")).delete()
    with pytest.raises(PositionError, match=": 4 to 9\n"):
        mine.begin()


def test_another_log_is_told_from_the_one_that_was_stored(tmp_path: Path) -> None:
    at = home(tmp_path, 2)
    mine = store(at)
    mine.batch(records(at, *range(1, 7)))
    shutil.rmtree(at / "log")
    home(tmp_path, 1)
    with pytest.raises(PositionError, match="LOG ends at change number 3, but it was stored up to 6\n"):
        mine.begin()


def test_a_log_without_a_gap_is_stored_however_it_is_cut(tmp_path: Path) -> None:
    at = home(tmp_path, 5)
    mine = store(at)
    for upto in (3, 9, 15):
        mine.batch(records(at, *range(1, upto + 1)))
    assert ids(at) == [0, 1, 2, 3, 4] and log.state(str(at / "log")).number == mine.reached


@given(st.sets(st.integers(1, 30)), st.integers(-1, 12), st.integers(1, 4))
def test_missing_is_what_a_set_says(numbers: set[int], after: int, tasks: int) -> None:
    mine = sorted(n for n in numbers if n > after)
    met = [run for k in range(tasks) for run in gaps.runs(np.array(mine[k::tasks], np.int64))]
    lost = {n for first, last in gaps.missing(after, met) for n in range(first, last + 1)}
    assert lost == set(range(max(after, 0) + 1, max(mine, default=0) + 1)) - set(mine)
