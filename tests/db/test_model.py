"""Random histories on a real server: targets equal the source, and change tables replay to it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.runtime.pipeline import Pipeline
from tailrace.runtime.session import session
from tailrace.state.baselines import read_baselines

from .model import SCHEMA, TABLES, Writer, bag, histories, replay

pytestmark = [pytest.mark.db, pytest.mark.spark]


def write_task(folder: Path, url: str, **more: str) -> Path:
    """A task file for the model's tables."""
    lines = [
        "name: model",
        "home: home",
        f"source: {{url: '{url}', tables: ['m.*']}}",
        f"target: {{path: lake{more.get('target', '')}}}",
        "freshness: 100ms\ncapture: {idle_advance: 1s}",
        "baseline: {workers: 1}",
        "maintenance: {every: 0s, small_files: 4, keep_log: 0s}",
    ]
    path = folder / "model.yaml"
    path.write_text("\n".join(lines))
    return path


def drain(task: Task, spark: object) -> None:
    Capture(task, once=True).run()
    Pipeline(task, spark).drain()  # type: ignore[arg-type]


def target_rows(task: Task, table: str, version: int | None = None) -> list[dict[str, object]]:
    """A target's rows; through Spark where there are deletion vectors, which only Spark reads here."""
    delta = DeltaTable(task.target_path(table), version=version)
    if "deletionVectors" not in (delta.protocol().reader_features or []):
        rows: list[dict[str, object]] = delta.to_pyarrow_table().to_pylist()
        return rows
    read = session("tests").read.format("delta")
    read = read if version is None else read.option("versionAsOf", version)
    return read.load(task.target_path(table)).toArrow().to_pylist()  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_targets_and_change_tables_follow_any_history(
    tmp_path: Path, database: str, spark: object, seed: int
) -> None:
    distributed = seed == 3
    limit = ", local_limit: 1B" if distributed else ""
    task = load(write_task(tmp_path, database, target=limit))
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(SCHEMA)
    writer = Writer(database, seed)
    writer.transactions(30)
    for phase in range(2):
        drain(task, spark)
        writer.transactions(60)
        if phase:
            writer.alter()
            writer.transactions(40)
            writer.alter()
            writer.transactions(20)
    drain(task, spark)
    for table in TABLES:
        assert bag(target_rows(task, table)) == bag(writer.rows(table)), table
    baselines = read_baselines(task.control_path("baselines"))
    for table, history in histories(task.relations_path):
        taken = baselines[table]
        start = target_rows(task, table, taken.version)
        replayed = replay(task.changes_path(table), history, start, taken.position)
        assert bag(replayed) == bag(writer.rows(table)), table
