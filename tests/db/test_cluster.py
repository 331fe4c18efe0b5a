"""The Spark half with separate executor processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import load

from .model import SCHEMA, TABLES, Writer, bag
from .test_model import target_rows, write_task

pytestmark = [pytest.mark.db, pytest.mark.slow]


@pytest.mark.parametrize("limit", ["", ", local_limit: 1B"], ids=["one-task", "several-tasks"])
def test_a_task_runs_on_a_cluster_of_executor_processes(tmp_path: Path, database: str, limit: str) -> None:
    path = write_task(tmp_path, database, target=limit)
    path.write_text(path.read_text() + "\nspark: {spark.master: 'local-cluster[2,1,1024]'}\n")
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(SCHEMA)
    writer = Writer(database, 21)
    writer.transactions(25)
    task = load(path)
    Capture(task, once=True).run()  # so that one start of the cluster has baselines and changes to land
    writer.transactions(25)
    subprocess.run([sys.executable, "-m", "tailrace", "run", str(path), "--once"], check=True, timeout=300)
    for table in TABLES:
        assert bag(target_rows(task, table)) == bag(writer.rows(table)), table
