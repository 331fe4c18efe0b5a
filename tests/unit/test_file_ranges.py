"""A filter never hides a row of a file whose statistics lack the range of a column."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

import tailrace
from tailrace.errors import UnsupportedError
from tailrace.lake import delta as lake
from tailrace.model.change import Column

from .task_home import ITEM, TaskHome

pytestmark = pytest.mark.unit

ID = Column("id", 1, "integer", "int4", "int", key=True)
NUMBER = Column("f", 2, "double precision", "float8", "double")
TEXT = Column("s", 2, "text", "text", "string")
INF, NAN = float("inf"), float("nan")


def asked(home: TaskHome, where: str) -> list[int]:
    found = tailrace.open(home.file).sql(f"SELECT id FROM shop.item WHERE {where} ORDER BY id")
    return [r["id"] for r in found.rows()]


def test_a_file_with_an_infinity(tmp_path: Path) -> None:
    home = TaskHome(tmp_path, columns=(ID, NUMBER))
    home.baseline([{"id": n, "f": f} for n, f in enumerate([INF, 1.0, 2.0, None])])
    assert asked(home, "f = 1") == [1]
    assert asked(home, "f < 5") == [1, 2]
    assert asked(home, "f > 5") == [0]
    assert asked(home, "f = 'inf'::double") == [0]
    assert asked(home, "f IS NULL") == [3]


def test_a_file_with_a_long_text(tmp_path: Path) -> None:
    """Parquet's statistics have no text of more than 4 KB."""
    home = TaskHome(tmp_path, columns=(ID, TEXT))
    home.baseline([{"id": 1, "s": "x"}, {"id": 2, "s": "M" * 5000}, {"id": 3, "s": "\U0010ffff"}])
    assert (
        asked(home, "s = 'x'") == asked(home, "s LIKE 'x%'") == asked(home, "length(s) = 1 AND id < 3") == [1]
    )
    assert asked(home, "s < 'a'") == [2]
    assert asked(home, "s = '\U0010ffff'") == [3]


def test_a_character_beyond_the_first_plane(tmp_path: Path) -> None:
    """delta-rs reads it as a lesser one where the statistics escape it."""
    path, row = str(tmp_path), {"id": [1, 2], "s": ["a", "\U00020bb7野家"]}
    lake.append(path, pa.table(row))
    assert pa.table(DeltaTable(path).get_add_actions(flatten=True))["max.s"].to_pylist() == ["\U00020bb7野家"]
    (part,) = lake.write_part(path, pa.table(row))
    lake.commit(path, [replace(part, stats=json.dumps(json.loads(part.stats)))], progress={})
    assert (
        pa.table(DeltaTable(path).get_add_actions(flatten=True))["max.s"].to_pylist()[0] == "\U00010bb7野家"
    )
    assert found(path, pc.field("s") == "\U00020bb7野家") == [2, 2]


@pytest.mark.parametrize("lacks", [("minValues", "maxValues"), ("minValues", "maxValues", "nullCount")])
def test_a_file_of_another_writer_without_ranges(tmp_path: Path, lacks: tuple[str, ...]) -> None:
    columns = (
        ID,
        TEXT,
        Column("n", 3, "integer", "int4", "int"),
        Column("b", 4, "boolean", "bool", "boolean"),
    )
    home = TaskHome(tmp_path, columns=columns)
    home.baseline([])
    path = home.task.target_path(ITEM)
    row = {"id": 1, "s": "x", "n": 7, "b": True}
    (part,) = lake.write_part(path, pa.Table.from_pylist([row], lake.arrow_schema(path)))
    stats = json.loads(part.stats)
    for kind in lacks:
        stats[kind] = {"id": stats[kind]["id"]}
    lake.commit(path, [replace(part, stats=json.dumps(stats))], progress={})
    for where in ("s = 'x'", "n = 7", "n > 3", "b", "b = true", "n IS NOT NULL"):
        assert asked(home, where) == [1], where
    assert asked(home, "n IS NULL") == asked(home, "n = 8") == []


def found(path: str, which: pc.Expression) -> list[int]:
    return sorted(lake.dataset(DeltaTable(path)).to_table(["id"], filter=which)["id"].to_pylist())


def test_times_that_are_cut_to_milliseconds(tmp_path: Path) -> None:
    """As delta-rs and Spark cut them in statistics."""
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678_999)
    write_deltalake(str(tmp_path), pa.table({"id": [1], "t": pa.array([at], pa.timestamp("us"))}))
    assert found(str(tmp_path), pc.field("t") == pa.scalar(at)) == [1]
    assert found(str(tmp_path), pc.field("t") > pa.scalar(at)) == []


def test_partitions(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "p": ["a b", "x/y%", None], "n": pa.array([1, None, 3], pa.int32())})
    write_deltalake(str(tmp_path), rows, partition_by=["p"])
    every = lake.dataset(DeltaTable(str(tmp_path))).to_table().sort_by("id")
    assert every.select(["id", "p", "n"]).to_pylist() == rows.to_pylist()
    assert found(str(tmp_path), pc.field("p") == "x/y%") == [2]
    assert found(str(tmp_path), pc.field("p").is_null()) == [3]
    assert found(str(tmp_path), pc.field("n") >= 1) == [1, 3]


def test_files_out_of_range_are_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for n in range(3):
        lake.append(path, pa.table({"id": [n, n + 10], "s": ["a", None]}))
    data = lake.dataset(DeltaTable(path))

    def files(which: pc.Expression) -> int:
        return len(list(data.get_fragments(filter=which)))

    assert files(pc.field("id") == 11) == 3 - 1
    assert files(pc.field("id") > 12) == files(pc.field("s") == "b") == files(pc.field("id").is_null()) == 0
    assert files(pc.field("s").is_null()) == 3


def test_features_that_are_not_read_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path)
    write_deltalake(path, pa.table({"id": [1]}), configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(UnsupportedError, match="deletionVectors"):
        lake.dataset(DeltaTable(path))


def test_what_parts_say_of_nan_and_of_long_texts(tmp_path: Path) -> None:
    """NaN is the greatest value for Spark."""
    rows: dict[str, Any] = {"some": [1.5, NAN], "all": [NAN, None], "s": ["b" * 5000, "a"]}
    (part,) = lake.write_part(str(tmp_path), pa.table(rows))
    stats = json.loads(part.stats)
    assert stats["minValues"] == {"some": 1.5, "all": 1.7976931348623157e308, "s": "a"}
    assert stats["maxValues"] == {
        "some": 1.7976931348623157e308, "all": 1.7976931348623157e308, "s": "b" * 64 + "\U0010ffff",
    }  # fmt: skip
