"""A store batch over several layouts of a table: each value goes to the column that its layout calls it by."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.lake import delta as lake
from tailrace.model.change import Column
from tailrace.wire.records import RECORDS

from .messages import insert
from .test_log_and_store import ITEM, chunk, writer
from .test_log_gaps import records, store

pytestmark = pytest.mark.unit


def test_values_of_a_table_go_to_its_own_columns_when_it_is_made_again_in_the_same_batch(
    tmp_path: Path,
) -> None:
    """The change table calls the first `n` `n__until_4` once the new table has an `n` of another type."""
    w = writer(tmp_path)
    w.add(chunk(100, b"B", insert(7, [1, "41.5"]), b"C"))
    again = chunk(200, b"B", insert(8, [2, "x"]), b"C")
    relids = pa.array([0, 8, 0], pa.int64())
    at = again.records.schema.get_field_index("RELID")
    text = Column("n", 2, "text", "text", "string")
    layout = replace(ITEM, relid=8, columns=(ITEM.columns[0], text))
    w.add(
        replace(
            again, records=again.records.set_column(at, RECORDS.field(at), relids), relations=[(0, layout)]
        )
    )
    w.commit()
    store(tmp_path).batch(records(tmp_path, 1, 2, 3, 4, 5, 6))
    rows = lake.read(str(tmp_path / "item__ct")).sort_by("id").select(["id", "n__until_4", "n"])
    assert rows.to_pylist() == [
        {"id": 1, "n__until_4": Decimal("41.5"), "n": None},
        {"id": 2, "n__until_4": None, "n": "x"},
    ]
