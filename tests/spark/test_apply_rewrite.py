"""Merges by rewriting, without Spark: which files are touched, what they hold after, who wins a race."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.lake import delta as lake
from tailrace.lake import parts
from tailrace.model import mask, sequence
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeRange, order_key
from tailrace.model.types import spark_type
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.table_info import is_plain
from tailrace.targets.delta.tables import DeltaTables
from tailrace.targets.lake import target_files
from tailrace.targets.lake.rewrite import Rewrite
from tailrace.targets.lake.task_local_merge import TaskLocalMerge
from tailrace.targets.merge_result import ApplyOutcome, MergeResult

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
    found = [[None if value is ABSENT else value for value in row] for row in rows]
    return pa.table(list(map(list, zip(*found, strict=True))) or None, schema=schema)


def merge(path: str, *rows: tuple[Any, ...], upto: int = 9, app: str = "x", **more: Any) -> ApplyOutcome:
    """Merges images (operation, values) in one task; `U` and `I` are the same here."""
    schema, key = more.pop("schema", SCHEMA), more.pop("key", ("id",))
    texts = [(f"header__change_{n}", pa.string()) for n in ("seq", "oper")]
    stored = pa.schema([*texts, ("header__column_mask", pa.binary()), *schema])
    relation = Relation(
        1, "s", "t", "d",
        tuple(Column(f.name, n, "t", "t", spark_type(f.type), key=f.name in key) for n, f in enumerate(schema)),
    )  # fmt: skip
    made = [(sequence.make(0, n), row[0], masked(row, schema), *row[1:]) for n, row in enumerate(rows, 1)]
    one = ChangeBatch(
        "s.t", relation, ChangeRange(0, upto), target=path, app_id=app, columns=stored,
        rows=columns(made, stored),
    )  # fmt: skip
    tables = DeltaTables("")
    table = tables.open(path)
    done = TaskLocalMerge(one, tables, table, order_key(table.progress(app)), more.pop("memory", None)).run()
    assert done is not None
    return done.outcome if isinstance(done, MergeResult) else ApplyOutcome()


ABSENT = object()


def masked(row: tuple[Any, ...], schema: pa.Schema) -> bytes | None:
    """The mask of an image that lacks columns."""
    there = [3 + n for n in range(len(schema)) if row[1 + n] is not ABSENT]
    return None if len(there) == len(schema) else mask.encode(there)


def held(path: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in lake.read(path).to_pylist())


def files(path: str) -> list[str]:
    return sorted(DeltaTable(path).file_uris())


def test_files_no_change_meets_stay(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    before = files(path)
    done = merge(path, ("U", 2, "B"), ("D", 3, None), ("D", 4, None))
    assert (done.inserted, done.updated, done.deleted, done.version) == (0, 1, 1, lake.version(path))
    assert held(path) == [(1, "a"), (2, "B"), (11, "k"), (12, "l")]
    assert len(set(before) & set(files(path))) == 1


def test_new_rows_go_to_the_file_with_the_greatest_keys(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    assert merge(path, ("U", 1, "A"), ("U", 12, "L"), ("U", 13, "m")).inserted == 1
    counts = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    assert sorted(zip(*[counts[c].to_pylist() for c in ("min.id", "max.id")], strict=True)) == [
        (1, 3),
        (11, 13),
    ]
    merge(path, ("U", 20, "t"), upto=10)
    assert len(files(path)) == 3


def test_a_file_that_loses_every_row_goes(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    done = merge(path, ("D", 11, None), ("D", 12, None))
    assert (done.deleted, len(files(path))) == (2, 1)


def test_a_large_file_is_cut_between_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP", 1_000)
    monkeypatch.setattr(target_files, "PART", 4_000)
    path = table(tmp_path, [(n, f"v{n}") for n in range(5_500)])
    rows = [("U" if n % 2 else "D", n, "new") for n in range(0, 6_000, 7)]
    merge(path, *rows, upto=9_999)
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
    done = merge(path, *rows, key=("a", "b", "c"), schema=schema)
    assert (done.inserted, done.updated) == (1, 2)
    assert sorted(row["v"] for row in lake.read(path).to_pylist()) == [2, 4, 10, 20, 30]


def test_absent_values_come_from_the_row(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    merge(path, ("U", 1, ABSENT), ("U", 9, ABSENT), ("U", 12, None), ("U", 2, "B"))
    assert dict(held(path)) == {1: "a", 2: "B", 3: "c", 9: None, 11: "k", 12: None}


def test_columns_younger_than_a_file_are_null(tmp_path: Path) -> None:
    path = table(tmp_path, *TWO)
    lake.add_columns(path, [pa.field("n", pa.int32())])
    wide = pa.schema([*SCHEMA, ("n", pa.int32())])
    merge(path, ("U", 2, "B", 7), schema=wide)
    assert held(path)[:3] == [(1, "a", None), (2, "B", 7), (3, "c", None)]


def raced(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Another merge commits once, when the first is about to write."""
    plan, races = Rewrite._plan, iter([other])

    def late(self: Rewrite, *args: Any) -> Any:
        for race in races:
            race()
        return plan(self, *args)

    monkeypatch.setattr(Rewrite, "_plan", late)


def test_somebody_elses_commit_between_makes_it_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path, *TWO)
    raced(monkeypatch, lambda: merge(path, ("U", 1, "raced"), app="other"))
    merge(path, ("U", 2, "B"))
    assert held(path)[:2] == [(1, "raced"), (2, "B")]
    assert (lake.progress(path, "x"), lake.progress(path, "other")) == (9, 9)


def test_two_tasks_with_one_batch_write_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, *TWO)
    raced(monkeypatch, lambda: merge(path, ("U", 30, "new")))
    merge(path, ("U", 30, "new"))
    assert (held(path)[-1], len(held(path))) == ((30, "new"), 6)


def test_tables_with_a_change_feed_are_not_plain(tmp_path: Path) -> None:
    assert is_plain(DeltaTable(table(tmp_path, *TWO)))
    fed = str(tmp_path / "fed")
    lake.create(fed, SCHEMA, {"delta.enableChangeDataFeed": "true"})
    assert not is_plain(DeltaTable(fed))
