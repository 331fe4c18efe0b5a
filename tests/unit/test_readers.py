"""What docs/readers.md says: which programs read tailrace's tables as they are."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.lake import delta as lake
from tailrace.model.types import header_schema

from ..readers import READERS

pytestmark = pytest.mark.unit

AT = dt.datetime(2026, 3, 1, 9, 30, 0, 123456)
SCHEMA = pa.schema(
    [
        ("id", pa.int32()), ("name", pa.string()), ("price", pa.decimal128(7, 2)), ("made", pa.date32()),
        ("at", pa.timestamp("us", "UTC")), ("raw", pa.binary()), ("ok", pa.bool_()), ("x", pa.float64()),
    ]
)  # fmt: skip
ROW = {
    "id": 1, "name": "Müller", "price": Decimal("9.99"), "made": AT.date(), "at": AT.replace(tzinfo=dt.timezone.utc),
    "raw": b"\x00\x01", "ok": True, "x": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("reader", list(READERS))
@pytest.mark.parametrize("zoned", [True, False])
def test_a_target_is_read(tmp_path: Path, reader: str, zoned: bool) -> None:
    """With and without a time that has no zone, which needs a reader that knows timestampNtz."""
    schema, row = SCHEMA, dict(ROW)
    if not zoned:
        schema, row = schema.append(pa.field("plain", pa.timestamp("us"))), row | {"plain": AT}
    path = str(tmp_path / "shop.item")
    lake.append(path, pa.Table.from_pylist([row], schema))
    features = DeltaTable(path).protocol().reader_features or []
    assert features == ([] if zoned else ["timestampNtz"])
    assert READERS[reader](path) == [row]


@pytest.mark.parametrize("reader", list(READERS))
def test_a_change_table_is_read(tmp_path: Path, reader: str) -> None:
    schema = pa.schema([*header_schema(), pa.field("id", pa.int32())])
    row = dict.fromkeys(schema.names) | {
        "header__change_seq": "20260301093000120000000000000000007", "header__change_oper": "U",
        "header__change_mask": b"\x02", "header__timestamp": ROW["at"], "id": 1,
    }  # fmt: skip
    path = str(tmp_path / "shop.item__ct")
    lake.append(path, pa.Table.from_pylist([row], schema))
    (found,) = READERS[reader](path)
    assert {k: v for k, v in found.items() if v is not None} == {
        k: v for k, v in row.items() if v is not None
    }
