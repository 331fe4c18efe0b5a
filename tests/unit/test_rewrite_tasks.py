"""The plan `rewrite` without Spark: its tasks run one after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tailrace.apply.targets.delta import files as target_files
from tailrace.apply.targets.delta import rewrite_tasks
from tailrace.apply.targets.delta.rewrite import merge
from tailrace.apply.targets.delta.rewrite_tasks import RewriteTasks
from tailrace.apply.targets.delta.staged import FOLDER, StageChanges, StagedChanges, scratch
from tailrace.apply.targets.outcome import ApplyOutcome
from tailrace.engine.columns import OP, OPER, SEQ
from tailrace.engine.source import Source
from tailrace.errors import ApplyError, ConcurrentCommitError
from tailrace.lake import delta as lake
from tailrace.lake import parts

from ..examples import examples

pytestmark = pytest.mark.unit

SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.string())])
Row = tuple[int, str | None]


def filled(path: str, *files: Sequence[Row]) -> str:
    for rows in files:
        lake.append(path, pa.table(list(map(list, zip(*rows, strict=True))), schema=SCHEMA))
    return path


def held(path: str) -> list[Row]:
    return sorted((r["id"], r["v"]) for r in lake.read(path).to_pylist())


def merged(
    path: str, *staged: Sequence[tuple[str, Row]], lanes: int = 2, most: int = 1 << 30
) -> ApplyOutcome | None:
    """Merges images, (operation, row) in order, staged in a file for each of `staged`."""
    extra = pa.schema([(SEQ, pa.string()), (OPER, pa.string())])
    wanted = pa.schema([*extra, *SCHEMA])
    with scratch(path) as folder:
        none = StagedChanges(folder, "s.t", ("id",), SCHEMA, folded=False, partial=False)
        found, number = [], 0
        for images in staged:
            rows = [(f"{number + n:035d}", oper, *row) for n, (oper, row) in enumerate(images)]
            number += len(rows)
            batch = pa.record_batch(list(map(list, zip(*rows, strict=True))), schema=wanted)
            found += [r for b in StageChanges(none, wanted)([batch]) for r in b.to_pylist()]
        changes = replace(none, files=tuple(r["file"] for r in found))
        table = DeltaTable(path)
        return RewriteTasks(table, path, changes, None, 1, lanes, None, most).merge("x", number)


def test_files_no_change_meets_stay(tmp_path: Path) -> None:
    path = filled(str(tmp_path / "t"), [(1, "a"), (2, "b"), (3, "c")], [(11, "k"), (12, "l")])
    before = set(DeltaTable(path).file_uris())
    done = merged(path, [("U", (2, "B"))], [("D", (3, None)), ("D", (4, None))])
    assert done is not None
    assert (done.inserted, done.updated, done.deleted, done.plan) == (0, 1, 1, "rewrite")
    assert held(path) == [(1, "a"), (2, "B"), (11, "k"), (12, "l")]
    assert len(before & set(DeltaTable(path).file_uris())) == 1
    assert lake.progress(path, "x") == 3


def test_the_last_image_of_a_key_counts_whatever_file_it_is_staged_in(tmp_path: Path) -> None:
    path = filled(str(tmp_path / "t"), [(1, "a")])
    done = merged(path, [("U", (1, "b")), ("I", (2, "x"))], [("U", (1, "c")), ("D", (2, None))])
    assert done is not None
    assert (done.inserted, done.updated, done.deleted) == (0, 1, 0)
    assert held(path) == [(1, "c")]


def test_few_new_rows_go_to_the_file_with_the_greatest_keys(tmp_path: Path) -> None:
    path = filled(str(tmp_path / "t"), [(1, "a"), (2, "b")], [(11, "k"), (12, "l")])
    merged(path, [("U", (1, "A")), ("U", (12, "L")), ("I", (13, "m"))])
    ranges = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    assert sorted(zip(*[ranges[c].to_pylist() for c in ("min.id", "max.id")], strict=True)) == [
        (1, 2),
        (11, 13),
    ]
    merged(path, [("I", (20, "t"))], [("I", (21, "u"))])
    assert len(DeltaTable(path).file_uris()) == 3


def test_large_files_are_shared_by_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP", 1_000)
    for module in (target_files, rewrite_tasks):
        monkeypatch.setattr(module, "PART", 4_000)
    path = filled(str(tmp_path / "t"), [(n, f"v{n}") for n in range(5_500)])
    changes = [("U" if n % 2 else "D", (n, "new")) for n in range(0, 6_000, 7)]
    merged(path, changes[:300], changes[300:], lanes=3)
    want = {n: f"v{n}" for n in range(5_500)} | {n: "new" for op, (n, _) in changes if op == "U"}
    for op, (n, _) in changes:
        if op == "D":
            want.pop(n, None)
    assert held(path) == sorted(want.items())
    assert len(DeltaTable(path).file_uris()) > 2


@pytest.mark.parametrize("way", ["several tasks", "one task"])
def test_a_file_without_rows(tmp_path: Path, way: str) -> None:
    """Spark writes one, without row groups, for an empty DataFrame."""
    path = str(tmp_path / "t")
    lake.create(path, SCHEMA)
    pq.ParquetWriter(f"{path}/empty.parquet", SCHEMA).close()
    size = Path(f"{path}/empty.parquet").stat().st_size
    lake.commit(path, [lake.AddedFile("empty.parquet", size, 0, '{"numRecords": 0}', 0)], progress={})
    changes = [("I", (1, "a")), ("D", (2, None))]
    if way == "several tasks":
        done = merged(path, changes)
    else:
        rows = pa.table([["U", "D"], [1, 2], ["a", None]], schema=pa.schema([(OP, pa.string()), *SCHEMA]))
        done = merge(path, Source.of(rows, ("id",), SCHEMA, partial=False), "x", 2, None, {})
    assert done is not None
    assert (done.inserted, done.updated, done.deleted) == (1, 0, 0)
    assert held(path) == [(1, "a")]


def test_a_table_without_files_is_left_alone(tmp_path: Path) -> None:
    """As a purge of deletion vectors may leave one."""
    path = str(tmp_path / "t")
    lake.create(path, SCHEMA)
    assert merged(path, [("I", (1, "a"))]) is None
    assert lake.version(path) == 0


def test_too_many_touched_bytes_are_left_alone(tmp_path: Path) -> None:
    path = filled(str(tmp_path / "t"), [(1, "a")], [(11, "k")])
    version = lake.version(path)
    assert merged(path, [("U", (1, "A"))], most=10) is None
    assert (lake.version(path), held(path)) == (version, [(1, "a"), (11, "k")])


def test_another_writer_in_between_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(str(tmp_path / "t"), [(1, "a")])
    commit = rewrite_tasks.exchange

    def late(*given: Any) -> None:
        filled(path, [(70, "theirs")])
        commit(*given)

    monkeypatch.setattr(rewrite_tasks, "exchange", late)
    with pytest.raises(ConcurrentCommitError):
        merged(path, [("U", (1, "A"))])
    assert held(path) == [(1, "a"), (70, "theirs")]


def test_a_null_in_a_key_is_an_error_that_names_the_change(tmp_path: Path) -> None:
    path = filled(str(tmp_path / "t"), [(1, "a")])
    nobody: Any = None
    with pytest.raises(ApplyError, match=r"NULL in the row key \(id\)") as error:
        merged(path, [("U", (1, "A")), ("I", (nobody, "x"))])
    assert error.value.where == f"s.t, change_seq {1:035d}"
    assert held(path) == [(1, "a")]


def test_nothing_staged_remains(tmp_path: Path) -> None:
    path = filled(str(tmp_path / "t"), [(1, "a")])
    with pytest.raises(ZeroDivisionError), scratch(path) as folder:
        raise ZeroDivisionError
    merged(path, [("U", (1, "A"))])
    assert not Path(folder).exists()
    assert list((tmp_path / "t" / FOLDER).iterdir()) == []


IMAGES = st.lists(
    st.tuples(st.sampled_from("IUD"), st.tuples(st.integers(0, 30), st.text("ab", max_size=2))), min_size=1
)


@examples(20)
@given(
    there=st.lists(st.sets(st.integers(0, 30), min_size=1), max_size=4),
    staged=st.lists(IMAGES, min_size=1, max_size=3),
    lanes=st.integers(1, 4),
)
def test_any_changes_into_any_files(
    tmp_path_factory: pytest.TempPathFactory,
    there: list[set[int]],
    staged: list[list[tuple[str, Row]]],
    lanes: int,
) -> None:
    """The rows, and how many were inserted, updated, deleted, are those of a dict."""
    path, want = str(tmp_path_factory.mktemp("t") / "t"), dict[int, str | None]()
    for keys in there:
        if fresh := sorted(keys - want.keys()):
            filled(path, [(n, "old") for n in fresh])
            want |= dict.fromkeys(fresh, "old")
    if not want:
        filled(path, [(99, "old")])
        want[99] = "old"
    last = {row[0]: (oper, row[1]) for images in staged for oper, row in images}
    done = merged(path, *staged, lanes=lanes)
    counts = [
        sum(oper != "D" and key not in want for key, (oper, _) in last.items()),
        sum(oper != "D" and key in want for key, (oper, _) in last.items()),
        sum(oper == "D" and key in want for key, (oper, _) in last.items()),
    ]
    for key, (oper, value) in last.items():
        want.pop(key, None)
        if oper != "D":
            want[key] = value
    assert done is not None
    assert [done.inserted, done.updated, done.deleted] == counts
    assert held(path) == sorted(want.items())
