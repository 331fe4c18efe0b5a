"""`check`, `run` and capture refuse columns that change tables or targets cannot have, before anything is made."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from tailrace.capture.process import Capture
from tailrace.cli.main import app
from tailrace.config.task import load
from tailrace.errors import SourceError

pytestmark = pytest.mark.db
TABLES = (
    'create table s."Cases" ("Id" int primary key, "id" text, "ID" text)',
    "create table s.heads (id int primary key, header__change_oper text, header__mine text, n int, n__until_50 int)",
    'create table s."Heads" (id int primary key, "HEADER__timestamp" text)',
    "create table s.marks (id int primary key, _deleted text)",
    "create table s.fine (id int primary key, name text)",
    "create table s.gone (id int primary key, header__timestamp text)",
)
FILE = "name: shop\nhome: home\nsource: {{url: '{url}', tables: ['s.*']{exclude}}}\n{more}"
SOFT = "tables: {s.marks: {%s}}\n"
MARKED = (
    "s.marks",
    "deleted rows are marked in the column _deleted, but the table already has a column _deleted",
    "name another column for the mark (`tables: {s.marks: {soft_delete: COLUMN}}`), or leave out the column "
    "of the table (`drop: [_deleted]`)",
)


class Home:
    """A task file and its checks."""

    def __init__(self, folder: Path, url: str) -> None:
        self.file, self._url = folder / "shop.yaml", url

    def write(self, more: str = "", exclude: str = "") -> None:
        said = f", exclude: [{exclude}]" if exclude else ""
        self.file.write_text(FILE.format(url=self._url, more=more, exclude=said))

    def check(self, more: str = "", exclude: str = "") -> list[tuple[str, str, str]]:
        self.write(more, exclude)
        done = CliRunner().invoke(app, ["check", str(self.file), "--json"])
        assert done.stdout, done.exception
        found = json.loads(done.stdout)["findings"]
        assert done.exit_code == (3 if found else 0)
        return [(f["where"], f["what"], f["cure"]) for f in found]


@pytest.fixture
def home(tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> Home:
    db.execute("create schema s")
    for table in TABLES:
        db.execute(table)
    db.execute("drop table s.gone")
    monkeypatch.setattr(
        "tailrace.runtime.session.session", lambda *args, **more: pytest.fail("a JVM is started")
    )
    return Home(tmp_path, database)


def test_columns_that_differ_in_case_and_names_of_headers(home: Home) -> None:
    def out(table: str, which: str) -> str:
        return f"rename {which} at the source, or leave the table out (`source: {{exclude: [{table}]}}`)"

    twins = "the columns Id and {} differ in letter case only: a change table cannot have both"
    kept = (
        "the column n__until_50 has the name under which a change table stores former values of a column whose "
        "type has changed"
    )
    own = "the column {} has the name of a column that every change table has"
    assert home.check() == [
        ("s.Cases", twins.format("id"), out("s.Cases", "one")),
        ("s.Cases", twins.format("ID"), out("s.Cases", "one")),
        ("s.Heads", own.format("HEADER__timestamp"), out("s.Heads", "it")),
        ("s.heads", own.format("header__change_oper"), out("s.heads", "it")),
        ("s.heads", kept, out("s.heads", "it")),
    ]
    said = "the columns Id and id differ in letter case only"
    home.check(exclude="s.marks, s.fine")  # nothing would run
    ran = CliRunner().invoke(app, ["run", str(home.file), "--once"])
    assert isinstance(
        ran.exception, SourceError
    ) and f"{said}: a change table cannot have both (s.Cases)" in str(ran.exception)
    assert not (home.file.parent / "home/log").exists()
    with pytest.raises(SourceError, match=said):
        Capture(load(home.file)).run()
    assert home.check(exclude="s.Cases, s.Heads, s.heads") == []


@pytest.mark.since(15)
def test_a_publication_that_leaves_such_a_column_out(home: Home, db: psycopg.Connection) -> None:
    db.execute(
        "create publication tailrace_shop for table s.heads (id, header__mine), s.marks, s.fine"
        " with (publish_via_partition_root = true)"
    )
    assert home.check(exclude="s.Cases, s.Heads") == []


@pytest.mark.parametrize("more, finds", [
    ("mode: soft_delete", True), ("soft_delete: _deleted", True), ("soft_delete: _DELETED", True),
    ("soft_delete: gone", False), ("mode: soft_delete, drop: [_deleted]", False), ("mode: strict", False),
    ("mode: soft_delete, columns: {was: _deleted}", False), ("soft_delete: was, columns: {was: _deleted}", True),
])  # fmt: skip
def test_a_column_that_has_the_name_of_the_mark(home: Home, more: str, finds: bool) -> None:
    found = home.check(SOFT % more, "s.Cases, 's.*eads'")
    assert [where for where, *_ in found] == ["s.marks"] * finds
    if more == "mode: soft_delete":
        assert found == [MARKED]


def test_a_database_tells_letter_case(home: Home, database: str) -> None:
    target = f"target: {database}&schema=copies\n"
    assert home.check(target + SOFT % "soft_delete: _DELETED", "s.Cases, 's.*eads'") == []
    assert home.check(target + SOFT % "soft_delete: _deleted", "s.Cases, 's.*eads'")[-1] == MARKED


def test_a_table_that_is_only_tracked_is_not_marked(home: Home) -> None:
    assert home.check("policies: {s.marks: 1}\n" + SOFT % "mode: soft_delete", "s.Cases, 's.*eads'") == []
