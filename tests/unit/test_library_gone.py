"""Questions for what is not there: columns that a range lacks, files that maintenance has removed."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from tailrace.errors import ConfigError, PositionError
from tailrace.lake import delta as lake
from tailrace.model.change import Column

from .task_home import COLUMNS, ITEM, TaskHome, item

pytestmark = pytest.mark.unit


def test_a_column_that_a_range_does_not_have_is_refused(tmp_path: Path) -> None:
    """Not left out: a range's columns are those of its end."""
    made = TaskHome(tmp_path)
    made.store((1, "I", item(1)))
    made.layout(2, (COLUMNS[0], COLUMNS[2], Column("n", 4, "int", "int4", "int")))
    lake.add_columns(made.task.changes_path(ITEM), [pa.field("n", pa.int32())])
    made.store((3, "I", {"id": 2, "price": Decimal(1), "n": 7}))
    table = tailrace.open(made.file).table(ITEM)
    assert table.net(1, 1, columns=["name"]).schema.names[:2] == ["id", "name"]
    with pytest.raises(ConfigError, match="has no column n in this range"):
        table.net(1, 1, columns=["n"])
    with pytest.raises(ConfigError, match="has no column name in this range") as error:
        table.net(3, columns=["name"])
    assert "it has id, price, n" in str(error.value)


def test_files_that_maintenance_removed_after_a_table_was_opened(tmp_path: Path) -> None:
    made = TaskHome(tmp_path)
    made.store((1, "I", item(1)))
    table = tailrace.open(made.file).table(ITEM)
    for one in Path(made.task.changes_path(ITEM)).glob("*.parquet"):
        one.unlink()
    with pytest.raises(PositionError, match="files of this version were removed") as error:
        table.net()
    assert "open the table again" in str(error.value)
