"""`tailrace drop`: what the source keeps goes, then the task's folders; nothing of others."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tailrace.capture.process import Capture
from tailrace.capture.snapshot_sink import DeltaLanding
from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import ConfigError, StorageFullError
from tailrace.lake import delta as lake
from tailrace.operate import drop
from tailrace.sources.postgresql.source import PostgresSource
from tailrace.state import live
from tailrace.state.baselines import read_baselines, write_baseline

pytestmark = pytest.mark.db
FILE = "name: {name}\nhome: home\nsource: {{url: '{url}', tables: [s.*]}}\n"


@pytest.fixture
def task(tmp_path: Path, database: str, db: psycopg.Connection) -> Task:
    """A task that has captured one table, and a table of somebody else in its home."""
    db.execute("create schema s; create table s.t (id int primary key); insert into s.t values (1)")
    (tmp_path / "shop.yaml").write_text(FILE.format(name="shop", url=database))
    made = load(tmp_path / "shop.yaml")
    Capture(made, once=True).run()
    (tmp_path / "home/mine").mkdir()
    return made


def tailrace(task: Task, *words: str) -> Any:
    done = CliRunner().invoke(app, ["drop", str(task.folder / "shop.yaml"), *words, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def there(db: psycopg.Connection) -> list[str]:
    slots = db.execute("select slot_name::text from pg_replication_slots where database = current_database()")
    return [*(n for (n,) in slots), *(n for (n,) in db.execute("select pubname::text from pg_publication"))]


def test_a_dry_run_touches_nothing_and_says_what_goes(task: Task, db: psycopg.Connection) -> None:
    done = CliRunner().invoke(app, ["drop", str(task.folder / "shop.yaml")])
    assert done.exit_code == 0 and "nothing was changed" in done.output
    for what in (
        "would be removed: slot tailrace_shop (retains ",
        "would be removed: publication tailrace_shop",
        f"{task.home}/log",
    ):
        assert what in done.output
    assert "stays: 1 targets in" in done.output
    assert there(db) == ["tailrace_shop", "tailrace_shop"] and Path(task.log_path).is_dir()


def test_a_first_start_that_ends_with_an_error_says_what_stays_and_drop_removes_it(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise StorageFullError("no space left on the device")

    db.execute("create schema s; create table s.t (id int primary key, n numeric(8,2))")
    (tmp_path / "shop.yaml").write_text(FILE.format(name="shop", url=database))
    made = load(tmp_path / "shop.yaml")
    monkeypatch.setattr(DeltaLanding, "commit", full)
    with pytest.raises(StorageFullError, match=r"slot tailrace_shop was created.*`tailrace drop TASK --yes`"):
        Capture(made, once=True).run()
    assert there(db) == ["tailrace_shop", "tailrace_shop"]
    assert tailrace(made, "--yes") and there(db) == []


@pytest.mark.slow
def test_slot_publication_and_folders_go_and_targets_stay(task: Task, db: psycopg.Connection) -> None:
    assert tailrace(task, "--yes")["targets"] == []
    assert there(db) == [] and [p.name for p in Path(task.home).iterdir()] == ["mine"]
    assert Path(task.target_path("s.t")).is_dir()
    assert tailrace(task, "--yes")["folders"] == {}  # again: there is nothing left
    done = CliRunner().invoke(app, ["drop", str(task.folder / "shop.yaml")])
    assert done.output == "there is nothing to remove\n"
    (said,) = tailrace(task, "--yes", "--targets")["stays"]
    assert said.startswith(f"targets in {task.target.path}, if the task has left any: the task has no state")
    assert Path(task.target_path("s.t")).is_dir()
    Capture(task, once=True).run()  # and a task of that name begins anew
    assert there(db) == ["tailrace_shop", "tailrace_shop"]


def test_targets_go_when_it_is_asked_for(task: Task, db: psycopg.Connection) -> None:
    assert tailrace(task, "--yes", "--targets")["targets"] == ["s.t"]
    assert there(db) == [] and not Path(task.target.path).exists()


def test_with_its_targets_a_task_names_all_that_it_leaves(task: Task, db: psycopg.Connection) -> None:
    (Path(task.target.path) / "report").mkdir()
    said = tailrace(task, "--yes", "--targets")["stays"]
    left = [Path(task.home) / "mine", Path(task.target.path) / "report"]
    assert sorted(said) == sorted(
        [*(f"{one}, which is not the task's" for one in left), f"the task file {task.folder / 'shop.yaml'}"]
    )
    assert all(one.exists() for one in left) and not Path(task.target_path("s.t")).exists()


def test_a_target_without_a_finished_baseline_goes_too(task: Task, db: psycopg.Connection) -> None:
    """Its window is open, say; a table there that others write to stays."""
    taken = read_baselines(task.control_path("baselines"))
    shutil.rmtree(task.control_path("baselines"))
    write_baseline(task.control_path("baselines"), replace(taken["s.t"], window="open"))
    lake.append(task.target_path("s.u"), pa.table({"id": [1]}), progress={"tailrace/other": 1})
    assert tailrace(task, "--targets")["targets"] == ["s.t"]
    assert tailrace(task, "--yes", "--targets")["targets"] == ["s.t"]
    assert [p.name for p in Path(task.target.path).iterdir()] == ["s.u"]


def test_a_call_that_is_killed_can_be_repeated(
    task: Task, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, while it removes a folder, of which a part is gone."""

    def killed(path: str, **_: Any) -> None:
        for one in [one for one in Path(path).rglob("*") if one.is_file()][:1]:
            one.unlink()
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(drop, "remove_folder", killed)
            with pytest.raises(KeyboardInterrupt):
                drop.drop(task, dry_run=False)
    assert drop.drop(task, dry_run=False).folders != {}
    assert [p.name for p in Path(task.home).iterdir()] == ["mine"]


def test_a_task_that_runs_is_not_dropped(task: Task, db: psycopg.Connection) -> None:
    with live.lock(task.run_path, "pipeline"), pytest.raises(ConfigError, match="is already running"):
        CliRunner().invoke(
            app,
            ["drop", str(task.folder / "shop.yaml"), "--yes"],
            catch_exceptions=False,
            standalone_mode=False,
        )
    assert there(db) == ["tailrace_shop", "tailrace_shop"] and Path(task.log_path).is_dir()


def test_a_slot_that_the_task_has_not_made_stays(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s")
    db.execute("select pg_create_logical_replication_slot('tailrace_shop', 'pgoutput')")
    (tmp_path / "shop.yaml").write_text(FILE.format(name="shop", url=database))
    (slot,) = tailrace(load(tmp_path / "shop.yaml"), "--yes")["source"]
    assert not slot["ours"] and there(db) == ["tailrace_shop"]


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after another start"])
def test_what_a_first_start_has_made_goes_though_it_was_killed(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """The slot is there, and no row says yet where it begins."""
    db.execute("create schema s; create table s.t (id int primary key)")
    (tmp_path / "shop.yaml").write_text(FILE.format(name="shop", url=database))
    task, prepare = load(tmp_path / "shop.yaml"), PostgresSource.prepare

    def killed(*words: Any, **more: Any) -> bool:
        prepare(*words, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as one, pytest.raises(KeyboardInterrupt):
        one.setattr(PostgresSource, "prepare", killed)
        Capture(task, once=True).run()
    if again:
        Capture(task, once=True).run()
    assert there(db) == ["tailrace_shop", "tailrace_shop"]
    assert [one["ours"] for one in tailrace(task, "--yes")["source"]] == [True, True]
    assert there(db) == []


def test_without_its_source_a_task_can_be_dropped(task: Task, db: psycopg.Connection) -> None:
    said = tailrace(task, "--yes", "--leave-source")
    assert not said["asked"] and there(db) == ["tailrace_shop", "tailrace_shop"]
    assert [p.name for p in Path(task.home).iterdir()] == ["mine"]
