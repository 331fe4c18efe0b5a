"""The Spark session of a running task: what it does, and how the task goes on when it is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from deltalake import DeltaTable

from tailrace.config.task import load
from tailrace.lake import json_files
from tailrace.state.baselines import read_baselines

from .test_running import wait_for

pytestmark = [pytest.mark.db, pytest.mark.slow]
ROWS = 2_000


def lines(said: Path) -> list[str]:
    """The messages that a process has logged so far."""
    found = []
    for line in said.read_text().splitlines():
        with suppress(ValueError):
            found.append(str(json.loads(line)["message"]))
    return found


def test_task_goes_on_in_the_driver_when_its_session_is_killed(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s; create table s.a (id int primary key, v text)")
    path = tmp_path / "lost.yaml"
    source, spark = f"{{url: '{database}', tables: [s.a]}}", "{start: at_once, driver_limit: 1}"
    path.write_text(f"name: lost\nhome: home\nsource: {source}\nspark: {spark}\n")
    task, said = load(path), tmp_path / "said"

    def spark_of() -> dict[str, Any]:
        return (json_files.read(task.run_path, "pipeline") or {}).get("spark") or {}

    def insert(first: int) -> None:
        db.execute(
            "insert into s.a select g, 'v' from generate_series(%s::int, %s) g", (first, first + ROWS - 1)
        )
        wait_for(lambda: DeltaTable(task.target_path("s.a")).count() == first + ROWS - 1)

    command = [sys.executable, "-m", "tailrace", "--log-format", "json", "run", str(path)]
    with said.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as running:
        wait_for(lambda: bool(read_baselines(task.control_path("baselines"))))
        wait_for(lambda: spark_of().get("state") == "ready")
        insert(1)
        (java,) = [
            one for one in psutil.Process(running.pid).children(recursive=True) if one.name() == "java"
        ]
        os.kill(java.pid, signal.SIGKILL)
        insert(ROWS + 1)
        wait_for(lambda: len([line for line in lines(said) if line.startswith("Spark 4")]) == 2)
        insert(2 * ROWS + 1)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    assert any(line.startswith("Spark's JVM is gone") for line in lines(said))
    steps = spark_of()["steps"]
    assert steps["store"]["in_spark"] >= ROWS and steps["apply"]["in_spark"] >= ROWS
