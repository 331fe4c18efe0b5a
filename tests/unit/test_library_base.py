"""Rows of before that are given with a question, `base=`: the columns that they must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace
from tailrace.errors import ConfigError
from tailrace.lake import delta as lake
from tailrace.model.change import Column
from tailrace.model.types import schema_of

from .task_home import COLUMNS, ITEM, TaskHome, item, partly_applied

pytestmark = pytest.mark.unit


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    return partly_applied(tmp_path)


@pytest.mark.parametrize("question", ["as_of", "net", "net_changes", "history", "pairs", "rebuild", "chain"])
@pytest.mark.parametrize("start", [None, 17])
def test_a_base_that_lacks_a_column_is_refused(home: TaskHome, question: str, start: int | None) -> None:
    """Also where the range has no changes, by a task's table and by a change table alone."""
    base = pa.Table.from_pylist([item(1)], schema_of(COLUMNS)).drop_columns(["name", "price"])
    files = tailrace.read(home.task.changes_path(ITEM), key=["id"])
    for table in (tailrace.open(home.file).table(ITEM), files):
        places: list[Any] = {"as_of": [start], "chain": [{"id": 1}, start]}.get(question, [start])
        with pytest.raises(ConfigError, match="base has no column name, price") as error:
            getattr(table, question)(*places, base=base).table()
        assert error.value.hint == "pass id, name, price, with the values before the range"
        if question in ("net", "history", "pairs"):  # a column that is not asked for may be missing
            getattr(table, question)(*places, base=base, columns=["id"]).table()


@pytest.mark.parametrize("question", ["as_of", "net", "net_changes", "history", "pairs", "rebuild", "chain"])
def test_a_base_has_the_types_of_the_table_or_values_that_fit(home: TaskHome, question: str) -> None:
    right = pa.Table.from_pylist([item(1)], schema_of(COLUMNS))
    wide = right.set_column(0, "id", right["id"].cast("int64"))
    odd = right.set_column(0, "id", pa.array(["one"]))
    table = tailrace.open(home.file).table(ITEM)
    places: list[Any] = {"as_of": [None], "chain": [{"id": 1}]}.get(question, [])
    ask = getattr(table, question)
    assert ask(*places, base=wide).rows() == ask(*places, base=right).rows()
    with pytest.raises(ConfigError, match="base column id is string and does not fit int32") as error:
        ask(*places, base=odd).table()
    assert error.value.where == ITEM
    assert error.value.hint == "pass id as int32"


def test_a_base_may_lack_a_column_that_was_added_on_the_way(tmp_path: Path) -> None:
    made = TaskHome(tmp_path)
    base = pa.Table.from_pylist([item(1)], schema_of(COLUMNS))
    made.store((1, "U", item(1, "b")))
    made.layout(2, (*COLUMNS, Column("n", 4, "integer", "int4", "int")))
    lake.add_columns(made.task.changes_path(ITEM), [pa.field("n", pa.int32())])
    made.store((3, "U", item(1, "b") | {"n": 7}))
    table = tailrace.open(made.file).table(ITEM)
    for start in (
        None,
        3,
    ):  # from its second change on, too: the layout may have become another one with that
        assert [r["n"] for r in table.net(start, base=base).rows()] == [None, 7]
    with pytest.raises(ConfigError, match="base has no column price"):
        table.net(3, base=base.drop_columns(["price"]))


def test_rows_that_tell_their_columns_need_the_same(home: TaskHome) -> None:
    table = tailrace.open(home.file).table(ITEM)
    base = table.as_of(13).table().drop_columns(["price"])
    for start in (14, 17):
        with pytest.raises(ConfigError, match="base has no column price"):
            table.net(start, base=base)


def test_a_kept_history_with_a_base_that_lacks_a_column_is_not_begun(home: TaskHome, tmp_path: Path) -> None:
    base = pa.Table.from_pylist([item(1)], schema_of(COLUMNS))
    table = tailrace.open(home.file).table(ITEM)
    with pytest.raises(ConfigError, match="base has no column price"):
        table.keep_history(str(tmp_path / "kept"), base=base.drop_columns(["price"]))
    assert not (tmp_path / "kept").exists()
