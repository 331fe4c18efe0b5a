"""The key log's row counts against a real database that gets the same changes one statement at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable
from deltalake.schema import Field, PrimitiveType, Schema

from tailrace.apply.rules import RulesApplier
from tailrace.apply.vendor.applier import VendorApplier
from tailrace.engine.rules import Rules
from tailrace.keylog.key_log import KeyLog
from tailrace.lake import delta as lake
from tailrace.targets.delta.target import DeltaTarget
from tailrace.testing.images import change_table
from tests.spark.literal_tables import rows_at

from ..spark.rules_model import (
    CHECK,
    RELATION,
    Change,
    Model,
    columns_of,
    held,
    history,
    logged,
    spoiled,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.db

TABLE = "create table t (lane int, id text, a int, b text, primary key (lane, id))"
NARROW = (
    "alter table {table} alter a type smallint, alter b type varchar(8), alter b set not null,"
    f" add check ({CHECK})"
)
AT = "lane = %(lane)s and id = %(id)s"
OLD = "lane = %(old_lane)s and id = %(old_id)s"
NEW = {"lane": None, "id": None, "a": None, "b": None}


def run(db: psycopg.Connection[Any], text: str, values: Mapping[str, Any]) -> int:
    return db.execute(text, values).rowcount


def strict(db: psycopg.Connection[Any], c: Change) -> int | None:
    """One statement a change; a row that is in the way keeps it from being done."""
    names = list(c.values)
    sets = ", ".join(f"{n} = %({n})s" for n in names)
    values = NEW | c.values
    if c.oper == "T":
        run(db, "truncate t", {})
        return None
    if c.oper == "I":
        return run(
            db, f"insert into t ({', '.join(names)}) values ({marks(names)}) on conflict do nothing", values
        )
    if c.oper == "D":
        return run(db, f"delete from t where {AT}", values)
    if moved(c):
        free = f"not exists (select from t where {AT})"
        return run(db, f"update t set {sets} where {OLD} and {free}", values | old(c))
    return run(db, f"update t set {sets} where {AT}", values)


def upsert(db: psycopg.Connection[Any], c: Change) -> int | None:
    """As many statements as it takes; the rows of all of them."""
    names = list(c.values)
    sets = ", ".join(f"{n} = %({n})s" for n in names)
    values = NEW | c.values
    whole = ", ".join(f"{n} = excluded.{n}" for n in NEW)
    insert = f"insert into t ({', '.join(NEW)}) values ({marks(list(NEW))}) on conflict (lane, id) do update set {whole}"
    if c.oper in "TD":
        return strict(db, c)
    if c.oper == "I":
        return run(db, insert, values)
    done = 0
    if moved(c):
        values |= old(c)
        done += run(db, f"delete from t where {AT} and exists (select from t where {OLD})", values)
        done += run(db, f"update t set {sets} where {OLD}", values)
    else:
        done += run(db, f"update t set {sets} where {AT}", values)
    return done or run(db, insert, NEW | c.before | c.values)


def marks(names: list[str]) -> str:
    return ", ".join(f"%({n})s" for n in names)


def moved(c: Change) -> bool:
    return c.old is not None and c.old != (c.values["lane"], c.values["id"])


def old(c: Change) -> dict[str, Any]:
    return {} if c.old is None else {"old_lane": c.old[0], "old_id": c.old[1]}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["strict", "upsert"])
def test_row_counts_are_a_databases(spark: SparkSession, database: str, tmp_path: Path, mode: str) -> None:
    seed = random.randrange(10**6)
    changes = history(seed, 20, 12, truncate=True)
    one = strict if mode == "strict" else upsert
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(TABLE)
        counts = {c.number: one(db, c) for c in changes}
        rows = sorted(db.execute("select lane, id, a, b from t").fetchall())
    target = DeltaTarget(spark, str(tmp_path / "lake"), app_id="t")
    log = KeyLog(str(tmp_path / "keylog"), app_id="t", run_id="1")
    under = RulesApplier(target, Rules.of(mode), root=str(tmp_path / "lake"), task="t", keylog=log)
    applier = VendorApplier(under, str(tmp_path / "lake"))
    for part in (changes[: len(changes) // 3], changes):
        images = [i for c in part for i in c.images]
        applier.apply(replace(change_table(spark, RELATION, images), name=RELATION.table))
    found = rows_at(spark, log.path).select("change_row_counter", "result_row_count").collect()
    assert {r[0]: r[1] for r in found} == counts, f"seed {seed}"
    assert len(found) == len(changes)
    have = rows_at(spark, target.path(RELATION.table)).select("lane", "id", "a", "b").collect()
    assert sorted(map(tuple, have)) == rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["strict", *(pytest.param(m, marks=pytest.mark.slow) for m in ("upsert", "soft_delete"))]
)
def test_bad_changes_are_set_aside_as_among_single_statements(
    spark: SparkSession, database: str, tmp_path: Path, mode: str
) -> None:
    """A CHECK over two columns, NOT NULL and two narrower types; images are whole, keys change."""
    seed = random.randrange(10**6)
    changes = [whole(c) for c in spoiled(history(seed, 4, 12, truncate=True))]
    rules = Rules.of(mode, {"data_error": "log"})
    model = Model(mode, rules.on, holds=held)
    for c in changes:
        model.apply(c)
    if mode != "soft_delete":
        counts = {n: many for n, _, _, many, *_ in model.log}
        assert (model.state(), counts) == singly(database, mode, changes), f"seed {seed}"
    target = DeltaTarget(spark, str(tmp_path / "lake"), app_id="t")
    log = KeyLog(f"{tmp_path}/keylog", app_id="t", run_id="1")
    under = RulesApplier(target, rules, root=f"{tmp_path}/control", task="t", keylog=log)
    applier = VendorApplier(under, f"{tmp_path}/control")
    narrow(spark, target.path(RELATION.table))
    for part in (changes[: len(changes) // 3], changes)[mode != "soft_delete" :]:
        images = [i for c in part for i in c.images]
        applier.apply(replace(change_table(spark, RELATION, images), name=RELATION.table))
    assert logged(lake.read(log.path).to_pylist()) == model.log, f"seed {seed}"
    rows = lake.read(target.path(RELATION.table), columns_of(mode)).to_pylist()
    found = [tuple((r | {"a": int(r["a"])}).values()) for r in rows]
    assert sorted(found, key=repr) == sorted(model.state(), key=repr), f"seed {seed}"


def whole(c: Change) -> Change:
    """A change whose image has all columns: Delta's constraints are held against no other."""
    if c.oper in "DT":
        return c
    values = {"a": c.number, "b": f"v{c.number}", **c.values}
    return replace(c, values={name: values[name] for name in NEW})


def singly(
    database: str, mode: str, changes: list[Change]
) -> tuple[list[tuple[Any, ...]], dict[int, int | None]]:
    """The rows and row counts of a table to which changes come by single statements."""
    one = strict if mode == "strict" else upsert
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(TABLE)
        db.execute(NARROW.format(table="t"))
        counts = {c.number: attempted(db, one, c) for c in changes}
        assert sum(1 for n in counts.values() if n == 0) > 9
        return sorted(db.execute("select lane, id, a, b from t").fetchall()), counts


def attempted(db: psycopg.Connection[Any], one: Any, c: Change) -> int | None:
    """The row count of a change; 0 of one that fails, which leaves nothing."""
    try:
        with db.transaction():
            return one(db, c)
    except (psycopg.errors.DataError, psycopg.errors.IntegrityError):
        return 0


def narrow(spark: SparkSession, path: str) -> None:
    """Makes the target as somebody else would have narrowed it."""
    kinds = {"lane": "integer", "id": "string", "a": "decimal(5,0)", "b": "string"}
    fields = [Field(n, PrimitiveType(kind), nullable=n != "b") for n, kind in kinds.items()]
    DeltaTable.create(path, Schema(fields))
    for name, check in {"both": CHECK, "short": "length(b) <= 8"}.items():
        spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT {name} CHECK ({check})")
