"""The conformance suite on PostgreSQL targets, and what only they have to stand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace.apply.target_mode import relation_of
from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError, BaselineNeededError, ConfigError
from tailrace.model.change import ChangeTable, Column, Relation
from tailrace.model.positions import ChangeRange
from tailrace.targets.base import Target
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.merge_result import ApplyOutcome
from tailrace.targets.merge_rows import merge_rows
from tailrace.targets.multi_source import TargetLocation
from tailrace.targets.postgresql.target import PostgresTarget
from tailrace.testing.images import ID, RELATION, V, image, merge_images, move
from tailrace.testing.mapped_targets import MappedTargetConformance, locations
from tailrace.testing.targets import TargetConformance
from tests.spark.literal_tables import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.db

SPARK_TYPES = {"integer": "int", "bigint": "bigint", "text": "string", "numeric": "decimal(12,2)"}
LEFT = "select count(*) from pg_tables where schemaname = 'tailrace' and tablename like 'land%'"


@pytest.fixture
def target(spark: SparkSession, database: str) -> PostgresTarget:
    return PostgresTarget(spark, database, task="test")


class TestPostgres(TargetConformance):
    @pytest.fixture
    def target(self, spark: SparkSession, database: str) -> Target:
        self.database = database
        return PostgresTarget(spark, database, task="test")

    @pytest.fixture(autouse=True)
    def nothing_left(self, database: str) -> Iterator[None]:
        """Every table of a load is gone in the end, whatever happened."""
        yield
        with psycopg.connect(database) as db:
            assert db.execute(LEFT).fetchone() == (0,)

    def rows(self, spark: SparkSession, target: Target, table: str) -> DataFrame:
        return rows_of(spark, self.database, name_of(table))

    def sql(self, spark: SparkSession, target: Target, table: str, statement: str) -> None:
        with psycopg.connect(self.database) as db:
            db.execute(statement.format(name_of(table)).encode())

    def test_plans(self, spark: SparkSession, filled: Target) -> None:
        assert self.run(spark, filled, (4, "U", image(1, "A"))).plan == "upsert"
        done = self.run(spark, filled, *move(5, 1, image(9, "A")), (6, "U", {"id": 2, "v": "B"}))
        assert (done.inserted, done.updated, done.deleted) == (1, 1, 1)
        assert done.version is not None and done.version > 0
        assert filled.columns(RELATION.table) == {"id": "int", "v": "string", "Wide_Word": "decimal(12,2)"}

    def test_truncate_counts(self, spark: SparkSession, filled: Target) -> None:
        done = self.run(spark, filled, (4, "T", {}), (5, "I", image(1, "z")), (6, "D", {"id": 2}))
        assert (done.plan, done.inserted, done.updated, done.deleted) == ("replace_all", 1, 0, 3)
        self.same(spark, filled, (1, "z", 1.5))


class TestMapped(MappedTargetConformance):
    @pytest.fixture
    def target(self, spark: SparkSession, database: str) -> Target:
        self.database = database
        return PostgresTarget(spark, database, task="test", locations=locations)

    def rows(self, spark: SparkSession, target: Target, table: str) -> DataFrame:
        assert isinstance(target, PostgresTarget)
        return rows_of(spark, self.database, target.path(table))

    def sql(self, spark: SparkSession, target: Target, table: str, statement: str) -> None:
        assert isinstance(target, PostgresTarget)
        with psycopg.connect(self.database) as db:
            db.execute(statement.format(target.path(table)).encode())


def rows_of(spark: SparkSession, database: str, name: str) -> DataFrame:
    with psycopg.connect(database) as db:
        found = db.execute(f"select * from {name}")
        types = db.execute(
            "select attname, format_type(atttypid, null) from pg_attribute"
            " where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum",
            (name,),
        ).fetchall()
        ddl = ", ".join(f"`{name}` {SPARK_TYPES[kind]}" for name, kind in types)
        return table(spark, found.fetchall(), ddl)


def name_of(table: str) -> str:
    return ".".join(f'"{part}"' for part in table.split("."))


def content(database: str, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as db:
        return sorted(db.execute(f"select {columns} from {name_of(table)}").fetchall(), key=repr)


@pytest.mark.slow
def test_two_threads_on_two_tables(spark: SparkSession, database: str) -> None:
    target = PostgresTarget(spark, database, task="test")
    tables = [replace(RELATION, name=f"t{n}") for n in range(2)]

    def follow(relation: Relation) -> int | None:
        for k in range(4):
            rows = [(10 * k + n, "U", image(n, f"w{k}")) for n in range(1, 9)]
            merge_images(spark, target, relation, rows)
        return target.progress(relation.table)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(follow, tables)) == [38, 38]
    for one in tables:
        assert [r[1] for r in content(database, one.table)] == ["w3"] * 8


def test_a_table_made_by_hand_gets_the_column_of_soft_delete(
    spark: SparkSession, database: str, target: PostgresTarget
) -> None:
    for has in ("", ", _deleted text"):
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("drop schema if exists shop, tailrace cascade; create schema shop")  # type: ignore
            db.execute(
                f'create table shop.item (id int primary key, v text, "Wide_Word" numeric(12, 2){has})'
            )  # type: ignore
        target.alter(RELATION.table, RELATION, relation_of(RELATION, Rules.of("soft_delete", {})))
        assert content(database, "shop.item") == []
        with psycopg.connect(database) as db:
            found = db.execute(
                "select attname from pg_attribute where attrelid = 'shop.item'::regclass and attnum > 0"
            )
            assert [n for (n,) in found] == ["id", "v", "Wide_Word", "_deleted"]


def test_a_load_that_the_database_refuses(spark: SparkSession, database: str) -> None:
    at = {
        "a.t": TargetLocation("all.t", {"site": "x"}),
        "b.t": TargetLocation("all.t", {"site": "x"}),
        "c.t": TargetLocation("all.t"),
    }
    target = PostgresTarget(spark, database, task="test", locations=at.__getitem__)
    relation = Relation(1, "a", "t", "d", (replace(V, name="site", key=True), ID))
    rows = spark.createDataFrame([("x", 1), ("x", 2)], "site string, id int")
    target.load(relation, rows, 3)
    with pytest.raises(BaselineNeededError, match="refuses rows"):
        target.load(relation, rows.unionAll(rows), 9)
    for other in ("b", "c"):
        with pytest.raises(
            BaselineNeededError, match=r"a\.t of the task test writes to .* cannot be distinguished"
        ):
            target.load(replace(relation, schema=other), rows, 9)
    assert (target.progress("a.t"), content(database, "all.t")) == (3, [("x", 1), ("x", 2)])


def test_names(spark: SparkSession, database: str, target: PostgresTarget) -> None:
    odd = Relation(7, 'Sh"op', "100% of `it`", "d", (ID, Column("a b.c%s\"`'", 2, "text", "text", "string")))
    rows = [(1, "I", {"id": 1, odd.columns[1].name: "x"}), (2, "U", {"id": 1, odd.columns[1].name: "y"})]
    assert merge_images(spark, target, odd, rows).inserted == 1
    with psycopg.connect(database) as db:
        assert db.execute(f"select * from {target.path(odd.table)}").fetchall() == [(1, "y")]
    long = RELATION.with_columns([ID, replace(V, name="x" * 64)])
    with pytest.raises(ConfigError, match="63 bytes"):
        merge_images(spark, target, replace(long, name="other"), [(1, "I", {"id": 1})])


def test_layouts_where_names_and_keys_change(
    spark: SparkSession, database: str, target: PostgresTarget
) -> None:
    a, b = Column("a", 2, "integer", "int4", "int"), Column("b", 3, "integer", "int4", "int")
    start = Relation(1, "s", "t", "d", (ID, a, b))
    merge_images(spark, target, start, [(1, "I", {"id": 1, "a": 10, "b": 20})])
    swapped = start.with_columns([ID, replace(a, name="b"), replace(b, name="a")])
    for _ in range(2):
        target.alter("s.t", start, swapped)
        assert content(database, "s.t", "id, a, b") == [(1, 20, 10)]
    again = swapped.with_columns([ID, replace(a, name="b"), replace(b, name="a", attnum=4, missing="5")])
    target.alter("s.t", swapped, again)
    assert content(database, "s.t", "id, a, b") == [(1, 5, 10)]
    rekeyed = again.with_columns([replace(ID, key=False), replace(a, name="b", key=True), again.columns[2]])
    target.alter("s.t", again, rekeyed)
    done = merge_images(spark, target, rekeyed, [(2, "U", {"id": None, "b": 10, "a": 6})])
    assert (done.updated, content(database, "s.t", "id, a, b")) == (1, [(None, 6, 10)])
    bag = rekeyed.with_columns([replace(c, key=False) for c in rekeyed.columns])
    target.alter("s.t", rekeyed, bag)
    done = merge_images(spark, target, bag, [(3, "D", {"id": None, "b": 10, "a": 6})])
    assert (done.deleted, content(database, "s.t")) == (1, [])
    with pytest.raises(ApplyError, match="another layout"):
        merge_images(spark, target, start, [(9, "I", {"id": 1, "a": 10, "b": 20})])


@pytest.mark.slow
def test_100_000_changes_in_bulk(
    spark: SparkSession, database: str, target: PostgresTarget, tmp_path: Path, capsys: Any
) -> None:
    """Half of them updates, a tenth deletes, the rest inserts, over 200,000 rows; next to single upserts."""
    from pyspark.sql import functions as F

    def changes(first: int, count: int, keys: str, oper: str) -> ChangeTable:
        seq = F.concat(F.lit("2026010100000000"), F.lpad((F.col("id") + first).cast("string"), 19, "0"))
        df = spark.range(count).select(
            seq.alias("header__change_seq"),
            F.expr(oper).alias("header__change_oper"),
            F.expr(f"cast({keys} as int)").alias("id"),
            F.concat(F.lit("word "), F.col("id").cast("string")).alias("v"),
            F.expr("cast(id % 1000 as decimal(12,2))").alias("Wide_Word"),
        )
        return ChangeTable(df, ["id"], ["id", "v", "Wide_Word"])

    def merged(rows: ChangeTable, end: int) -> ApplyOutcome:
        return merge_rows(
            target, rows, ChangeBatch(RELATION.table, RELATION, ChangeRange(None, end)), str(tmp_path)
        )

    merged(changes(1, 200_000, "id", "'I'"), 200_000)
    oper = "case when id % 10 < 5 then 'U' when id % 10 = 5 then 'D' else 'I' end"
    keys = "case when id % 10 < 6 then id * 2 else 200000 + id end"
    done = merged(changes(200_001, 100_000, keys, oper), 300_000)
    assert (done.inserted, done.updated, done.deleted) == (40_000, 50_000, 10_000)
    with psycopg.connect(database) as db:
        row = db.execute(
            "select count(*), count(*) filter (where v = 'word ' || id / 2) from shop.item"
        ).fetchone()
    assert row is not None and row[0] == 230_000
    single = singles(database, 20_000)
    with capsys.disabled():
        print(json.dumps({"bulk_s": round(done.seconds, 2), "executemany_s_for_20000": round(single, 2)}))
    assert done.seconds < 60


def singles(database: str, count: int) -> float:
    """Seconds for that many upserts one by one, in one transaction, by psycopg's executemany."""
    upsert = (
        'insert into shop.item (id, v, "Wide_Word") values (%s, %s, %s)'
        ' on conflict (id) do update set v = excluded.v, "Wide_Word" = excluded."Wide_Word"'
    )
    began = time.monotonic()
    with psycopg.connect(database) as db, db.cursor() as cursor:
        cursor.executemany(upsert, [(k * 2, f"w {k}", Decimal(k)) for k in range(count)])
    return time.monotonic() - began


def test_null_becomes_absent_only_when_the_mask_says_so(
    spark: SparkSession, database: str, target: PostgresTarget
) -> None:
    rows = [(1, "I", image(1, "a")), (2, "I", image(2, "b"))]
    merge_images(spark, target, RELATION, rows)
    more = [
        (3, "U", {"id": 1, "v": None}),
        (4, "U", {"id": 2, "Wide_Word": None}),
        (5, "U", {"id": 3, "v": "n"}),
    ]
    done = merge_images(spark, target, RELATION, more)
    assert (done.inserted, done.updated) == (1, 2)
    assert content(database, RELATION.table) == [
        (1, None, Decimal("1.50")), (2, "b", None), (3, "n", None),
    ]  # fmt: skip
