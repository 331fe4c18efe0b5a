"""Tables in memory are as true as those on disk: each test runs on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from tailrace.errors import OvertakenError, TailraceError
from tailrace.lake import delta as lake
from tailrace.state import commands

from .ram import RamLake

pytestmark = pytest.mark.unit
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(params=["disk", "memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "disk":
        yield str(tmp_path / "t")
        return
    with RamLake().in_place():
        yield "t"


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)}, schema=SCHEMA)


def meanwhile(what: Callable[[], object]) -> mock._patch[object]:
    """Has something happen just before a part of the next table is written."""
    real, left = lake.Part, [what]

    def part(table: str, schema: pa.Schema, *, name: str = "part") -> lake.Part:
        if left:
            left.pop()()
        return real(table, schema, name=name)

    return mock.patch.object(lake, "Part", part)


def test_an_order_that_others_overtake_is_given_after_them(path: str) -> None:
    """However many they are: its number is not theirs, and it is not lost."""
    assert commands.give(path, "resync", ["s.a"], why="", who="") == 1
    with meanwhile(lambda: commands.give(path, "resume", ["s.a", "s.b"], why="", who="")):
        assert commands.give(path, "land", ["s.a"], why="", who="", baseline=2) == 4
    assert [(o.number, o.action, o.table) for o in commands.read(path)] == [
        (1, "resync", "s.a"), (2, "resume", "s.a"), (3, "resume", "s.b"), (4, "land", "s.a"),
    ]  # fmt: skip


@pytest.mark.parametrize("other", [1, 2, 3])
def test_who_counts_on_is_overtaken_wherever_the_other_one_came(path: str, other: int) -> None:
    lake.append(path, rows(0), progress={"x": 0})
    lake.append(path, rows(1), progress={"x": other}, after={"x": 0})
    with pytest.raises(OvertakenError):
        lake.append(path, rows(2), progress={"x": 2}, after={"x": 0})
    assert sorted(lake.read(path)["n"].to_pylist()) == [0, 1]


def test_what_is_not_there_has_no_version_and_no_progress_and_cannot_be_read(path: str) -> None:
    assert (lake.exists(path), lake.version(path), lake.progress(path, "x")) == (False, None, None)
    with pytest.raises(TailraceError, match="were removed meanwhile"):
        lake.read(path)


def test_columns_that_come_later_are_null_before(path: str) -> None:
    lake.append(path, rows(1))
    lake.add_columns(path, [pa.field("n", pa.int64()), pa.field("m", pa.string())])
    assert lake.version(path) == 2
    lake.add_columns(path, [pa.field("m", pa.string())])
    assert lake.version(path) == 2
    assert lake.read(path).to_pylist() == [{"n": 1, "m": None}]


def test_a_table_made_whole_anew_has_the_new_rows_and_the_old_progress(path: str) -> None:
    lake.append(path, rows(1), progress={"x": 3})
    part = lake.Part(path, SCHEMA)
    part.write(rows(7))
    added = part.close()
    assert added is not None
    assert lake.overwrite(path, [added], schema=SCHEMA, progress={"y": 1}, only_after=0) is None
    assert lake.overwrite(path, [added], schema=SCHEMA, progress={"y": 1}, only_after=1) == 2
    assert (lake.read(path)["n"].to_pylist(), lake.progresses(path, ["x", "y"])) == ([7], [3, 1])


def test_a_commit_that_moves_nothing_forward_is_skipped(path: str) -> None:
    assert lake.append(path, rows(1), progress={"x": 1}) == 1
    assert lake.append(path, rows(2), progress={"x": 1}) is None
    assert lake.append(path, rows(3), progress={"x": 1, "y": 0}) == 2
    assert lake.progresses(path, ["x", "y", "z"]) == [1, 0, None]
    assert sorted(lake.read(path)["n"].to_pylist()) == [1, 3]


def test_a_commit_on_one_version_is_made_there_or_not_at_all(path: str) -> None:
    lake.append(path, rows(1))
    assert lake.commit(path, [], progress={"x": 1}, only_after=0) is None
    assert lake.commit(path, [], progress={"x": 1}, only_after=1) == 2
    assert lake.commit(path, [], progress={"x": 0}, begin=True) == 3
    assert lake.progress(path, "x") == 0
