"""Text that cannot be had as UTF-8: said before it happens, where it is when it does, and how it goes on."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import ConnectionLostError, SourceError
from tailrace.operate.status import status
from tailrace.operate.table_commands import renew_stream
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres
from tailrace.sources.postgresql.source import PostgresSource
from tailrace.state import commands
from tailrace.state.baselines import read_baselines

pytestmark = pytest.mark.db

DOCS = Path(__file__).parents[2] / "docs" / "operating.md"
ENCODINGS = {"SQL_ASCII": r"E'\xe9'", "WIN1252": r"E'\x81'"}
"""Encoding -> a value that the server takes, and cannot send."""


@pytest.fixture(params=ENCODINGS)
def odd(pg: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A database in such an encoding, and a value; its slots go with it."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(pg.url(), autocommit=True) as admin:
        admin.execute(f"create database {name} encoding '{request.param}' template template0 locale 'C'")  # type: ignore[arg-type]
        yield pg.url(name), ENCODINGS[request.param]
        admin.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s",
            (name,),
        )
        admin.execute(f"drop database {name} with (force)")  # type: ignore[arg-type]


def shop(folder: Path, url: str) -> Task:
    file = folder / "shop.yaml"
    file.write_text(f"name: shop\nsource: {{url: '{url}'}}\ntarget: lake\nbaseline: {{workers: 1}}\n")
    return load(file)


def ended(task: Task) -> None:
    """A run that such a value ends: for good, with the way out."""
    with pytest.raises(SourceError, match=r'encoding "UTF8"') as caught:
        Capture(task, once=True).run()
    assert not isinstance(caught.value, ConnectionLostError)
    hint = caught.value.hint or ""
    assert "`tailrace resync TASK --new-stream`" in hint and "docs/operating.md" in hint


@pytest.mark.slow
def test_capture_goes_on_once_the_rows_are_corrected(tmp_path: Path, odd: tuple[str, str]) -> None:
    """With the SQL of the docs: after a baseline that met such a value, and after a stream that did."""
    url, value = odd
    section = DOCS.read_text().partition("## Text that is not UTF-8")[2].partition("\n## ")[0]
    (statements,) = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    function, find = statements.split("\n\n")[:2]
    task = shop(tmp_path, url)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(function)
        found = re.sub("--.*", "", find).replace("ctid", "id").replace("sales.orders", "a")
        db.execute(
            f"create table a (id int primary key, v text); insert into a values (1, {value}), (2, 'ok')"
        )  # type: ignore[arg-type]
        Capture(task, once=True).run()
        (table,) = status(task).tables
        assert (table.state, 'encoding "UTF8"' in str(table.why)) == ("suspended", True)
        assert db.execute(found).fetchall() == [(1,)]  # type: ignore[arg-type]
        db.execute("update a set v = 'e' where id = 1")
        commands.resync(task.commands_path, "public.a", "corrected")
        Capture(task, once=True).run()
        db.execute(f"insert into a values (3, {value})")  # type: ignore[arg-type]
        ended(task)
        assert db.execute(found).fetchall() == [(3,)]  # type: ignore[arg-type]
        db.execute("update a set v = 'e' where id = 3")
        ended(task)  # the change is still in the log
        renew_stream(task)
        Capture(task, once=True).run()
        assert db.execute(found).fetchall() == []  # type: ignore[arg-type]
    assert read_baselines(task.control_path("baselines"))["public.a"].rows == 3


def test_a_database_that_checks_no_text_is_warned_of(odd: tuple[str, str]) -> None:
    url, value = odd
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("create table a (id int primary key)")
    source = PostgresSource(url, "shop")
    found = source.check(["public.a"], None)
    source.close()
    if value != ENCODINGS["SQL_ASCII"]:
        assert found == []
        return
    (one,) = found
    assert (one.level, one.what) == (
        "warning",
        "the database's encoding is SQL_ASCII: it accepts any bytes as text, and a value that is not UTF-8 stops capture",
    )
    assert "docs/operating.md" in one.cure
