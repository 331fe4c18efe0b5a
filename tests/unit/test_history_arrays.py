"""Kept histories of columns that are no scalars: arrays are kept, what cannot be compared is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.engine.history_updates import HistoryRules
from tailrace.errors import ConfigError
from tailrace.query.history.table import HistoryTable

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.struct([("a", pa.int64())])),
    ],
)
def test_columns_that_cannot_be_compared_are_refused_before_anything_is_made(
    tmp_path: Path, kind: pa.DataType
) -> None:
    data = pa.schema([("id", pa.int64()), ("odd", kind)])
    with pytest.raises(ConfigError, match=r"cannot be compared: odd \("):
        HistoryTable.make(str(tmp_path / "h"), data, HistoryRules(("id",), ("id", "odd")), pa.int64())
    assert not (tmp_path / "h").exists()


def test_arrays_are_kept(tmp_path: Path) -> None:
    data = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.int32()))])
    history = HistoryTable.make(str(tmp_path / "h"), data, HistoryRules(("id",), ("id", "tags")), pa.int64())
    schema = pa.schema([*data, ("__sequence", pa.int64()), ("__operation", pa.string())])
    for tags in ([[1, 2], [1, 2], []], [None, [3]]):
        number = 1 if len(tags) == 3 else 4
        told = [(1, t, number + n, "U") for n, t in enumerate(tags)]
        history.apply(pa.Table.from_pylist([dict(zip(schema.names, t, strict=True)) for t in told], schema))
    names = ("tags", "__START_AT", "__END_AT")
    found = sorted((tuple(r[n] for n in names) for r in history.versions().rows()), key=lambda r: r[1])
    assert found == [([1, 2], 1, 3), ([], 3, 4), (None, 4, 5), ([3], 5, None)]
    odd = [(None, [1], 6, "U"), (None, [1], 6, "U"), (None, [1, 1], 6, "U")]
    for _ in range(2):
        history.apply(pa.Table.from_pylist([dict(zip(schema.names, t, strict=True)) for t in odd], schema))
    assert sorted(r["tags"] for r in history.rejects().rows()) == [[1], [1, 1]]
