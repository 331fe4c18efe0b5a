"""Places as a PostgreSQL server names them: positions of its log, and its transactions' ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app

from .test_model import drain
from .test_slot import task

pytestmark = [pytest.mark.db, pytest.mark.spark, pytest.mark.slow]


def test_a_position_as_the_server_writes_it_divides_changes_by_their_commit(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: Any
) -> None:
    db.execute("create schema s; create table s.t (id int primary key)")
    made = task(tmp_path, database)
    drain(made, spark)
    xid = one(db, "with x as (insert into s.t values (1)) select pg_current_xact_id()::text")
    between = one(db, "select pg_current_wal_insert_lsn()::text")
    db.execute("insert into s.t values (2)")
    drain(made, spark)
    file = str(tmp_path / "shop.yaml")
    assert asked("changes", file, "s.t", "--end", between, "--columns", "id", "-o", "csv") == ['"id"', "1"]
    assert asked("changes", file, "s.t", "--start", between, "--columns", "id", "-o", "csv") == ['"id"', "2"]
    assert asked("as-of", file, "s.t", "--at", between, "-o", "csv") == ['"id"', "1"]
    assert asked("current", file, "s.t", "-o", "csv") == asked(
        "as-of", file, "s.t", "--at", "now", "-o", "csv"
    )
    assert any(xid in line.split() for line in asked("transactions", file, "s.t"))


def one(db: psycopg.Connection, statement: str) -> str:
    row = db.execute(statement).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return str(row[0])


def asked(*words: str) -> list[str]:
    done = CliRunner().invoke(app, ["query", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()
