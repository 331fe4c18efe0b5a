"""What a Delta target says of batches that it has: with which of its versions they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.errors import ConcurrentCommitError
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeRange
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta import spark_io
from tailrace.targets.delta.spark_merge import SparkMerge
from tailrace.targets.delta.target import DeltaTarget

pytestmark = pytest.mark.unit
RELATION = Relation(1, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))


def test_it_is_the_newest_without_later_changes(tmp_path: Path) -> None:
    target = DeltaTarget(None, str(tmp_path), app_id="x")  # type: ignore[arg-type]
    path = target.path("s.t")
    for progress in ({"x": 4}, {"x": 6}, {"other": 1}, {"x": 9}, {"other": 2}):
        lake.append(path, pa.table({"id": pa.array([1], pa.int32())}), progress=progress)
    assert [target.version_at("s.t", number) for number in (3, 4, 5, 6, 8, 9)] == [0, 1, 1, 3, 3, 5]


def test_it_is_not_known_when_the_log_is_cleaned_up(tmp_path: Path) -> None:
    target = DeltaTarget(None, str(tmp_path), app_id="x")  # type: ignore[arg-type]
    path = target.path("s.t")
    for number in (4, 6, 9):
        lake.append(path, pa.table({"id": pa.array([1], pa.int32())}), progress={"x": number})
    DeltaTable(path, version=2).create_checkpoint()
    for version in (0, 1):
        (Path(path) / "_delta_log" / f"{version:020d}.json").unlink()
    assert [target.version_at("s.t", number) for number in (4, 6, 9)] == [None, 2, 3]


@pytest.mark.parametrize(("step", "passes"), [("properties", True), ("delete", False), ("two", False)])
def test_a_commit_of_somebody_else_is_not_taken_for_a_step_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, passes: bool
) -> None:
    """A DELETE that is committed when a table is given deletion vectors changes rows."""
    path = str(tmp_path / "t")
    lake.append(path, pa.table({"id": pa.array([1, 2], pa.int32())}))

    def done(*_: object) -> None:
        if step in ("properties", "two"):
            DeltaTable(path).alter.set_table_properties(
                {"delta.deletedFileRetentionDuration": "interval 1 week"}
            )
        if step in ("delete", "two"):
            DeltaTable(path).delete("id = 1")

    monkeypatch.setattr(spark_io, "enable_vectors", done)
    none: Any = None
    one = ChangeBatch("s.t", RELATION, ChangeRange(0, 9), target=path)
    work = SparkMerge(none, none, DeltaTable(path), one, [], 9, partial=False, emptied=False)
    if passes:
        assert work._mergeable_version() == DeltaTable(path).version()
        return
    with pytest.raises(ConcurrentCommitError):
        work._mergeable_version()
