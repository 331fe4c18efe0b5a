"""The README's example: a row deleted on the target, what the key log says of it, and its repair."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tailrace.capture.process import Capture
from tailrace.cli.main import app
from tailrace.config.task import load
from tailrace.lake import delta as lake
from tailrace.operate.status import status
from tailrace.runtime.pipeline import Pipeline

from .test_running import meanwhile, wait_for

pytestmark = [pytest.mark.db, pytest.mark.spark]

TASK = """
name: shop
home: home
source: {{url: '{url}', tables: [shop.*]}}
target: {{path: lake}}
baseline: {{workers: 1}}
apply: {{mode: strict}}
keylog: {{mode: all}}
"""


@pytest.mark.slow
def test_a_conflict_is_found_in_the_key_log_and_repaired(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(TASK.format(url=database))

    def tailrace(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [*words, "--json"])
        assert result.exit_code == code, (words, result.output, result.exception)
        return json.loads(result.stdout)

    def bring() -> None:
        tailrace("capture", str(file), "--once")
        tailrace("pipeline", str(file), "--once")

    db.execute(
        "create schema shop; create table shop.item (id int primary key, name text, price numeric(8,2))"
    )
    db.execute("insert into shop.item select i, 'item ' || i, i from generate_series(1, 100) i")
    bring()
    db.execute("update shop.item set price = 1.5 where id in (3, 7)")
    bring()
    DeltaTable(str(tmp_path / "lake" / "shop.item")).delete("id = 7")
    db.execute("update shop.item set price = 9.99 where id = 7")
    db.execute("insert into shop.item values (101, 'new', 2)")
    bring()

    (table,) = tailrace("keylog", "tables", str(file))
    assert [table[k] for k in ("table", "rules", "changes", "flagged")] == ["shop.item", "strict", 4, 1]
    (flagged,) = tailrace("keylog", "flagged", str(file))
    assert (flagged["before_key"], flagged["result_row_count"]) == ('id="7"', 0)
    assert flagged["result_error"] == "update_missing: the row to be updated does not exist"
    story = tailrace("keylog", "story", str(file), "--key", "id=7")
    assert [(r["change_row_type"], r["action_taken"], r["result_row_count"]) for r in story] == [
        ("U", "M", 1),
        ("U", "M", 0),
    ]

    done = tailrace("validate", str(file), "--repair")
    assert (done["equal"], done["after"]["equal"]) == (False, True)
    story = tailrace("keylog", "story", str(file), "--key", "id=7")
    assert [(r["change_row_type"], r["result_row_count"]) for r in story] == [("U", 1), ("U", 0), ("I", 1)]
    runs = tailrace("keylog", "runs", str(file))
    assert [(r["kind"], r["state"], r["change_count"], r["flagged_count"]) for r in runs] == [
        ("apply", "ended", 2, 0), ("apply", "ended", 2, 1), ("repair", "ended", 1, 0),
    ]  # fmt: skip
    assert runs[-1]["run_id"] == story[-1]["run_id"] == done["repaired"][0]["run_id"]
    db.execute("update shop.item set price = 5 where id = 7")
    bring()
    rows = lake.read(str(tmp_path / "lake" / "shop.item")).to_pylist()
    assert [str(r["price"]) for r in rows if r["id"] == 7] == ["5.00"]
    assert len(tailrace("keylog", "flagged", str(file))) == 1


@pytest.mark.slow
def test_a_conflict_is_repaired_while_the_task_runs(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    file, target = tmp_path / "shop.yaml", str(tmp_path / "lake" / "shop.item")
    file.write_text(TASK.format(url=database))
    task = load(file)

    def tailrace(*words: str) -> tuple[int, Any]:
        command = [sys.executable, "-m", "tailrace", *words, str(file), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=120, check=False)
        return done.returncode, json.loads(done.stdout)

    def rows() -> dict[int, str]:
        return {r["id"]: str(r["price"]) for r in lake.read(target).to_pylist()}

    db.execute(
        "create schema shop; create table shop.item (id int primary key, name text, price numeric(8,2))"
    )
    db.execute("insert into shop.item select i, 'item ' || i, i from generate_series(1, 100) i")
    stop = threading.Event()
    capture, pipeline = Capture(task, stop=stop), Pipeline(task, spark, stop=stop)
    with meanwhile(capture.run, pipeline.run, stop=stop):
        wait_for(lambda: lake.exists(target) and len(rows()) == 100)
        db.execute("update shop.item set price = 6.5 where id = 7")
        wait_for(lambda: rows()[7] == "6.50")
        DeltaTable(target).delete("id = 7")
        db.execute("update shop.item set price = 9.99 where id = 7")
        wait_for(lambda: bool(tailrace("keylog", "flagged")[1]))
        _, (table,) = tailrace("keylog", "tables")
        (told,) = status(task).tables
        assert (table["changes"], table["flagged"], told.flagged) == (2, 1, 1)

        code, planned = tailrace("validate", "--repair", "--dry-run")
        (one,) = planned["repaired"]
        assert (code, one["inserts"], one["run_id"], planned["after"]) == (3, 1, None, None)
        code, done = tailrace("validate", "--repair")
        (one,) = done["repaired"]
        assert (code, one["inserts"], one["refused"], done["after"]["equal"]) == (0, 1, None, True)
        assert rows()[7] == "9.99"
        _, runs = tailrace("keylog", "runs")
        assert [(r["kind"], r["state"], r["change_count"], r["flagged_count"]) for r in runs] == [
            ("apply", "running", 2, 1), ("repair", "ended", 1, 0),
        ]  # fmt: skip
        db.execute("update shop.item set price = 5 where id = 7")
        wait_for(lambda: rows()[7] == "5.00")
    assert len(tailrace("keylog", "flagged")[1]) == 1
