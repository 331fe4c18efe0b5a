"""Suspended tables are found by their whole name, wherever it was split into owner and name."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.formats.qlik.control import TABLES
from tailrace.keylog.control_tables import Suspensions
from tailrace.lake import delta as lake
from tailrace.model.types import arrow_type

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("owner", "name", "table"),
    [("db.shop", "it'em", "db.shop.it'em"), ("db", "shop.it'em", "db.shop.it'em"), ("", "item", "item")],
    ids=["as before this release", "as now", "without a schema"],
)
def test_a_suspended_table_stays_suspended_until_it_is_resumed(
    tmp_path: Path, owner: str, name: str, table: str
) -> None:
    held = Suspensions(str(tmp_path), "me")
    columns = TABLES["attrep_suspended_tables"].columns
    schema = pa.schema([pa.field(c.name, arrow_type(c.type)) for c in columns])
    said = ["server", "me", owner, name, "it is odd", datetime.now(timezone.utc)]
    arrays = [pa.array([v], f.type) for v, f in zip(said, schema, strict=True)]
    lake.append(held.path, pa.Table.from_arrays(arrays, schema=schema))
    assert (held.reason(table), held.reason("other")) == ("it is odd", None)
    assert held.resume(table) and held.reason(table) is None
    held.suspend(table, "again")
    assert held.reason(table) == "again"
    assert held.resume(table) and not held.resume(table)
