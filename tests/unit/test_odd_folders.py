"""Folders with blanks, accents and signs in their names: what delta-rs calls their files is no path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tailrace.apply.mapped_snapshots import StagedRows
from tailrace.execution import BackgroundSession
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.operate import keylog_rows
from tailrace.targets.delta.reshape import parts
from tailrace.targets.projection import Projection

from .keylog_rows import row, write

pytestmark = pytest.mark.unit

ID = Column("id", 1, "integer", "int4", "int", key=True)
NAME = Column("name", 2, "text", "text", "string")
ITEM = Relation(7, "shop", "item", "d", (ID, NAME))


@pytest.fixture(params=["my lake", "Größe", "100%", "#1?", "[a]", "a^b|c"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / str(request.param)
    made.mkdir()
    return made


@pytest.fixture
def target(folder: Path) -> str:
    path = str(folder / "item")
    lake.append(path, pa.table({"id": pa.array([1], pa.int32()), "name": ["nut"]}))
    return path


def refused() -> NoReturn:
    raise AssertionError("no session is needed")


def test_a_table_is_read(target: str) -> None:
    assert lake.dataset(DeltaTable(target)).to_table().to_pylist() == [{"id": 1, "name": "nut"}]


def test_a_table_with_partitions_has_its_files_below_its_folder(tmp_path: Path) -> None:
    path = str(tmp_path / "my lake" / "parts")
    write_deltalake(path, pa.table({"p": ["a b", "50%", "x/y", "é"], "v": [1, 2, 3, 4]}), partition_by=["p"])
    found = lake.paths(DeltaTable(path))
    assert (len(found), [one for one in found if not Path(one).is_file()]) == (4, [])


class Elsewhere:
    """What delta-rs says of a table in a store of objects, which no test has."""

    table_uri = "s3://lake/my%20shop/"

    def file_uris(self) -> list[str]:
        return ["s3://lake/my%20shop/a.parquet", "s3://lake/my%20shop/p=1/b.parquet"]


def test_files_elsewhere_keep_their_addresses() -> None:
    assert lake.folder_of(Elsewhere()) == "s3://lake/my%20shop"  # type: ignore[arg-type]
    assert lake.paths(Elsewhere()) == Elsewhere().file_uris()  # type: ignore[arg-type]


def test_a_target_gets_another_layout(target: str) -> None:
    after = ITEM.with_columns([ID, replace(NAME, name="title")])
    made = parts(BackgroundSession(refused), target, DeltaTable(target), ITEM, after)
    fs, place = lake.filesystem(target)
    with fs.open_input_file(f"{place}/{made[0].path}") as file:
        assert pq.read_table(file).to_pylist() == [{"id": 1, "title": "nut"}]


def test_rows_that_wait_for_a_mapped_target_are_read(target: str) -> None:
    staged = StagedRows(target, Projection({"n": "name"}, {}), pa.schema([("n", pa.string())])).parts()
    assert [b.to_pylist() for one in staged.names for b in staged.read(one)] == [[{"n": "nut"}]]


def test_a_key_log_is_shown(folder: Path) -> None:
    keylog = write(folder, [row(1), row(2)], [row(3)])
    assert [r["keylog_sort"] for r in keylog_rows.newest(keylog, 2)] == [2, 3]
    assert [r["keylog_sort"] for some in keylog_rows.later(keylog, 1) for r in some] == [2, 3]
