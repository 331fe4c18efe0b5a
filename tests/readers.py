"""Programs that read Delta tables without tailrace: each gives a table's rows as dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

Rows = list[dict[str, Any]]


def arrow(path: str) -> Rows:
    return list(DeltaTable(path).to_pyarrow_table().to_pylist())


def pandas(path: str) -> Rows:
    return [{str(k): v for k, v in r.items()} for r in DeltaTable(path).to_pandas().to_dict("records")]


def polars(path: str) -> Rows:
    import polars as pl

    return list(pl.read_delta(path).to_dicts())


def duckdb_arrow(path: str) -> Rows:
    import duckdb

    rows = DeltaTable(path).to_pyarrow_dataset()
    assert rows is not None
    return list(duckdb.sql("select * from rows").to_arrow_table().to_pylist())


def duckdb_delta(path: str) -> Rows:
    import duckdb
    import duckdb_extension_delta

    home = Path(duckdb_extension_delta.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    with duckdb.connect() as on:
        on.load_extension(str(home / "delta.duckdb_extension"))
        return list(on.sql(f"select * from delta_scan('{path}')").to_arrow_table().to_pylist())


READERS: dict[str, Callable[[str], Rows]] = {
    "deltalake, Arrow": arrow,
    "deltalake, pandas": pandas,
    "polars": polars,
    "DuckDB over Arrow": duckdb_arrow,
    "DuckDB, delta_scan": duckdb_delta,
}
