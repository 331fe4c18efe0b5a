"""The applying process ends at the fail points of Delta targets, key logs and loads; the next one goes on, and
all is as a row-by-row model has it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.apply.baseline_staging import Staging
from tailrace.apply.mapped_snapshots import MappedSnapshotLoader, loaded
from tailrace.apply.mapping.table_map import place_of, task_map
from tailrace.apply.route import Routes
from tailrace.apply.scheduler import Scheduler
from tailrace.capture.snapshot_sink import landings
from tailrace.config.task import Task, read
from tailrace.errors import TailraceError
from tailrace.keylog.key_log import KeyLog
from tailrace.lake import delta as lake
from tailrace.lake import failpoints
from tailrace.model.change import Relation
from tailrace.state.baselines import Baseline
from tailrace.targets.delta.target import DeltaTarget
from tailrace.testing.images import ID, RELATION, Image, V, W, image, merge_images

from ..ending import ends
from .literal_tables import rows_at
from .rules_model import Change, history
from .test_rules import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RENAMED = RELATION.with_columns([ID, replace(V, name="word"), W])
Batch = tuple[Relation, int, list[Image]]
PLANS: Mapping[str, Batch] = {
    "delta.local": (
        RELATION,
        1 << 30,
        [
            *((n, "I", image(n, w)) for n, w in ((1, "a"), (2, "b"), (3, "c"))),
            (4, "U", image(1, "A")),
            (5, "D", {"id": 2}),
        ],
    ),
    "delta.rewrite": (RENAMED, 0, []),
    "delta.distributed": (RENAMED, 0, [(6, "D", {"id": 1}), (7, "I", {"id": 4, "word": "d"})]),
    "delta.distributed.done": (RENAMED, 0, [(8, "U", {"id": 3, "word": "C"}), (9, "D", {"id": 4})]),
}
"""Fail point -> layout, touched bytes up to which files are written anew, changes."""
LOGS = ("keylog.parts", "keylog.flush", "keylog.flushed")
LOADS = ("delta.load", "apply.mapped", "apply.staging")
ENDS = (*PLANS, *LOGS, *LOADS)
"""The fail points at which tests of this file end."""


@pytest.mark.slow
def test_each_plan_is_begun_anew(spark: SparkSession, tmp_path: Path) -> None:
    def life(most: int, before: Relation, now: Relation, rows: list[Image]) -> None:
        target = DeltaTarget(
            spark, str(tmp_path), app_id="t", local_limit_bytes=1, rewrite_share=0, rewrite_bytes=most
        )
        target.alter(now.table, before, now)
        if rows:
            merge_images(spark, target, now, rows)

    before = RELATION
    for point, (now, most, rows) in PLANS.items():
        with ends(point):
            life(most, before, now, rows)
        life(most, before, now, rows)
        before = now
    (found,) = rows_at(spark, str(tmp_path / RELATION.table)).collect()
    assert (found["id"], found["word"], float(found["Wide_Word"])) == (3, "C", 1.5)
    assert lake.progress(str(tmp_path / RELATION.table), "t") == 9


@pytest.mark.slow
def test_a_key_log_has_every_change_once(spark: SparkSession, tmp_path: Path) -> None:
    changes = history(3, 12, 4)
    place = Place(spark, tmp_path, "archive", {})
    for n, point in enumerate(LOGS, 1):
        some = changes[: len(changes) * n // len(LOGS)]
        with ends(point):
            place.apply(some)
        again(place, some)
    place.expect(changes)
    place.same()


@pytest.mark.slow
def test_the_process_of_a_task_is_killed_when_its_commit_is_made(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found, and was to tell, is lost: the key log is made good by the target's version before."""
    changes = history(3, 6, 4)
    place = Place(spark, tmp_path, "strict", {})
    place.apply(changes[:5])
    # Spark gives the processes of tasks the environment in which their function was made.
    environment = spark.sparkContext.environment
    environment[failpoints.VARIABLE] = "delta.merged"
    monkeypatch.setattr(import_module("tailrace.execution.map_tasks"), "DRIVER_LIMIT", 0)
    try:
        with pytest.raises(TailraceError):
            place.apply(changes)
    finally:
        del environment[failpoints.VARIABLE]
    assert place.target.progress("s.t") == changes[-1].number
    again(place, changes)
    place.expect(changes)
    place.same()


def again(place: Place, changes: Sequence[Change]) -> None:
    """The next process applies them; what the last one knew is gone."""
    place.log = KeyLog(place.log.path, app_id="t", run_id="1")
    place.apply(changes)


FILE = """
name: shop
source: {url: "postgresql://me@db/shop", tables: ["s.*"]}
target: {path: lake}
tables: {s.t: {target: s.short, columns: {word: "upper(v)"}, drop: [v]}}
"""


def test_a_mapped_baseline_is_loaded_once(spark: SparkSession, tmp_path: Path) -> None:
    task, relation = read(FILE, tmp_path), Relation(1, "s", "t", "f", (ID, V))
    assert isinstance(task, Task)
    to = landings(task)("s.t").begin(relation)
    part = to.part(relation)
    part.write(pa.record_batch({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"]}))
    added = part.close()
    assert added is not None
    version = to.commit(relation, [added], 7)
    now = dt.datetime.now(dt.timezone.utc)
    baselines = {"s.t": Baseline("s.t", relation, "00", 2, version, now, 0.0, after=7)}

    def life() -> None:
        root = str(Path(task.target_path("s.short")).parent)
        target = DeltaTarget(spark, root, app_id="t", locations=lambda t: place_of(task_map(task, t)))
        scheduler = Scheduler(task.commands_path, task.control_path("errors"), task.groups)
        MappedSnapshotLoader.of(task, spark, target, Routes.of(task, spark)).refresh(baselines, scheduler)

    for point in LOADS:
        with ends(point):
            life()
    life()
    found = lake.read(task.target_path("s.short")).sort_by("id").to_pylist()
    assert found == [{"id": 1, "word": "A"}, {"id": 2, "word": "B"}]
    assert lake.progress(task.target_path("s.short"), "t") == 7
    assert loaded(task.control_path("mapped"))["s.t"][0] == 1
    assert lake.read(task.control_path("mapped")).num_rows == 1
    staging = Staging(task.staging_path)
    assert lake.exists(staging.path("s.t", 1))  # what a crash leaves there goes with the next baseline's
    staging.done("s.t", 2)
    assert not lake.exists(staging.path("s.t", 1))
