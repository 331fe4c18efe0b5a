"""Files that no version needs any more go from the disk."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from tailrace.errors import PositionError
from tailrace.lake import delta as lake
from tailrace.lake.past import at_version
from tailrace.lake.thinning import Past, sweep, thin

pytestmark = pytest.mark.unit
HOUR, DAY = 3600.0, 86_400.0
SCHEMA = pa.schema([("n", pa.int64())])


def rewritten(path: str, ages: list[float], *, progress: bool = True) -> None:
    """Makes a table with one version for each age (seconds); version n has one file with the row n."""
    lake.create(path, SCHEMA)
    now = time.time()
    os.utime(commit(path, 0), (now - 400 * DAY, now - 400 * DAY))
    for n, age in enumerate(ages, start=1):
        files = lake.write_part(path, pa.table({"n": [n]}))
        lake.replace_all(path, files, schema=SCHEMA, progress={"app": n} if progress else {})
        os.utime(commit(path, n), (now - age, now - age))


def commit(path: str, version: int) -> Path:
    return Path(path) / "_delta_log" / f"{version:020d}.json"


def versions(path: str) -> list[int]:
    return sorted(int(one.stem) for one in (Path(path) / "_delta_log").glob("*[0-9].json"))


def rows(path: str, version: int) -> list[int]:
    return at_version(path, version).to_pyarrow_table()["n"].to_pylist()


def data_files(path: str) -> int:
    return len(list(Path(path).glob("*.parquet")))


def start_of_hour(hours_ago: int) -> float:
    """The age of the beginning of a clock hour (seconds)."""
    return time.time() % HOUR + hours_ago * HOUR


def test_versions_older_than_an_hour_are_thinned_to_one_an_hour(tmp_path: Path) -> None:
    path, hour = str(tmp_path / "t"), start_of_hour(4)
    rewritten(path, [hour - m * 60 for m in (5, 25, 45, 65, 85)] + [600, 300, 1])
    assert thin(path, Past(DAY, times=100)) == 3  # versions 0, 2, and 4
    assert versions(path) == [1, 3, 5, 6, 7, 8]  # the first one, the last one of each hour, and the last hour
    assert [rows(path, v) for v in versions(path)] == [[1], [3], [5], [6], [7], [8]]
    assert data_files(path) == 6
    assert DeltaTable(path).version() == 8


def test_a_thinned_table_takes_commits_and_is_thinned_again(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rewritten(path, [start_of_hour(h) - m for h in range(6, 2, -1) for m in (60, 600, 1200)])
    assert thin(path, Past(DAY, times=100)) == 8
    lake.append(path, pa.table({"n": [13]}))
    assert thin(path, Past(DAY, times=100)) == 0
    now = time.time() + 2 * HOUR
    assert thin(path, Past(DAY, times=100), now=now) == 0
    assert versions(path) == [1, 3, 6, 9, 12, 13]
    assert rows(path, 9) == [9]
    assert sorted(rows(path, 13)) == [12, 13]


def test_versions_older_than_the_limit_go(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rewritten(path, [9 * DAY, 6 * DAY, 2 * HOUR])
    thin(path, Past(7 * DAY, times=100))
    assert versions(path) == [2, 3]
    assert data_files(path) == 2


def test_files_that_restore_added_again_stay(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rewritten(path, [9 * HOUR, 8 * HOUR, 7 * HOUR])
    DeltaTable(path).restore(1)
    thin(path, Past(DAY, times=0))
    assert versions(path) == [3, 4]
    assert [rows(path, v) for v in (3, 4)] == [[3], [1]]


def test_the_newest_version_stays_whatever_its_age(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rewritten(path, [90 * DAY, 80 * DAY])
    thin(path, Past(7 * DAY))
    assert (versions(path), rows(path, 2), data_files(path)) == ([2], [2], 1)


def test_steps_grow_until_the_past_is_small_enough(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rewritten(path, [start_of_hour(h) - 60 for h in range(20, 1, -1)])
    thin(path, Past(DAY, times=3))
    assert 2 <= len(versions(path)) <= 4
    assert versions(path)[-1] == 19
    assert [rows(path, v) for v in versions(path)] == [[v] for v in versions(path)]
    assert data_files(path) == len(versions(path))


def test_an_hour_keeps_a_version_that_recorded_progress(tmp_path: Path) -> None:
    path, hour = str(tmp_path / "t"), start_of_hour(4)
    rewritten(path, [hour - 60, hour - 120])
    DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    os.utime(commit(path, 3), (time.time() - hour + 180,) * 2)
    rewritten_later = lake.write_part(path, pa.table({"n": [4]}))
    lake.replace_all(path, rewritten_later, schema=SCHEMA, progress={"app": 4})
    os.utime(commit(path, 4), (time.time() - 2 * HOUR,) * 2)
    thin(path, Past(DAY, times=100))
    assert versions(path) == [1, 2, 4]


def test_an_open_table_is_read_again_after_it_was_thinned(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rewritten(path, [start_of_hour(3) - 60])
    assert lake.version(path) == 1  # and it stays open
    for n in range(2, 30):
        part = lake.write_part(path, pa.table({"n": [n]}))
        DeltaTable(path).create_write_transaction(
            [lake_action(part[0])], mode="overwrite", schema=DeltaTable(path).schema()
        )
        os.utime(commit(path, n), (time.time() - 1.5 * HOUR,) * 2)
    thin(path, Past(DAY, times=100))
    assert versions(path) == [1, 29]
    assert lake.version(path) == 29


def lake_action(part: lake.AddedFile) -> object:
    from deltalake.transaction import AddAction

    return AddAction(part.path, part.size, {}, part.modified, True, part.stats)


def test_vacuum_removes_what_was_replaced_more_than_an_hour_ago(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rewritten(path, [3000, 1])
    lake.vacuum(path, HOUR)
    assert data_files(path) == 2
    log = commit(path, 2)
    log.write_text(log.read_text().replace('"deletionTimestamp":1', '"deletionTimestamp":0'))
    before = versions(path)
    lake.vacuum(path, HOUR)
    assert (data_files(path), versions(path)) == (1, before)


def test_sweep_removes_files_that_no_commit_names_after_three_days(tmp_path: Path) -> None:
    path, now = str(tmp_path / "t"), time.time()
    rewritten(path, [5 * DAY, 1])
    for name, age in (("part-of-a-killed-process", 4), ("part-of-a-commit-to-come", 2)):
        (tmp_path / "t" / f"{name}.parquet").write_bytes(b"")
        os.utime(tmp_path / "t" / f"{name}.parquet", (now - age * DAY,) * 2)
    assert sweep(path) == 1
    assert (tmp_path / "t" / "part-of-a-commit-to-come.parquet").exists()
    assert [rows(path, v) for v in (1, 2)] == [[1], [2]]


def test_sweep_leaves_files_alone_that_are_not_parquet_and_files_of_partitions(tmp_path: Path) -> None:
    """Deletion vectors; and a partition whose folder the commit names in another encoding."""
    path, now = str(tmp_path / "t"), time.time()
    write_deltalake(path, pa.table({"p": ["a b/c%d"], "n": [1]}), partition_by=["p"])
    vector = tmp_path / "t" / "deletion_vector_1.bin"
    vector.write_bytes(b"x")
    for file in (tmp_path / "t").rglob("*.parquet"):
        os.utime(file, (now - 9 * DAY,) * 2)
    os.utime(vector, (now - 9 * DAY,) * 2)
    assert sweep(path) == 0
    assert vector.exists() and DeltaTable(path).to_pyarrow_table().num_rows == 1


def test_sweep_leaves_a_folder_that_is_no_table_alone(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_bytes(b"")
    assert sweep(str(tmp_path), now=time.time() + 30 * DAY) == 0


def test_sweep_leaves_tables_in_folders_of_a_table_alone(tmp_path: Path) -> None:
    outer, inner = str(tmp_path / "t"), str(tmp_path / "t" / "inner")
    for path in (outer, inner):
        lake.append(path, pa.table({"id": [1]}))
    assert sweep(outer, now=time.time() + 30 * DAY) == 0
    assert lake.read(inner).num_rows == 1


def test_small_files_are_joined_once_there_are_many_of_one_size(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for n in range(15):
        lake.append(path, pa.table({"n": [n]}))
    lake.compact(path, 16)
    assert len(DeltaTable(path).file_uris()) == 15
    lake.append(path, pa.table({"n": [15]}))
    lake.compact(path, 16)
    assert len(DeltaTable(path).file_uris()) == 1
    assert sorted(lake.read(path)["n"].to_pylist()) == list(range(16))


def test_a_version_whose_commits_are_gone(tmp_path: Path) -> None:
    path, folder = str(tmp_path / "t"), tmp_path / "t"
    for n in range(3):
        lake.append(path, pa.table({"id": [n]}))
    newest = DeltaTable(path).version()
    DeltaTable(path).create_checkpoint()
    for version in range(newest):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    assert at_version(path, newest).version() == newest
    for version in range(newest):
        with pytest.raises(PositionError, match="files of this version were removed") as error:
            at_version(path, version)
        assert f"version {version}" in str(error.value) and "vacuum_after" in str(error.value)
    with pytest.raises(TableNotFoundError):
        at_version(str(tmp_path / "none"), 0)


@pytest.mark.slow
def test_a_week_of_a_commit_a_minute_leaves_as_much_as_its_kept_versions_need(tmp_path: Path) -> None:
    path, minutes = str(tmp_path / "t"), 7 * 24 * 60
    end = (time.time() // HOUR) * HOUR + 1800
    rewritten(path, [])
    for n in range(1, minutes + 1):  # version n has one file, which replaced that of the version before
        at = end - (minutes - n) * 60.0
        replaced = {"path": f"{n - 1}.parquet", "deletionTimestamp": int(at * 1000), "dataChange": True}
        added = {
            "path": f"{n}.parquet",
            "partitionValues": {},
            "size": 1000,
            "modificationTime": int(at * 1000),
        }
        actions: list[dict[str, object]] = [{"txn": {"appId": "app", "version": n}}]
        actions += [{"remove": replaced}] if n > 1 else []
        actions += [{"add": {**added, "dataChange": True}}]
        commit(path, n).write_text("\n".join(map(json.dumps, actions)) + "\n")
        os.utime(commit(path, n), (at, at))
        (tmp_path / "t" / f"{n}.parquet").write_bytes(b"")
        if n % 60 == 0:
            thin(path, Past(7 * DAY, times=1000), now=at)
    kept = versions(path)
    assert 168 + 58 <= len(kept) <= 169 + 61
    assert data_files(path) == len(kept)
    assert [Path(p).name for p in at_version(path, kept[5]).file_uris()] == [f"{kept[5]}.parquet"]
    lake.append(path, pa.table({"n": [1]}))
    DeltaTable(path).create_checkpoint()
    newest = max((tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"))
    assert (
        pq.read_metadata(newest).num_rows < 3 * 60 + 30 + 10
    )  # removals of three hours, of up to half an hour to come, and the files that are there
    assert thin(path, Past(7 * DAY, times=3), now=end) > 150
    assert data_files(path) <= 2 + 3 * 2 + 61
