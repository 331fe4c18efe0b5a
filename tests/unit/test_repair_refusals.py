"""What a repair leaves alone, and the reason it gives; told before any row is read."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.apply.mapped_snapshots import CHANGED, record_load
from tailrace.apply.mapping.table_map import task_map
from tailrace.config.task import Task, load
from tailrace.lake import log
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.state import ledger
from tailrace.state.baselines import Baseline, read_baselines, write_baseline
from tailrace.state.ledger import Stored
from tailrace.validate.compare import TableResult
from tailrace.validate.repair_sides import wanted_rows
from tailrace.validate.target_shape import TargetShape
from tailrace.validate.target_versions import NOT_MAPPED
from tailrace.validate.validation import TableDifference

pytestmark = pytest.mark.unit
NOW = dt.datetime(2026, 3, 1, 12, 1, tzinfo=dt.timezone.utc)
ID = Column("id", 1, "integer", "int4", "int", key=True)
GONE = Column("v", 2, "text", "text", "string")
RELATION = Relation(7, "s", "t", "d", (ID,))
KEPT = RELATION.with_columns([ID, GONE])
MAPPED = "tables: {s.t: {target: s.other}}\n"


def position(at: int) -> str:
    return f"{at:040X}"


def task_of(folder: Path, more: str = "", version: int = 1) -> Task:
    """A task that has stored up to change 9 of its table, whose baseline landed."""
    file = folder / "shop.yaml"
    file.write_text(f"name: shop\nhome: home\nsource: {{url: 'postgresql://db/shop'}}\n{more}")
    task = load(file)
    if not read_baselines(task.control_path("baselines")):
        write_baseline(
            task.control_path("baselines"), Baseline("s.t", RELATION, position(0), 1, version, NOW, 1.0)
        )
        batch = Stored(9, make(0, 9), position(9), NOW, {"s.t": {"rows": 1, "I": 1}})
        ledger.write_stored(task.control_path("stored"), batch, {"s.t": 7})
    return task


def refused(task: Task, upto: int = 9, columns: str | None = None, follows: Relation = RELATION) -> Any:
    """What a repair of rows that differ at position 8 says, when the target has reached a change."""
    nobody: Any = None
    result = TableResult("s.t", False, 1, 1, 1, 1, columns=columns)
    one = TableDifference(result, TargetShape(RELATION, follows, None), nobody, position(8))
    return wanted_rows(task, one, upto, ["id"])


def test_columns_that_differ(tmp_path: Path) -> None:
    found = refused(task_of(tmp_path), columns="only in the target: v")
    assert found == "its columns differ: only in the target: v"


def test_an_archive(tmp_path: Path) -> None:
    found = refused(task_of(tmp_path, "apply: {mode: archive}\n"))
    assert found == "its target is an archive, not a copy of the source"


def test_changes_that_wait(tmp_path: Path) -> None:
    found = refused(task_of(tmp_path), upto=5)
    assert found == "it has changes that are not applied yet (is it paused, or suspended?): apply them first"


def test_a_column_that_was_kept(tmp_path: Path) -> None:
    found = refused(task_of(tmp_path), follows=KEPT)
    assert found == "its target ignores some DDL of the source: run `tailrace resync` to rebuild it"


def test_a_layout_that_came_since(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    log.record_layouts(task.relations_path, [log.Layout(KEPT, bytes.fromhex(position(8)), make(0, 9))])
    assert refused(task) == "its layout has changed since the snapshot: run the repair again"


@pytest.mark.parametrize(("version", "before", "now"), [(1, "", MAPPED), (None, MAPPED, "")])
def test_another_mapping(tmp_path: Path, version: int, before: str, now: str) -> None:
    task = task_of(tmp_path, before, version)
    if before:
        record_load(task.control_path("mapped"), "s.t", (1, task_map(task, "s.t").digest, 3))
    assert (
        refused(task, upto=5)
        == "it has changes that are not applied yet (is it paused, or suspended?): apply them first"
    )
    assert refused(task_of(tmp_path, now), upto=5) == CHANGED


def test_a_mapping_whose_baseline_waits(tmp_path: Path) -> None:
    task = task_of(tmp_path, MAPPED, version=None)
    again = replace(read_baselines(task.control_path("baselines"))["s.t"], number=2)
    record_load(task.control_path("mapped"), "s.t", (1, task_map(task, "s.t").digest, 3))
    write_baseline(task.control_path("baselines"), again)
    assert refused(task) == f"{NOT_MAPPED} (`tailrace status`)"
