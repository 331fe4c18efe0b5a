"""The look at a batch's rows in a database, until the batch's transaction: what others do meanwhile is met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tailrace.apply.plan import Folded, TableBatch
from tailrace.apply.targets.outcome import ApplyOutcome
from tailrace.apply.targets.postgresql import stage as staging
from tailrace.apply.targets.postgresql.batch import PostgresBatch
from tailrace.apply.targets.postgresql.foreign_writes import Looked, unchanged
from tailrace.apply.targets.postgresql.notes import Notes
from tailrace.apply.targets.postgresql.place import locked
from tailrace.apply.targets.postgresql.target import PostgresTarget
from tailrace.apply.targets.postgresql.write import StagedWriter
from tailrace.apply.tasks import Parts
from tailrace.engine.columns import KEPT, OP
from tailrace.errors import ConcurrentCommitError
from tailrace.lake.thinning import Past
from tailrace.model.change import ChangeTable
from tailrace.model.types import schema_of

from ..spark.rules_model import RELATION
from .test_audit_postgresql import START, Table

pytestmark = pytest.mark.db


def look(table: Table, *keys: str) -> Looked:
    """What `PostgresTarget.look` leaves behind."""
    prefix, target = staging.prefix(table.name, RELATION.table), table.progress.target(RELATION.table)
    of_keys = RELATION.with_columns([c for c in RELATION.columns if c.key])
    rows = pa.Table.from_pylist([{"lane": 0, "id": k} for k in keys], schema_of(of_keys.columns))
    with locked(table.place, table.name, RELATION.table) as on:
        parts = Parts(("all",), lambda _: rows.to_batches())
        staged = staging.stage(on, table.place, f"{prefix}look", parts, of_keys, (), target)
        made = Looked(table.place.own(f"{prefix}looked"), target, RELATION)
        made.take(on, staged)
        staging.drop(on, staged.table)
    return made


def test_a_look_that_maintenance_took_away_is_taken_anew(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """Maintenance runs beside apply, which has no lock between its look and its transaction."""
    table = Table(tmp_path, database, "strict", {})
    table.apply(START)
    made = look(table, "p", "q", "new")
    with locked(table.place, "t", RELATION.table) as on, on.transaction(), unchanged(on, [made], "s.t"):
        pass
    target = PostgresTarget(None, database, task="t")  # type: ignore[arg-type]
    while db.execute("select to_regclass(%s)", (made.table,)).fetchone() != (None,):
        target.maintain(
            RELATION.table, 2, Past(3600.0)
        )  # not while the server still ends the session from before
    with (
        locked(table.place, "t", RELATION.table) as on,
        pytest.raises(ConcurrentCommitError, match="the look at rows of the batch is gone") as told,
        on.transaction(),
        unchanged(on, [made], "s.t"),
    ):
        pass
    assert (told.value.where, told.value.hint) == ("s.t", "nothing was written; it begins anew")


def commits(table: Table, rows: list[dict[str, Any]]) -> ApplyOutcome:
    """Rows that are left of changes, with what they keep of the target's, in a batch's transaction."""
    columns = RELATION.columns
    schema = pa.schema([pa.field(OP, pa.string()), pa.field(KEPT, pa.string()), *schema_of(columns)])
    parts = Parts(("all",), lambda _: pa.Table.from_pylist(rows, schema).to_batches())
    changes = ChangeTable(None, RELATION.key, [])  # type: ignore[arg-type]
    folded = Folded(None, (OP, KEPT))  # type: ignore[arg-type]
    batch = TableBatch(RELATION.table, RELATION, changes, 9, folded=folded)
    with locked(table.place, table.name, RELATION.table) as on:
        reached = table.progress.read(on, RELATION.table)
        assert reached is not None
        target = table.progress.target(RELATION.table)
        staged = staging.stage(on, table.place, "stage_9", parts, RELATION, (OP, KEPT), target)
        job = PostgresBatch(None, on, table.place, table.progress, batch, reached, "stage_9")  # type: ignore[arg-type]
        job.__dict__["folded"] = folded
        return job.commit(staged, Notes(table.place, table.name), None)


def test_a_row_that_comes_between_two_statements_gets_the_update(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first finds no row to change in part, the second one that is there, as if that had been changed."""
    table = Table(tmp_path, database, "strict", {})
    real, attempts = StagedWriter.update_partly, list[int]()

    def raced(to: StagedWriter) -> int:
        found = real(to)
        attempts.append(found)
        if len(attempts) == 1:
            db.execute("insert into s.t values (0, 'p', 1, 'theirs')")
        return found

    monkeypatch.setattr(StagedWriter, "update_partly", raced)
    update = [{OP: "U", KEPT: "0001", "lane": 0, "id": "p", "a": 2, "b": None}]
    with pytest.raises(ConcurrentCommitError, match="somebody else changed rows of the batch"):
        commits(table, update)
    assert table.rows() == [(0, "p", 1, "theirs")]
    done = commits(table, update)  # as `PostgresTarget.apply` does by itself
    assert (done.inserted, done.updated, attempts) == (0, 1, [0, 1])
    assert table.rows() == [(0, "p", 2, "theirs")]
