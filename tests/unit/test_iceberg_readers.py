"""Programs that read Iceberg tables without tailrace, as docs/iceberg.md lists them."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable, Table

from tailrace.lake.iceberg.commit import Commit
from tailrace.lake.iceberg.tables import IcebergTables
from tailrace.lake.iceberg.types import with_ids
from tailrace.model.types import arrow_type

pytestmark = pytest.mark.unit
Rows = list[dict[str, Any]]
KINDS = {
    "id": "int", "old": "string", "n": "decimal(12,2)", "at": "timestamp", "local": "timestamp_ntz", "day": "date",
    "small": "smallint", "x": "double", "b": "binary", "tags": "array<string>",
}  # fmt: skip
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901)
VALUES: list[tuple[Any, ...]] = [
    (1, "a", decimal.Decimal("1.50"), AT.replace(tzinfo=dt.timezone.utc), AT, AT.date(), 7, 0.5, b"\x00\xff", ["x", None]),
    (2, *[None] * 9),
]  # fmt: skip


def by_pyiceberg(table: Table) -> Rows:
    return list(table.scan().to_arrow().to_pylist())


def by_pyiceberg_from_a_file(table: Table) -> Rows:
    return list(StaticTable.from_metadata(table.metadata_location).scan().to_arrow().to_pylist())


def by_polars(table: Table) -> Rows:
    pl = pytest.importorskip("polars")
    return list(pl.scan_iceberg(table).collect().to_dicts())


def by_duckdb_over_arrow(table: Table) -> Rows:
    pytest.importorskip("duckdb")
    with table.scan().to_duckdb("rows") as on:
        return list(on.sql("select * from rows").to_arrow_table().to_pylist())


def by_duckdb(table: Table) -> Rows:
    duckdb, extension = pytest.importorskip("duckdb"), pytest.importorskip("duckdb_extension_iceberg")
    avro = pytest.importorskip("duckdb_extension_avro")
    with duckdb.connect() as on:
        for name, module in (("avro", avro), ("iceberg", extension)):
            home = Path(module.__file__).parent / "extensions" / f"v{duckdb.__version__}"
            on.load_extension(str(home / f"{name}.duckdb_extension"))
        rows = on.sql(f"select * from iceberg_scan('{table.metadata_location}')")
        return list(rows.to_arrow_table().to_pylist())


@pytest.mark.parametrize(
    "read", [by_pyiceberg, by_pyiceberg_from_a_file, by_polars, by_duckdb_over_arrow, by_duckdb]
)
def test_a_reader_finds_all_values_under_their_new_names(
    tmp_path: Path, read: Callable[[Table], Rows]
) -> None:
    """One file has an earlier name, a narrower type, and lacks a column."""
    said = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path)}
    tables = IcebergTables("test", tuple(sorted(said.items())), str(tmp_path))
    old = pa.schema([(name, arrow_type(kind)) for name, kind in KINDS.items()])
    tables.create("shop.item", old)
    now = tables.open("shop.item")
    part = now.files.part(old)
    part.write(pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(zip(*VALUES, strict=True), old, strict=True)], schema=old))  # fmt: skip
    now.exchange([], part.close_all(), "a", 1, {})

    now = tables.open("shop.item")
    new = pa.schema([("id", pa.int64()), ("word", pa.string()), *list(old)[2:], ("more", pa.string())])
    have = {("word" if one.name == "old" else one.name): one for one in now.iceberg_schema.fields}
    Commit("shop.item", now.table, schema=with_ids(new, have, now.table.metadata.last_column_id)).run()
    now = tables.open("shop.item")
    part = now.files.part(new)
    part.write(
        pa.table([[1 << 40], ["b"], *([None] for _ in KINDS if _ not in ("id", "old")), ["m"]], schema=new)
    )
    now.exchange([], part.close_all(), "a", 2, {})

    rows = sorted(read(tables.catalog.load_table("shop.item")), key=lambda row: int(row["id"]))
    assert [list(row) for row in rows] == [new.names] * 3
    first = {k: v for k, v in rows[0].items() if k not in ("at", "local")}
    assert first == {
        "id": 1, "word": "a", "n": decimal.Decimal("1.50"), "day": AT.date(), "small": 7, "x": 0.5,
        "b": b"\x00\xff", "tags": ["x", None], "more": None,
    }  # fmt: skip
    assert rows[0]["local"] == AT and rows[0]["at"].astimezone(dt.timezone.utc).replace(tzinfo=None) == AT
    assert set(rows[1].values()) == {2, None}
    assert (rows[2]["id"], rows[2]["word"], rows[2]["more"]) == (1 << 40, "b", "m")
