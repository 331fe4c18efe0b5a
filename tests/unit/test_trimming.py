"""Old changes go in one commit, by files; what is left is complete behind a number that the table tells."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import PositionError
from tailrace.lake import delta as lake
from tailrace.model.sequence import make
from tailrace.store import trimming
from tailrace.store.kept import files_between, kept, spans
from tailrace.store.trimming import Bound, trim

from ..examples import examples

pytestmark = pytest.mark.unit
SEQ = "header__change_seq"
DAY = 2026010100000000
"""Change n was committed n hundredths after this time."""


def table(at: Path, *files: list[int]) -> str:
    """A change table with these change numbers, a file each."""
    path = str(at / "t__ct")
    for numbers in files:
        rows = pa.table({SEQ: [make(DAY + n, n) for n in numbers], "id": numbers})
        lake.append(path, rows)
    lake.commit(path, [], progress={"tailrace/store": max(map(max, files))})
    return path


def ids(path: str) -> list[int]:
    return sorted(lake.read(path)["id"].to_pylist())


def test_files_with_old_changes_alone_go_and_the_one_on_the_boundary_stays_whole(tmp_path: Path) -> None:
    path = table(tmp_path, [1, 2], [3, 4], [5, 6])
    done = trim(path, SEQ, Bound(5))
    assert (done.files, done.rewritten, done.rows, done.kept) == (2, 0, 4, 4)
    assert (ids(path), kept(path), lake.progress(path, "tailrace/store")) == ([5, 6], 4, 6)
    assert trim(path, SEQ, Bound(5)).files == 0 and lake.version(path) == 5  # nothing to do is no commit


def test_a_boundary_file_is_rewritten_when_it_is_wanted(tmp_path: Path) -> None:
    path = table(tmp_path, [1, 2], [3, 4, 5], [6])
    DeltaTable(path).optimize.compact()
    done = trim(path, SEQ, Bound(4), lambda file: file.low < 4)
    assert (done.files, done.rewritten, done.rows, done.kept) == (0, 1, 4, 4)
    assert (ids(path), kept(path)) == ([5, 6], 4)


def test_a_change_is_old_by_its_time_and_by_its_number(tmp_path: Path) -> None:
    path = table(tmp_path, [1, 2, 3, 4], [5, 6])
    assert trim(path, SEQ, Bound(9, f"{DAY + 3}"), lambda _: True).kept == 2  # before that time
    assert trim(path, SEQ, Bound(3, f"{DAY + 6}"), lambda _: True).kept == 3
    assert ids(path) == [4, 5, 6]


def test_a_file_that_spans_others_says_how_far_the_gap_reaches(tmp_path: Path) -> None:
    path = table(tmp_path, [1, 9], [4, 5])
    assert (trim(path, SEQ, Bound(6)).kept, ids(path)) == (5, [1, 9])
    with pytest.raises(PositionError, match="after number 4 are needed; only those after 5 are kept"):
        files_between(path, DeltaTable(path), SEQ, 4, 9)
    assert len(files_between(path, DeltaTable(path), SEQ, 5, 9)) == 1


def test_change_numbers_tell_as_sequences_do(tmp_path: Path) -> None:
    path = str(tmp_path / "CDC_item")
    for numbers in ([1, 2], [3, 4]):
        lake.append(path, pa.table({"_Change-Sequence": pa.array(numbers, pa.int64())}))
    assert trim(path, "_Change-Sequence", Bound(3), lambda _: True).kept == 3
    assert lake.read(path)["_Change-Sequence"].to_pylist() == [4]


def test_what_is_kept_survives_what_else_is_done_to_the_table(tmp_path: Path) -> None:
    path = table(tmp_path, [1], [2], [3], [4])
    trim(path, SEQ, Bound(2))
    lake.add_columns(path, [pa.field("more", pa.string())])
    lake.compact(path, 2)
    trim(path, SEQ, Bound(1))
    part = lake.Part(path, pa.schema([(SEQ, pa.string()), ("id", pa.int64())]))
    part.write(pa.table({SEQ: [make(DAY, 9)], "id": [9]}))
    added = part.close()
    assert added is not None
    lake.replace_all(path, [added], schema=lake.arrow_schema(path), progress={})
    assert (ids(path), kept(path)) == ([9], 2)


def test_readers_of_deletes_alone_see_no_new_rows(tmp_path: Path) -> None:
    path = table(tmp_path, [1, 2, 3])
    trim(path, SEQ, Bound(2), lambda _: True)
    commit = Path(path) / "_delta_log" / f"{lake.version(path):020d}.json"
    said = [json.loads(line) for line in commit.read_text().splitlines()]
    assert [(k, a[k]["dataChange"]) for a in said for k in ("add", "remove") if k in a] == [
        ("add", False), ("remove", True),
    ]  # fmt: skip


def test_somebody_elses_commit_in_between_is_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path, [1], [2], [3])
    choose, times = trimming.choose, []

    def late(*args: object, **kwargs: object) -> object:
        found = choose(*args, **kwargs)  # type: ignore[arg-type]
        if not times:
            times.append(1)
            lake.compact(path, 2)  # what was chosen is gone
        return found

    monkeypatch.setattr(trimming, "choose", late)
    assert trim(path, SEQ, Bound(2), lambda _: True).kept == 2
    assert ids(path) == [3]


def test_a_file_whose_numbers_nobody_knows_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    lake.append(path, pa.table({SEQ: [make(DAY, 1)[:32]], "id": [1]}))  # as Delta's own writers cut it
    assert trim(path, SEQ, Bound(9)).files == 0
    assert (
        not spans(DeltaTable(path), SEQ)[0].known
        and len(files_between(path, DeltaTable(path), SEQ, -1, 9)) == 1
    )


@pytest.mark.slow
@examples(8)
@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13), st.booleans()), max_size=3),
)
def test_rows_behind_what_is_kept_are_all_there_and_no_young_one_goes(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], bounds: list[tuple[int, int, bool]]
) -> None:
    path = table(tmp_path_factory.mktemp("t"), *map(sorted, files))
    everything = ids(path)
    for number, time, rewrite in bounds:
        before, version = ids(path), lake.version(path)
        what = (path, SEQ, Bound(number, f"{DAY + time}"), lambda _, r=rewrite: r)  # type: ignore[misc]
        said = trim(*what, dry_run=True)
        assert (ids(path), lake.version(path)) == (before, version)
        done = trim(*what)
        assert said == done
        upto = min(number, time - 1)
        assert [n for n in ids(path) if n > upto] == [n for n in before if n > upto]
        assert not rewrite or not [n for n in ids(path) if n <= upto]
        assert done.rows == len(before) - len(ids(path))
    after = kept(path) or 0
    assert [n for n in ids(path) if n > after] == [n for n in everything if n > after]


def test_a_table_that_is_written_to_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was rewritten stands as long as the files that go are there; else it is done again, and nothing of
    it is left."""
    path, rest, calls = table(tmp_path, [1, 2, 3], [4]), trimming._remaining_part, list[int]()

    def meanwhile(*given: Any) -> Any:
        made = rest(*given)
        calls.append(1)
        for n in range(5, 8):  # commits of the store
            lake.append(path, pa.table({SEQ: [make(DAY + n, n)], "id": [n]}))
        if len(calls) == 1:
            DeltaTable(path).optimize.compact()
        return made

    monkeypatch.setattr(trimming, "_remaining_part", meanwhile)
    done = trim(path, SEQ, Bound(2), lambda _: True)
    assert (done.rewritten, done.rows, len(calls)) == (1, 2, 2)
    assert (ids(path), kept(path)) == ([3, 4, 5, 5, 6, 6, 7, 7], 2)
    there = {one.name for one in Path(path).glob("rest-*")}
    assert there <= {Path(p).name for p in DeltaTable(path).file_uris()} and len(there) == 1


@pytest.mark.parametrize("error", [OSError("full"), CommitFailedError("its answer was lost")])
def test_an_error_after_the_commit_takes_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The disk is full when a checkpoint is to be written, say."""
    path, write = table(tmp_path, [1, 2, 3], [4]), DeltaTable.create_write_transaction

    def fails(self: DeltaTable, *given: Any, **more: Any) -> None:
        write(self, *given, **more)
        raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fails)
    with suppress(OSError):
        trim(path, SEQ, Bound(2), lambda _: True)
    assert (ids(path), kept(path)) == ([3, 4], 2)
