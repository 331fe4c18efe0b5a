"""Filters on a column that is younger than some of a table's files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tailrace.lake import delta as lake
from tailrace.validate.target_versions import row_filter

pytestmark = pytest.mark.unit


def test_rows_of_files_without_the_column_have_null_in_it(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rows = pa.schema([("id", pa.int32()), ("site", pa.string())])
    lake.create(path, rows)
    lake.append(path, pa.table({"id": [1, 2], "site": ["eu", "us"]}, rows))
    lake.add_columns(path, [pa.field("_deleted", pa.string())])
    more = pa.schema([*rows, ("_deleted", pa.string())])
    lake.append(path, pa.table({"id": [3, 4], "site": ["eu", "eu"], "_deleted": [None, "x"]}, more))
    data = lake.dataset(DeltaTable(path))
    for which, want in (
        (pc.field("_deleted").is_null(), [1, 2, 3]),
        (row_filter(data.schema.names, {}, "_deleted"), [1, 2, 3]),
        (row_filter(data.schema.names, {"site": "eu"}, "_deleted"), [1, 3]),
    ):
        assert sorted(data.to_table(columns=["id"], filter=which)["id"].to_pylist()) == want
        found = [
            f.to_table(schema=data.schema, columns=["id"], filter=which)
            for f in data.get_fragments(filter=which)
        ]
        assert sorted(pa.concat_tables(found)["id"].to_pylist()) == want
