"""The Spark half with separate executor processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load

from .model import SCHEMA, TABLES, Writer, bag
from .test_model import target_rows, write_task

pytestmark = [pytest.mark.db, pytest.mark.slow]

COMMANDS = """
import sys
from tailrace.cli.main import app

for command, task in zip(("run", "pipeline"), sys.argv[1:], strict=True):
    app([command, task, "--once"], standalone_mode=False)
"""
"""Two tasks in one process: its cluster takes longer to start than all that they do."""
LIMITS = {"one": "", "several": ", local_limit: 1B"}
"""How many of Spark's tasks merge a batch."""


def test_tasks_run_on_a_cluster_of_executor_processes(tmp_path: Path, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(SCHEMA)
    writer, files = Writer(database, 21), [cluster_task(tmp_path, database, name) for name in LIMITS]
    writer.transactions(25)
    tasks = [load(file) for file in files]
    captured(tasks)  # so that one start of the cluster has baselines and changes to land
    writer.transactions(25)
    captured(tasks)
    subprocess.run([sys.executable, "-c", COMMANDS, *map(str, files)], check=True, timeout=300)
    for task in tasks:
        for table in TABLES:
            assert bag(target_rows(task, table)) == bag(writer.rows(table)), (task.name, table)


def cluster_task(folder: Path, url: str, name: str) -> Path:
    (folder / name).mkdir()
    path = write_task(folder / name, url, target=LIMITS[name])
    more = "\nspark: {spark.master: 'local-cluster[2,1,1024]'}\n"
    path.write_text(path.read_text().replace("name: model", f"name: {name}") + more)
    return path


def captured(tasks: list[Task]) -> None:
    for task in tasks:
        Capture(task, once=True).run()
