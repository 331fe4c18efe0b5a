"""A target belongs to one task: another one is refused before it writes, and `validate` says whose it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.config.task import load
from tailrace.errors import ConfigError, TailraceError
from tailrace.lake import delta as lake
from tailrace.state.baselines import read_baselines
from tailrace.validate.target_versions import version_before

from .conftest import OwnServer

pytestmark = pytest.mark.db


def tailrace(*words: str) -> tuple[int, Any]:
    """The exit code, and what was printed or raised."""
    done = CliRunner().invoke(app, [*words, "--json"])
    if isinstance(done.exception, TailraceError):
        return 1, str(done.exception)
    return done.exit_code, json.loads(done.stdout)


def task(folder: Path, name: str, url: str, target: str) -> str:
    file = folder / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"name: {name}\nsource: {{url: '{url}', tables: [s.*]}}\ntarget: {target}\n")
    return str(file)


@pytest.fixture
def source(database: str, db: psycopg.Connection) -> str:
    db.execute("create schema s; create table s.t (id int primary key, v text)")
    db.execute("insert into s.t values (1, 'a')")
    return database


def test_init_twice_in_one_folder_gives_two_targets(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shop", "crm"):
        assert tailrace("init", source, "s.*", "--name", name)[0] == 0
        assert tailrace("capture", f"{name}.yaml", "--once")[0] == 0
    found = [lake.read(f"{name}/target/s.t").to_pylist() for name in ("shop", "crm")]
    assert found == [[{"id": 1, "v": "a"}]] * 2


def test_delta_target_of_another_task_is_refused_until_it_is_taken_over(
    tmp_path: Path, source: str, db: psycopg.Connection
) -> None:
    mine, theirs = (task(tmp_path, name, source, "lake") for name in ("shop", "crm"))
    path = str(tmp_path / "lake/s.t")
    assert tailrace("capture", mine, "--once")[0] == 0
    (finding,) = [f for f in tailrace("check", theirs)[1]["findings"] if f["level"] == "error"]
    assert finding["where"] == "s.t" and finding["what"].startswith(
        f"the target {path} belongs to the task shop (source t"
    )
    assert finding["cure"] == (
        "give this task another target (`target`), or take the table over: `tailrace take-over TASK s.t`"
    )
    for words in (["run", theirs, "--once"], ["capture", theirs, "--once"]):
        code, said = tailrace(*words)
        assert code == 1 and "belongs to the task shop" in said
    assert DeltaTable(path).version() == 1
    assert db.execute("select slot_name from pg_replication_slots").fetchall() == [("tailrace_shop",)]

    assert tailrace("take-over", theirs, "s.t") == (0, {"tables": ["s.t"]})
    assert tailrace("capture", theirs, "--once")[0] == 0
    for words in (["validate", mine], ["capture", mine, "--once"]):
        code, said = tailrace(*words)
        assert code == 1 and "belongs to the task crm" in said
    old = load(Path(mine))  # as while it runs
    with pytest.raises(ConfigError, match="belongs to the task crm"):
        version_before(old, read_baselines(old.control_path("baselines"))["s.t"], "F" * 40)


def test_two_tasks_may_write_different_tables_into_one_folder(
    tmp_path: Path, source: str, db: psycopg.Connection
) -> None:
    db.execute("create table s.u (id int primary key); insert into s.u values (7)")
    mine, theirs = (task(tmp_path, name, source, "lake") for name in ("shop", "crm"))
    for file, table in ((mine, "s.t"), (theirs, "s.u")):
        Path(file).write_text(Path(file).read_text().replace("s.*", table))
        assert tailrace("capture", file, "--once")[0] == 0
    assert lake.read(str(tmp_path / "lake/s.u")).to_pylist() == [{"id": 7}]


def test_delta_target_of_another_task_suspends_one_table_of_several(
    tmp_path: Path, source: str, db: psycopg.Connection
) -> None:
    mine, theirs = (task(tmp_path, name, source, "lake") for name in ("shop", "crm"))
    assert tailrace("capture", mine, "--once")[0] == 0
    db.execute("create table s.u (id int primary key); insert into s.u values (7)")
    for half in ("capture", "pipeline"):
        assert tailrace(half, theirs, "--once")[0] == 0
    found = {t["table"]: (t["state"], t["why"] or "") for t in tailrace("status", theirs)[1]["tables"]}
    assert found["s.t"][0] == "suspended" and "belongs to the task shop" in found["s.t"][1]
    assert DeltaTable(str(tmp_path / "lake/s.t")).version() == 1
    assert lake.read(str(tmp_path / "lake/s.u")).to_pylist() == [{"id": 7}]


def test_target_of_an_earlier_release_is_adopted_by_the_task_that_has_its_progress(
    tmp_path: Path, source: str
) -> None:
    mine, theirs = (task(tmp_path, name, source, "lake") for name in ("shop", "crm"))
    path = str(tmp_path / "lake/s.t")
    lake.append(path, pa.table({"id": pa.array([1], "int32"), "v": ["a"]}))
    assert tailrace("capture", mine, "--once")[0] == 0
    assert DeltaTable(path).metadata().configuration["tailrace.owner"].startswith("shop t")
    assert "belongs to the task shop" in tailrace("capture", theirs, "--once")[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "postgresql"])
def test_tasks_of_one_name_with_two_sources_have_no_target_in_common(
    tmp_path: Path, source: str, kind: str, own_server: OwnServer
) -> None:
    with own_server() as other:
        with psycopg.connect(other.url(), autocommit=True) as db:
            db.execute("create schema s; create table s.t (id int primary key); insert into s.t values (7)")
        target = f"{tmp_path}/lake" if kind == "delta" else f"'{source}&schema=lake'"
        mine = task(tmp_path / "a", "shop", source, target)
        theirs = task(tmp_path / "b", "shop", other.url(), target)
        assert tailrace("capture", mine, "--once")[0] == 0
        code, said = tailrace("capture", theirs, "--once")
    assert code == 1 and ("belongs to the task shop" in said or "belong to a task of that name" in said)
    assert tailrace("validate", mine)[1]["equal"] is True
