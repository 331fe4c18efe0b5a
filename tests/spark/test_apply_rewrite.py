"""Merges by rewriting, without Spark: which files are touched, what they hold after, who wins a race."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.apply.targets.audit import plain_audit
from tailrace.apply.targets.delta import files as target_files
from tailrace.apply.targets.delta.audit import AuditTask
from tailrace.apply.targets.delta.rewrite import Rewrite, merge
from tailrace.apply.targets.delta.size import is_plain
from tailrace.engine.columns import KEPT, OP, OPER, SEQ
from tailrace.engine.source import Source
from tailrace.lake import delta as lake
from tailrace.lake import parts
from tailrace.testing.images import ID, RELATION, V

pytestmark = pytest.mark.unit

SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.string())])
TWO = ((1, "a"), (2, "b"), (3, "c")), ((11, "k"), (12, "l"))


def table(folder: Path, *parts: Sequence[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> str:
    """A target with a file for each of `parts`."""
    path = str(folder / "t")
    for part in parts:
        lake.append(path, columns(part, schema))
    return path


def columns(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    return pa.table(list(map(list, zip(*rows, strict=True))), schema=schema)


def source(*rows: tuple[Any, ...], key: tuple[str, ...] = ("id",), schema: pa.Schema = SCHEMA) -> Source:
    return Source.of(columns(rows, pa.schema([(OP, pa.string()), *schema])), key, schema, False)


def held(path: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in lake.read(path).to_pylist())


def files(path: str) -> list[str]:
    return sorted(DeltaTable(path).file_uris())


def test_files_no_change_meets_stay(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    before = files(path)
    done = merge(path, source(("U", 2, "B"), ("D", 3, None), ("D", 4, None)), "x", 1, None, {})
    assert (done.inserted, done.updated, done.deleted, done.version) == (0, 1, 1, lake.version(path))
    assert held(path) == [(1, "a"), (2, "B"), (11, "k"), (12, "l")]
    assert len(set(before) & set(files(path))) == 1


def test_no_change_at_all_leaves_every_file(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    before = files(path)
    nothing = Source.of(pa.schema([(OP, pa.string()), *SCHEMA]).empty_table(), ("id",), SCHEMA, False)
    done = merge(path, nothing, "x", 1, None, {})
    assert (done.inserted, done.updated, done.deleted) == (0, 0, 0)
    assert files(path) == before
    assert lake.progress(path, "x") == 1


def test_new_rows_go_to_the_file_with_the_greatest_keys(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    rows = [("U", 1, "A"), ("U", 12, "L"), ("U", 13, "m")]
    assert merge(path, source(*rows), "x", 1, None, {}).inserted == 1
    counts = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    assert sorted(zip(*[counts[c].to_pylist() for c in ("min.id", "max.id")], strict=True)) == [
        (1, 3),
        (11, 13),
    ]
    merge(path, source(("U", 20, "t")), "x", 2, None, {})
    assert len(files(path)) == 3


def test_a_file_that_loses_every_row_goes(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    done = merge(path, source(("D", 11, None), ("D", 12, None)), "x", 1, None, {})
    assert (done.deleted, len(files(path))) == (2, 1)


def test_a_large_file_is_cut_between_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP", 1_000)
    monkeypatch.setattr(target_files, "PART", 4_000)
    path = table(tmp_path, [(n, f"v{n}") for n in range(5_500)])
    rows = [("U" if n % 2 else "D", n, "new") for n in range(0, 6_000, 7)]
    merge(path, source(*rows), "x", 1, 1, {})  # with next to no memory: in the smallest batches
    want = {n: f"v{n}" for n in range(5_500)} | {n: "new" for op, n, _ in rows if op == "U"}
    for op, n, _ in rows:
        if op == "D":
            want.pop(n, None)
    assert held(path) == sorted(want.items())
    assert len(files(path)) > 2


def test_keys_of_several_columns_and_kinds(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.string()), ("c", pa.bool_()), ("v", pa.int32())])
    nan = float("nan")
    there = [(0.0, "x", True, 1), (-0.0, "y", True, 2), (nan, "x", False, 3), (1.5, None, True, 4)]
    path = table(tmp_path, there, schema=schema)
    rows = [("U", -0.0, "x", True, 10), ("U", 0.0, "y", False, 20), ("U", nan, "x", False, 30)]
    done = merge(path, source(*rows, key=("a", "b", "c"), schema=schema), "x", 1, None, {})
    assert (done.inserted, done.updated) == (1, 2)
    assert sorted(row["v"] for row in lake.read(path).to_pylist()) == [2, 4, 10, 20, 30]


def test_absent_values_come_from_the_row(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    rows = [("U", "01", 1, None), ("U", "01", 9, None), ("U", None, 12, None), ("U", "00", 2, "B")]
    extra = pa.schema([(OP, pa.string()), (KEPT, pa.string()), *SCHEMA])
    merge(path, Source.of(columns(rows, extra), ("id",), SCHEMA, True), "x", 1, None, {})
    assert dict(held(path)) == {1: "a", 2: "B", 3: "c", 9: None, 11: "k", 12: None}


def test_columns_younger_than_a_file_are_null(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    lake.add_columns(path, [pa.field("n", pa.int32())])
    wide = pa.schema([*SCHEMA, ("n", pa.int32())])
    merge(path, source(("U", 2, "B", 7), schema=wide), "x", 1, None, {})
    assert held(path)[:3] == [(1, "a", None), (2, "B", 7), (3, "c", None)]


def test_somebody_elses_commit_between_makes_it_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path, *TWO)
    plan, races = Rewrite._plan, iter([(1, "raced")])

    def raced(self: Rewrite, *args: Any) -> Any:
        for row in races:
            merge(path, source(("U", *row)), "other", 1, None, {})
        return plan(self, *args)

    monkeypatch.setattr(Rewrite, "_plan", raced)
    merge(path, source(("U", 2, "B")), "x", 1, None, {})
    assert held(path)[:2] == [(1, "raced"), (2, "B")]
    assert (lake.progress(path, "x"), lake.progress(path, "other")) == (1, 1)


def test_two_tasks_with_one_batch_write_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, *TWO)
    plan, races = Rewrite._plan, iter([0])

    def raced(self: Rewrite, *args: Any) -> Any:
        for _ in races:
            merge(path, source(("U", 30, "new")), "x", 1, None, {})
        return plan(self, *args)

    monkeypatch.setattr(Rewrite, "_plan", raced)
    done = merge(path, source(("U", 30, "new")), "x", 1, None, {})
    assert (done.inserted, held(path)[-1], len(held(path))) == (0, (30, "new"), 6)


def images(*rows: tuple[Any, ...]) -> list[pa.RecordBatch]:
    schema = pa.schema([(SEQ, pa.string()), (OPER, pa.string()), *SCHEMA])
    batches: list[pa.RecordBatch] = columns(rows, schema).to_batches(2)
    return batches


def test_a_task_merges_images_in_any_order(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    rows = [
        ("05", "U", 2, "last"),
        ("03", "D", 2, None),
        ("04", "U", 1, "A"),
        ("06", "U", 7, "moved"),
        ("06", "B", 3, None),
        ("02", "U", 1, "early"),
    ]
    relation = RELATION.with_columns([ID, V])
    audit = plain_audit(relation.table, relation, (1, 2), -1)
    task = AuditTask(path, "x", 9, ("id",), SCHEMA, pa.schema([]), None, audit, -1)
    (done,) = task(images(*rows))
    assert [done[c][0].as_py() for c in ("inserted", "updated", "deleted")] == [1, 2, 1]
    assert held(path) == [(1, "A"), (2, "last"), (7, "moved"), (11, "k"), (12, "l")]


def test_tables_with_a_change_feed_are_not_plain(tmp_path: Path) -> None:
    assert is_plain(DeltaTable(table(tmp_path, *TWO)))
    fed = str(tmp_path / "fed")
    lake.create(fed, SCHEMA, {"delta.enableChangeDataFeed": "true"})
    assert not is_plain(DeltaTable(fed))
