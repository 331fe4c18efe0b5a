"""A repair that one process does: the difference of Delta tables, applied and logged, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tailrace.config.task import Task, load
from tailrace.errors import ApplyError, TargetLostError
from tailrace.execution import BackgroundSession
from tailrace.keylog.control_tables import ApplyExceptions
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.model.types import schema_of
from tailrace.operate import control_tables
from tailrace.state import ledger
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.state.ledger import Stored
from tailrace.targets.delta import layout as delta_layout
from tailrace.targets.delta.tables import DeltaTables
from tailrace.validate.compare import TableResult
from tailrace.validate.repair import Repair, RepairResult
from tailrace.validate.sessions import Sessions
from tailrace.validate.sides import LoadedRows, TableSides, TargetSide
from tailrace.validate.target_shape import TargetShape
from tailrace.validate.target_versions import TargetVersion
from tailrace.validate.validation import TableDifference

pytestmark = pytest.mark.unit
NOW = dt.datetime(2026, 3, 1, 12, 1, tzinfo=dt.timezone.utc)
RELATION = Relation(
    7,
    "s",
    "t",
    "d",
    (Column("id", 1, "integer", "int4", "int", key=True), Column("v", 2, "text", "text", "string")),
)


def position(at: int) -> str:
    return f"{at:040X}"


def rows(values: Mapping[int, str | None]) -> pa.Table:
    return pa.table([list(values), list(values.values())], schema=schema_of(RELATION.columns))


def task_of(folder: Path, more: str = "") -> Task:
    """A task whose table had ten rows and nine changes."""
    file = folder / "shop.yaml"
    file.write_text(f"name: shop\nhome: home\nsource: {{url: 'postgresql://db/shop'}}\n{more}")
    task = load(file)
    path = task.target_path("s.t")
    delta_layout.create(path, RELATION)  # without marks, as it is before the first change
    version = lake.version(path)
    write_baseline(
        task.control_path("baselines"), Baseline("s.t", RELATION, position(0), 1, version, NOW, 1.0)
    )
    batch = Stored(9, make(0, 9), position(7), NOW, {"s.t": {"rows": 1, "I": 1}})
    ledger.write_stored(task.control_path("stored"), batch, {"s.t": 7})
    write_deltalake(path, rows({i: f"v{i}" for i in range(10)}), mode="append", schema_mode="merge")
    lake.commit(path, [], progress={task.apply_app: 9})
    return task


def no_spark() -> NoReturn:
    pytest.fail("Spark was started")


SESSIONS = Sessions(BackgroundSession(no_spark))


def repaired(task: Task, wanted: Mapping[int, str | None]) -> RepairResult:
    """A repair of the table, whose source has these rows at position 8."""
    file = task.folder / f"{len(list(task.folder.glob('*.parquet')))}.parquet"
    pq.write_table(rows(wanted), file)
    path, made = task.target_path("s.t"), TargetShape(RELATION, RELATION, None)
    there = TargetVersion(DeltaTables(""), path, lake.version(path), {}, 9)
    both = TableSides(
        LoadedRows(RELATION, [str(file)]), TargetSide(task, "s.t", there, position(8), [], 0, {}, made)
    )
    repair = Repair(task, SESSIONS)
    repair([TableDifference(TableResult("s.t", False, 1, 1, 1, 1), made, both, position(8))])
    return repair.done[0]


def living(task: Task) -> dict[int, str]:
    found = DeltaTable(task.target_path("s.t")).to_pyarrow_table().to_pylist()
    return {r["id"]: r["v"] for r in found if r.get("_deleted") is None}


MODES = [
    "",
    "keylog: {mode: all}\n",
    "apply: {mode: strict}\nkeylog: {mode: all}\n",
    "apply: {mode: soft_delete}\n",
]


@pytest.mark.parametrize("more", MODES)
def test_what_differs_is_written_as_changes(tmp_path: Path, more: str) -> None:
    task = task_of(tmp_path, more)
    wanted: dict[int, str | None] = {i: f"v{i}" for i in range(1, 12)} | {3: None}
    done = repaired(task, wanted)
    assert (done.inserts, done.updates, done.deletes, done.refused) == (2, 1, 1, None)
    assert living(task) == wanted
    assert (
        lake.progress(task.target_path("s.t"), task.apply_app) == 9
    )  # the source's changes go on from there
    done = repaired(task, {1: "again"})  # and once more, behind the first one
    assert (done.inserts, done.updates, done.deletes) == (0, 1, 10)
    assert living(task) == {1: "again"}
    kept = lake.read(f"{task.home}/repairs/s.t__ct")
    assert [s[-2:] for s in sorted(set(kept["header__change_seq"].to_pylist()))] == [
        f"{n:02}" for n in range(5, 16)
    ]


def test_each_change_is_in_the_key_log_in_a_run_of_its_own(tmp_path: Path) -> None:
    task = task_of(tmp_path, "keylog: {mode: all}\n")
    done = repaired(task, {i: f"v{i}" for i in range(1, 9)} | {3: "x", 20: "new"})
    found = lake.read(task.keylog_path).sort_by("keylog_sort").to_pylist()
    assert [(r["change_row_type"], r["action_taken"], r["result_row_count"]) for r in found] == [
        ("D", "D", 1), ("U", "U", 1), ("D", "D", 1), ("I", "I", 1),
    ]  # fmt: skip
    assert {r["run_id"] for r in found} == {done.run_id}
    runs = control_tables.rows(task.keylog_path, "statistic")
    assert [(r["kind"], r["state"]) for r in runs if r["run_id"] == done.run_id] == [("repair", "ended")]


def test_a_key_that_the_target_has_twice_is_there_once_afterwards(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    write_deltalake(task.target_path("s.t"), rows({4: "twice"}), mode="append")
    done = repaired(task, {i: f"v{i}" for i in range(10)})
    assert (done.inserts, done.updates, done.deletes, done.refused) == (1, 0, 1, None)
    found = DeltaTable(task.target_path("s.t")).to_pyarrow_table().sort_by("id").to_pylist()
    assert [(r["id"], r["v"]) for r in found] == [(i, f"v{i}") for i in range(10)]


def test_a_target_that_goes_away_is_none_that_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it has the rows, nobody knows: the repair has to be told again."""
    task = task_of(tmp_path)

    def fails(error: Exception) -> None:
        def applied(*_: object) -> None:
            raise error

        monkeypatch.setattr(Repair, "_applied", applied)

    fails(ApplyError("23514"))
    assert repaired(task, {1: "v1"}).refused == "the target refuses the missing rows: 23514"
    fails(TargetLostError("gone"))
    with pytest.raises(TargetLostError, match="gone"):
        repaired(task, {1: "v1"})


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    version = lake.version(task.target_path("s.t"))
    path, made = task.target_path("s.t"), TargetShape(RELATION, RELATION, None)
    pq.write_table(rows({1: "v1"}), tmp_path / "a.parquet")
    landed = LoadedRows(RELATION, [str(tmp_path / "a.parquet")])
    both = TableSides(
        landed,
        TargetSide(
            task, "s.t", TargetVersion(DeltaTables(""), path, version, {}, 9), position(8), [], 0, {}, made
        ),
    )
    repair = Repair(task, SESSIONS, dry_run=True)
    repair([TableDifference(TableResult("s.t", False, 1, 1, 1, 1), made, both, position(8))])
    assert [(r.deletes, r.refused) for r in repair.done] == [(9, None)]
    assert lake.version(path) == version and not lake.exists(f"{task.home}/repairs/s.t__ct")


@pytest.mark.parametrize("more", ["", "keylog: {mode: all}\n"])
def test_the_exceptions_of_the_sources_changes_stay(tmp_path: Path, more: str) -> None:
    """A repair's changes have numbers of their own."""
    task = task_of(
        tmp_path, "apply: {mode: strict, on: {delete_missing: log then suspend after 100}}\n" + more
    )
    kept = ApplyExceptions(f"{task.home}/control", task.name)
    values = [
        [2026030112000000] * 2,
        [7, 8],
        ["D", "D"],
        ["delete_missing"] * 2,
        ["id=1", "id=2"],
        [None] * 2,
    ]
    schema = kept.rows_schema
    found = pa.table([pa.array(v, f.type) for v, f in zip(values, schema, strict=True)], schema=schema)
    kept.add_rows(found, "s.t", 9, start=-1, counts={"delete_missing": (0, 2)})
    done = repaired(task, {i: f"v{i}" for i in range(1, 11)})
    assert done.refused is None and done.changes == 2
    assert len(lake.read(kept.path)) == 2 and kept.progress("s.t") == 9
    assert kept.counts("s.t", 9, ["delete_missing"]) == {"delete_missing": 2}


def test_a_newer_baseline_is_not_undone(tmp_path: Path) -> None:
    """`tailrace capture` has answered a `resync` between the comparison and the repair."""
    task = task_of(tmp_path)
    path, made = task.target_path("s.t"), TargetShape(RELATION, RELATION, None)
    file = tmp_path / "source.parquet"
    pq.write_table(rows({i: f"v{i}" for i in range(1, 10)}), file)
    there = TargetVersion(DeltaTables(""), path, lake.version(path), {}, 9)
    both = TableSides(
        LoadedRows(RELATION, [str(file)]), TargetSide(task, "s.t", there, position(8), [], 0, {}, made)
    )
    found = TableDifference(TableResult("s.t", False, 1, 1, 1, 1), made, both, position(8))
    newer = {50: "inserted"}
    lake.replace_all(
        path,
        lake.write_part(path, rows(newer)),
        schema=schema_of(RELATION.columns),
        progress={task.apply_app: 9},
    )
    taken = Baseline("s.t", RELATION, position(12), 1, lake.version(path), NOW, 1.0, number=2, after=9)
    write_baseline(task.control_path("baselines"), taken)
    repair = Repair(task, SESSIONS)
    repair([found])
    assert [r.refused for r in repair.done] == [
        "it got a new baseline since the snapshot: run the repair again"
    ]
    assert living(task) == newer
