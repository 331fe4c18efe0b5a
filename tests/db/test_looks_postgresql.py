"""The look at a batch's rows in a database, until the batch's transaction: what others do meanwhile is met."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from tailrace.apply.targets.postgresql import stage as staging
from tailrace.apply.targets.postgresql.foreign_writes import Looked, unchanged
from tailrace.apply.targets.postgresql.place import locked
from tailrace.apply.targets.postgresql.target import PostgresTarget
from tailrace.apply.tasks import Parts
from tailrace.errors import ConcurrentCommitError
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
    PostgresTarget(None, database, task="t").maintain(RELATION.table, 2, 3600.0)  # type: ignore[arg-type]
    with (
        locked(table.place, "t", RELATION.table) as on,
        pytest.raises(ConcurrentCommitError, match="the look at rows of the batch is gone") as told,
        on.transaction(),
        unchanged(on, [made], "s.t"),
    ):
        pass
    assert (told.value.where, told.value.hint) == ("s.t", "nothing was written; it begins anew")
