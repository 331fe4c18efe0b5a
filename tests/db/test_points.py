"""Processes end at the fail points that need a server; the next ones go on, and all is there once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from tailrace.capture import part_readers
from tailrace.capture.process import Capture
from tailrace.errors import SourceError
from tailrace.lake import delta as lake
from tailrace.lake import failpoints, log
from tailrace.model.types import schema_of
from tailrace.state.baselines import read_baselines
from tailrace.targets.postgresql.connection import Database, locked_session
from tailrace.targets.postgresql.load import PostgresLanding
from tailrace.targets.postgresql.progress import ProgressTable
from tailrace.testing.images import RELATION, image

from ..ending import ends
from .test_audit_postgresql import START, Table
from .test_slot import ids, task

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.db

KILLED = ("capture.slot", "baseline.part", "baseline.landed")
"""Fail points at which capture's process is killed."""
BATCH = ("postgresql.land", "postgresql.commit", "postgresql.committed")
ENDS = (*KILLED, *BATCH)
"""The fail points at which tests of this file end."""


@pytest.mark.slow
def test_capture_is_killed_while_it_begins(tmp_path: Path, database: str, db: psycopg.Connection) -> None:
    """Each time a row comes before the next start; the last baseline has them all."""
    db.execute("create schema s; create table s.a (id int primary key)")
    one = task(tmp_path, database)
    command = [sys.executable, "-m", "tailrace", "capture", str(tmp_path / "shop.yaml"), "--once"]
    for n, point in enumerate(KILLED, 1):
        db.execute("insert into s.a values (%s)", (n,))
        env = os.environ | {failpoints.VARIABLE: point}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == -9, done.stderr
    assert ids(one, "s.a") == [1, 2, 3]  # which nobody has recorded
    db.execute("insert into s.a values (4)")
    Capture(one, once=True).run()
    assert ids(one, "s.a") == [1, 2, 3, 4]
    assert read_baselines(one.control_path("baselines"))["s.a"].number == 1
    rows = lake.read(one.log_path, ["RECID", "CHANGE_SEQ"]).to_pylist()
    # The first slot went with the row 2.
    assert sum(r["RECID"] == log.INSERT for r in rows) == 2
    assert len({r["CHANGE_SEQ"] for r in rows}) == len(rows)


@pytest.mark.slow
def test_a_process_that_reads_a_baseline_is_killed(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute("create schema s; create table s.a as select 1 id; alter table s.a replica identity full")
    one = task(tmp_path, database)
    monkeypatch.setattr(part_readers, "FEW_ROWS", 0)
    with monkeypatch.context() as patch:
        patch.setenv(failpoints.VARIABLE, "baseline.part")
        with pytest.raises(SourceError, match="a process that was reading a part of the baseline died"):
            Capture(one, once=True).run()
    assert ids(one, "s.a") == []
    Capture(one, once=True).run()
    assert ids(one, "s.a") == [1]


def test_a_batch_is_rolled_back_or_there_once(tmp_path: Path, database: str) -> None:
    table = Table(tmp_path, database, "strict", {})
    for c in START:
        table.model.apply(c)
    with ends("postgresql.commit"):
        table.apply(START)
    assert table.rows() == []
    with ends("postgresql.committed"):
        table.apply(START)
    assert len(table.rows()) == 3
    again = table.merge(START)
    assert again is not None and again[1] is None
    assert table.rows() == sorted(table.model.state(), key=repr)


def test_a_baseline_becomes_the_target_at_once(database: str, db: psycopg.Connection) -> None:
    place = Database.of(f"{database}&schema=lake")

    def life(*keys: int) -> None:
        landing = PostgresLanding(place, "t").begin(RELATION)
        part = landing.part(RELATION)
        rows = [image(k, "x") for k in keys]
        part.write(pa.RecordBatch.from_pylist([{**r, "Wide_Word": None} for r in rows], schema_of(RELATION.columns)))  # fmt: skip
        part.close()
        landing.commit(RELATION, [], max(keys))

    def found() -> tuple[list[tuple[int]], int]:
        with locked_session(place, "t", RELATION.table) as on:
            reached = ProgressTable(place, "t").read(on, RELATION.table)
        assert reached is not None
        return db.execute("select id from lake.item order by 1").fetchall(), reached.number

    life(1, 2)
    with ends("postgresql.land"):
        life(1, 3)
    assert found() == ([(1,), (2,)], 2)
    life(1, 3)
    assert found() == ([(1,), (3,)], 3)
