"""The values of every type in PostgreSQL targets: extremes arrive as they are, impossible ones are refused."""

from __future__ import annotations

import math
from decimal import Decimal
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from tailrace.errors import ApplyError
from tailrace.model import sequence
from tailrace.model.change import HEADERS, PREFIX, ChangeTable, Column, Relation
from tailrace.model.positions import ChangeRange
from tailrace.model.types import header_schema, schema_of
from tailrace.sources.postgresql.connect import connect
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.merge_result import ApplyOutcome
from tailrace.targets.merge_rows import merge_rows
from tailrace.targets.postgresql.layout import definition
from tailrace.targets.postgresql.target import PostgresTarget
from tailrace.targets.postgresql.types import sql_type
from tailrace.targets.postgresql.values import read_csv, select_cells
from tailrace.testing.images import merge_images, move
from tailrace.wire import pgbinary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.db


@pytest.fixture
def target(spark: SparkSession, database: str) -> PostgresTarget:
    return PostgresTarget(spark, database, task="test")


TYPES = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [math.nan, math.inf, -math.inf, -0.0, 3.4028234663852886e38, 1e-45],
    "double": [math.nan, math.inf, -math.inf, -0.0, 1.7976931348623157e308, 5e-324],
    "decimal(38,0)": [Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0)],
    "decimal(38,38)": [Decimal("0." + "9" * 38), Decimal("-0." + "0" * 37 + "1")],
    "decimal(12,2)": [Decimal("9999999999.99"), Decimal("-0.01"), Decimal("100.00")],
    "decimal(5,5)": [Decimal("0.00001"), Decimal("-0.99999")],
    "string": [
        "",
        "\\N",
        "NULL",
        'a"b,\t\n\r\\.',
        "{1,NULL,3}",
        "é\U0001f600\ufeff",
        "\x01\x7f",
        "x" * 70_000,
    ],
    "binary": [b"", bytes(range(256)), b"\\x00"],
    "date": [-2_451_545 + 10_957 - 0, 2_932_896, 0, -719_162, 10_957 + 2_145_031_948],
    "timestamp_ntz": [
        0,
        253_402_300_799_999_999,
        -62_135_596_800_000_000,
        -210_863_520_000_000_000,
        2**63 - 1 - 10**14,
    ],
    "timestamp": [1, 253_402_300_799_999_999, -62_135_596_800_000_001, 9_224_318_015_999_999_999 - 10**15],
}
"""Extreme values of each lake type; dates as days, times as microseconds since 1970."""


def insert(
    spark: SparkSession, target: PostgresTarget, columns: dict[str, list[Any]], kinds: dict[str, str]
) -> tuple[Relation, ApplyOutcome]:
    """Inserts rows of whole columns."""
    size = len(next(iter(columns.values())))
    data = [Column("id", 1, "integer", "int4", "int", key=True)]
    data += [Column(n, k, kind, kind, kind) for k, (n, kind) in enumerate(kinds.items(), 2)]
    relation = Relation(5, "x", "types", "d", tuple(data))
    schema = pa.schema([*header_schema(), *schema_of(relation.columns)])
    arrays: list[Any] = []
    for name in HEADERS:
        known = {
            "change_seq": [sequence.make(2026010100000000, k + 1) for k in range(size)],
            "change_oper": ["I"] * size,
        }
        arrays.append(pa.array(known.get(name, [None] * size), schema.field(PREFIX + name).type))
    arrays.append(pa.array(range(size), pa.int32()))
    for name, kind in kinds.items():
        type_ = schema.field(name).type
        if kind.startswith(("date", "timestamp")):
            raw = pa.int32() if kind == "date" else pa.int64()
            arrays.append(pa.array(columns[name], raw).cast(type_))
        else:
            arrays.append(pa.array(columns[name], type_))
    df = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))
    table = ChangeTable(df, ["id"], relation.key and [c.name for c in relation.columns])
    read_csv = ChangeBatch(relation.table, relation, ChangeRange(None, size))
    with TemporaryDirectory() as folder:
        return relation, merge_rows(target, table, read_csv, folder)


@pytest.mark.slow
def test_extreme_values_of_each_type(spark: SparkSession, database: str, target: PostgresTarget) -> None:
    size = max(map(len, TYPES.values())) + 1
    columns = {f"c{k}": [*v, *[None] * (size - len(v))] for k, v in enumerate(TYPES.values())}
    kinds = {f"c{k}": kind for k, kind in enumerate(TYPES)}
    _, done = insert(spark, target, columns, kinds)
    assert done.inserted == size
    shown = []
    for name, kind in kinds.items():
        if kind == "date":
            shown.append(f"{name} - date '1970-01-01'")
        elif kind in {"timestamp_ntz", "timestamp"}:
            shown.append(f"(extract(epoch from {name}) * 1000000)::bigint")
        else:
            shown.append(name)
    with psycopg.connect(database) as db:
        found = db.execute(f"select {', '.join(shown)} from x.types order by id").fetchall()
    for k, (kind, want) in enumerate(zip(TYPES, columns.values(), strict=True)):
        have = [row[k] for row in found]
        if kind == "float":  # its text is the shortest that is the same in 32 bits
            assert repr(np.array(have, np.float32)) == repr(np.array(want, np.float32))
        else:
            assert repr(have) == repr(want), kind


def test_values_are_read_back_as_they_were_written(database: str) -> None:
    """With the kinds of nobody's columns: a vendor's change table knows the lake's types alone."""
    size = max(map(len, TYPES.values())) + 1
    columns = [Column(f"c{k}", k, kind, kind, kind) for k, kind in enumerate(TYPES)]
    relation, schema = Relation(5, "x", "types", "d", tuple(columns)), schema_of(columns)
    arrays = []
    for kind, values, type_ in zip(TYPES, TYPES.values(), schema.types, strict=True):
        raw = pa.int32() if kind == "date" else pa.int64() if kind.startswith("timestamp") else type_
        arrays.append(pa.array([*values, *[None] * (size - len(values))], raw).cast(type_))
    wrote = pa.record_batch(arrays, schema=schema)
    with connect(database) as on, on.cursor() as cursor:
        cursor.execute(f"create table public.types ({definition(relation)})".encode())
        with cursor.copy("copy public.types from stdin (format binary)") as out:
            for data in (pgbinary.HEADER, *pgbinary.rows(wrote), pgbinary.TRAILER):
                out.write(data)
        ask = f"copy (select {select_cells(columns)} from public.types t) to stdout (format csv)".encode()

        def read() -> pa.RecordBatch:
            with cursor.copy(ask) as out:
                return read_csv(columns, b"".join(out), "here")

        for name, one in zip(schema.names, wrote.columns, strict=True):
            assert repr(read()[name].to_numpy(zero_copy_only=False)) == repr(
                one.to_numpy(zero_copy_only=False)
            )
        times = [c for c in columns if c.type.startswith(("date", "timestamp"))]
        ends = ", ".join(
            f"{c.name} = case when c3 > 0 then 'infinity'::{sql_type(c.type)} else '-infinity' end"
            for c in times
        )
        cursor.execute(f"update public.types set {ends} where c3 is not null".encode())
        found = read().filter(read()["c3"].is_valid()).select([c.name for c in times])
        assert [[str(v) for v in column.to_pylist()] for column in found.columns] == [
            ["0001-01-01", "9999-12-31"],
            ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"],
            ["0001-01-01 00:00:00+00:00", "9999-12-31 23:59:59.999999+00:00"],
        ]
        cursor.execute(b"update public.types set c9 = 'NaN'")
        with pytest.raises(ApplyError, match="values of c9 that the lake's types cannot hold"):
            read()


@pytest.mark.slow
def test_a_row_that_moves_takes_values_of_each_type_along(
    spark: SparkSession, database: str, target: PostgresTarget
) -> None:
    """Of a vendor's change: it names the key alone."""
    columns = {f"c{k}": v[-1:] for k, v in enumerate(TYPES.values())}
    relation, _ = insert(spark, target, columns, {f"c{k}": kind for k, kind in enumerate(TYPES)})

    def rows() -> list[Any]:
        with psycopg.connect(database) as db:
            return db.execute(
                "select id, md5(row_to_json(t)::jsonb #- '{id}' #>> '{}') from x.types t"
            ).fetchall()

    ((_, before),) = rows()
    moves = [*move(2, 0, {"id": 7}), *move(3, 7, {"id": 8})]
    merge_images(spark, target, relation, moves)
    assert rows() == [(8, before)]


@pytest.mark.slow
def test_values_that_postgresql_cannot_hold(
    spark: SparkSession, database: str, target: PostgresTarget
) -> None:
    bad = {"string": "a\0b", "date": -(2**31) + 1, "timestamp_ntz": -(2**63) + 1}
    for kind, value in bad.items():
        with pytest.raises(ApplyError, match="cannot hold a change: c is beyond"):
            insert(spark, target, {"c": ["x" if kind == "string" else 0, value]}, {"c": kind})
        with psycopg.connect(database) as db:
            db.execute("drop table x.types")
    assert target.progress("x.types") is None
