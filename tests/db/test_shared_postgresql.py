"""Two tasks with rows in one table of a database, without Spark: both write at once, and each has its own."""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tailrace.model.types import schema_of
from tailrace.targets import multi_source as shared
from tailrace.targets.merge_result import MergeResult
from tailrace.targets.parts import Parts
from tailrace.targets.postgresql import layout as postgresql_layout
from tailrace.targets.postgresql.chunk_merge import ChunkMerge
from tailrace.targets.postgresql.connection import locked_session
from tailrace.targets.postgresql.load import PostgresLanding, load

from ..spark.rules_model import RELATION, Change, history
from ..unit.test_audit import until_done
from .test_audit_postgresql import Table

pytestmark = pytest.mark.db


def part(root: Path, database: str, lane: int) -> Table:
    """A task's part of the table `all.t`: the rows of one lane."""
    at = shared.TargetLocation("all.t", {"lane": str(lane)})
    of = replace(RELATION, relid=lane + 1, schema=f"site{lane}")
    return Table(root / f"{lane}", database, "strict", {}, of=of, name=f"task{lane}", at=at)


def widen(table: Table) -> None:
    """`a` becomes a bigint, for which the server rewrites the whole table."""
    before = table.relation
    wide = [replace(c, type="bigint") if c.name == "a" else c for c in before.columns]
    table.relation = before.with_columns(wide)
    with locked_session(table.database, table.name, before.table) as on:
        postgresql_layout.alter(on, table.progress, before, table.relation)


def in_lane(changes: list[Change], lane: int) -> list[Change]:
    """The same changes of rows of that lane."""
    return [replace(c, old=c.old and (lane, c.old[1]), values=c.values | {"lane": lane}) for c in changes]


@pytest.mark.slow
def test_two_tasks_write_to_one_table_at_once(tmp_path: Path, database: str) -> None:
    """From its making on; one of them widens a column between."""
    seed, both = random.randrange(10**6), Barrier(2)

    def run(lane: int) -> Table:
        changes = in_lane(history(seed + lane, 1, 120), lane)
        both.wait(30)
        table = part(tmp_path, database, lane)
        for n in range(0, len(changes), 15):
            if (lane, n) == (0, 60):
                widen(table)
            until_done(table, changes[n : n + 15])
        return table

    with ThreadPoolExecutor(2) as pool:
        for table in pool.map(run, (0, 1)):
            table.same(f"seed {seed}")


def test_a_column_that_another_task_widens_meanwhile_hides_no_rows(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the snapshot, and before the look at the keys: the other task has to wait."""
    mine, other = (part(tmp_path, database, lane) for lane in (0, 1))
    until_done(mine, in_lane([change(1, "I", "p"), change(2, "I", "q")], 0))
    real, widening = ChunkMerge.read_rows, list[Future[None]]()

    def raced(merge: Any, *given: Any) -> None:
        widening.append(pool.submit(widen, other))
        assert not wait(widening, 0.3).done
        real(merge, *given)

    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr(ChunkMerge, "read_rows", raced)
        done = mine.apply([change(3, "D", "p"), change(4, "U", "q")])
        widening[0].result(30)
    assert isinstance(done, MergeResult) and dict(done.tally) == {}
    assert mine.rows() == [(0, "q", 4, "q")]


BY_HAND = """
create schema "all";
create table "all".t (lane int, id text, a int, b text, mine int default 7, primary key (lane, id))
"""


def resync(table: Table, *keys: str) -> None:
    """A new baseline of a lane, of these keys."""
    lane = int(table.progress.partition(table.relation.table)["lane"])
    rows = [{"lane": lane, "id": k, "a": 1, "b": k} for k in keys]
    batches = pa.Table.from_pylist(rows, schema_of(table.relation.columns)).to_batches()
    landing = PostgresLanding(table.database, table.name, at=table.at)
    load(landing, table.relation, Parts(("all",), lambda _: batches), 9)


def removed(table: Table) -> None:
    """`tailrace remove --drop-target`."""
    PostgresLanding(table.database, table.name, at=table.at).drop(table.relation.table)


@pytest.mark.parametrize(
    ("first", "ends", "of_one_row"),
    [(resync, removed, False), (removed, resync, False), (resync, resync, True), (removed, removed, True)],
    ids=["resync, remove", "remove, resync", "resync, earlier release", "remove, earlier release"],
)
def test_a_shared_table_made_by_hand_stays_whoever_goes(
    tmp_path: Path, database: str, db: psycopg.Connection, first: Any, ends: Any, of_one_row: bool
) -> None:
    db.execute(BY_HAND)
    eu, us = (part(tmp_path, database, lane) for lane in (0, 1))
    if of_one_row:
        db.execute("update tailrace.tailrace_progress set adopted = task = 'task0'")
    resync(us, "x")
    first(eu)
    if first is resync:
        removed(eu)
    ends(us)
    assert db.execute('select lane, id, a, b, mine from "all".t').fetchall() == []
    back = part(tmp_path / "again", database, 0) if ends is resync else None
    if back:  # it comes to the other one again, and says the same
        removed(us)
        resync(back, "y")
        assert db.execute('select lane, id, a, b, mine from "all".t').fetchall() == [(0, "y", 1, "y", 7)]


def test_a_shared_table_that_is_made_anew_is_ours(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """Somebody dropped the one that was made by hand: no row says any more that it was."""
    db.execute(BY_HAND)
    eu, us = (part(tmp_path, database, lane) for lane in (0, 1))
    db.execute('drop table "all".t')
    resync(us, "x")
    resync(eu, "y")
    assert sorted(db.execute('table "all".t').fetchall()) == [(0, "y", 1, "y"), (1, "x", 1, "x")]
    removed(us)
    removed(eu)
    assert db.execute("select to_regclass('\"all\".t')").fetchall() == [(None,)]


def change(number: int, oper: str, key: str) -> Change:
    rest = {} if oper == "D" else {"a": number, "b": key}
    return Change(number, oper, None, {"lane": 0, "id": key} | rest)
