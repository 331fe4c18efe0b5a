"""The difference of two sides as changes, found by this process."""

from __future__ import annotations

import datetime as dt
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.model.change import Column, Relation
from tailrace.model.types import header_schema, schema_of
from tailrace.validate.compare import Comparison
from tailrace.validate.differences import ChangeStamp, Differences
from tailrace.validate.file_rows import FileRows

from .file_rows import Rows, rows_in

pytestmark = pytest.mark.unit

ID = Column("id", 1, "integer", "int4", "int", key=True)
PART = Column("part", 2, "text", "text", "string", key=True)
V = Column("v", 3, "bigint", "int8", "bigint")
KEYED = Relation(7, "s", "t", "d", (ID, PART, V))
BAG = Relation(8, "s", "bag", "f", (Column("n", 1, "integer", "int4", "int"),))
AT = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
MARK = ChangeStamp(2026030100000000, 41, "AB", "repair by me", AT)


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return partial(rows_in, tmp_path)


def difference(wanted: FileRows, there: FileRows, relation: Relation, memory: int = 1 << 20) -> pa.Table:
    with tempfile.TemporaryDirectory() as scratch:
        found = Differences(Comparison(None, scratch, "repair"), relation, memory)
        none = pa.schema([*header_schema(), *schema_of(relation.columns)]).empty_table()
        return pa.concat_tables([none, *found.changes(wanted, there, MARK)])


def changes(
    wanted: FileRows, there: FileRows, relation: Relation, memory: int = 1 << 20
) -> list[tuple[Any, ...]]:
    found = difference(wanted, there, relation, memory)
    names = ["header__change_seq", "header__change_oper", *(c.name for c in relation.columns)]
    return [tuple(r.values()) for r in found.select(names).to_pylist()]


def test_what_is_missing_too_much_and_another(rows: Rows) -> None:
    wanted = rows(id=[3, 1, 2], part=["a", "a", "b"], v=[1, None, 7])
    there = rows(part=["b", "a", "c"], v=[8, 1, 4], id=[2, 3, 2])  # columns may stand in another order
    two = "20260301000000000000000000000000"
    assert [(r[0][-2:], *r[1:]) for r in changes(wanted, there, KEYED)] == [
        ("42", "I", 1, "a", None),
        ("43", "B", 2, "b", 8),
        ("43", "U", 2, "b", 7),
        ("44", "D", 2, "c", 4),
    ]
    (first, *_) = changes(wanted, there, KEYED)
    assert first[0].startswith(two[:16]) and len(first[0]) == 35


def test_headers_say_where_a_change_is_from(rows: Rows) -> None:
    wanted, there = rows(id=[1, 2], part=["a", "a"], v=[1, 1]), rows(id=[2], part=["a"], v=[1])
    found = difference(wanted, there, KEYED)
    assert found.drop_columns(["id", "part", "v"]).to_pylist() == [
        {
            "header__change_seq": "20260301000000000000000000000000042",
            "header__change_oper": "I",
            "header__change_mask": None,
            "header__stream_position": "AB",
            "header__operation": "INSERT",
            "header__transaction_id": "repair by me",
            "header__timestamp": AT,
            "header__column_mask": None,
        }
    ]


def test_copies_of_rows_without_a_key(rows: Rows) -> None:
    found = changes(rows(n=[1, 1, 1, 2, None]), rows(n=[1, 2, 2, 2, 3]), BAG)
    assert sorted((r[1], str(r[2])) for r in found) == [
        ("D", "2"), ("D", "2"), ("D", "3"), ("I", "1"), ("I", "1"), ("I", "None"),
    ]  # fmt: skip


def test_sides_that_are_equal(rows: Rows) -> None:
    assert changes(rows(n=[2, 1]), rows(n=[1, 2]), BAG) == []


def test_a_key_that_is_there_twice_is_deleted(rows: Rows) -> None:
    wanted = rows(id=[1, 2], part=["a", "a"], v=[1, 2])
    for values in ([1, 2, 2], [1, 1, 2]):  # one of the copies may be the wanted row
        found = changes(wanted, rows(id=[1, 1, 2], part=["a"] * 3, v=values), KEYED)
        assert [r[1:3] for r in found if r[2] == 1] == [("D", 1)]


def test_changes_beyond_the_memory_are_found_by_groups_with_consecutive_numbers(rows: Rows) -> None:
    many = 1000
    wanted = rows(files=3, id=list(range(many)), part=["a"] * many, v=[1] * many)
    there = rows(files=2, id=list(range(100, many + 100)), part=["a"] * many, v=[2] * many)
    found = changes(wanted, there, KEYED, memory=10_000)
    numbers = [int(r[0][-19:]) for r in found if r[1] != "B"]
    assert numbers == list(range(42, 42 + many + 100))
    assert {(r[1], r[2]) for r in found if r[1] in "ID"} == {
        *(("I", n) for n in range(100)), *(("D", n) for n in range(many, many + 100)),
    }  # fmt: skip
    assert found != sorted(found, key=lambda r: r[2])  # several groups


def test_keys_that_are_arrays(rows: Rows) -> None:
    """Arrow sorts none; both images of an update stay side by side."""
    array = Column("id", 1, "integer[]", "_int4", "array<int>", key=True)
    relation = Relation(7, "s", "t", "d", (array, V))
    kind = pa.list_(pa.field("element", pa.int32()))
    wanted = rows(id=pa.array([[1], [2], [3]], kind), v=[1, 2, 3])
    there = rows(id=pa.array([[1], [2], [4]], kind), v=[0, 0, 4])
    found = changes(wanted, there, relation)
    by_key: dict[str, list[tuple[Any, ...]]] = {}
    for seq, oper, key, v in found:
        by_key.setdefault(str(key), []).append((seq, oper, v))
    assert {k: [(oper, v) for _, oper, v in many] for k, many in by_key.items()} == {
        "[1]": [("B", 0), ("U", 1)], "[2]": [("B", 0), ("U", 2)], "[3]": [("I", 3)], "[4]": [("D", 4)],
    }  # fmt: skip
    assert all(len({seq for seq, _, _ in many}) == 1 for many in by_key.values())
