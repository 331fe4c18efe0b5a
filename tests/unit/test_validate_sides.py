"""A target's rows as the command's own process reads them: a version, without marked rows, or why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailrace.apply.mapped_snapshots import record_load
from tailrace.config.task import Task, load
from tailrace.errors import ConfigError
from tailrace.execution import BackgroundSession
from tailrace.model.change import Column, Relation
from tailrace.state.baselines import read_baselines
from tailrace.targets.delta.tables import DeltaTables
from tailrace.validate.sessions import Sessions
from tailrace.validate.sides import TargetSide
from tailrace.validate.target_shape import TargetShape
from tailrace.validate.target_versions import TargetVersion

from .task_home import ITEM, TaskHome

pytestmark = pytest.mark.unit
RELATION = Relation(1, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))


def target(folder: Path, more: str = "", *files: dict[str, list[Any]], stored: int = 0) -> TargetSide:
    """A Delta target, a file each, and what is known of it at a position."""
    file = folder / "shop.yaml"
    file.write_text(f"name: shop\nsource: {{url: 'postgresql://db/shop'}}\n{more}")
    task: Task = load(file)
    path = task.target_path("s.t")
    schema = pa.schema([("id", pa.int32()), ("gone", pa.string())])
    for rows in files:
        write_deltalake(path, pa.Table.from_pydict(rows, schema), mode="append")
    base = TargetVersion(DeltaTables(""), path, len(files) - 1, {}, 7)
    return TargetSide(task, "s.t", base, "FF", [], stored, {}, TargetShape(RELATION, RELATION, None))


def no_spark() -> NoReturn:
    pytest.fail("Spark was started")


SOFT = "tables: {s.t: {soft_delete: gone}}\n"


def test_marked_rows_are_gone_and_so_is_the_mark(tmp_path: Path) -> None:
    found = target(
        tmp_path,
        SOFT,
        {"id": [1, 2, 3], "gone": [None, "5", None]},
        {"id": [4, 5], "gone": ["6", "7"]},
        {"id": [6], "gone": [None]},
    )
    rows, _ = found.rows(Sessions(BackgroundSession(no_spark)), str(tmp_path))
    assert rows.schema.names == ["id"]
    assert sorted(i for b in rows.batches(["id"]) for i in b["id"].to_pylist()) == [1, 3, 6]


def test_target_that_only_spark_can_read_says_why(tmp_path: Path) -> None:
    one: dict[str, list[Any]] = {"id": [1], "gone": [None]}
    assert target(tmp_path, "", one).why_sql is None
    waits = target(tmp_path, "", one, stored=3)
    assert waits.why_sql == "changes of s.t have to be applied on top of its target"


@pytest.mark.parametrize("older", [False, True])
def test_a_baseline_that_waits_to_be_mapped_is_the_reason(tmp_path: Path, older: bool) -> None:
    """There is none in the target, or an older one."""
    home = TaskHome(tmp_path)
    home.baseline([], number=2, version=None)
    if older:
        record_load(home.task.control_path("mapped"), ITEM, (1, "", 0))
    taken = read_baselines(home.task.control_path("baselines"))[ITEM]
    with pytest.raises(ConfigError, match="its baseline is not mapped yet"):
        TargetSide.at(home.task, taken, "FF", None, Sessions(BackgroundSession(no_spark)))
