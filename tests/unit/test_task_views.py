"""A task's tables under their names in SQL: names that mean two things, dots, what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace.errors import ConfigError, TailraceError, UnsupportedError
from tailrace.model.change import Column
from tailrace.model.types import header_schema
from tailrace.targets.delta.tables import DeltaLakeTable

from .task_home import COLUMNS, TaskHome, with_tables

pytestmark = pytest.mark.unit


def ids(task: tailrace.OpenTask, table: str) -> list[int]:
    return [r["id"] for r in task.sql(f"SELECT id FROM {table}").rows()]


@pytest.mark.parametrize(
    ("tables", "names", "why"),
    [
        (
            {"a.t": 1, "a.T": 2},
            ["a.t", 'a."T"', "A.T"],
            r"has 2 meanings in SQL, .*: the target a\.T, and the target a\.t\n",
        ),
        (
            {"a.t": 1, "a.T": 2},
            ["a.t__ct", 'a."T__ct"'],
            r"the change table of a\.T, and the change table of a\.t\n",
        ),
        ({"a.x": 1, "a.x__ct": 2}, ["a.x__ct"], r"the change table of a\.x, and the target a\.x__ct\n"),
        (
            {"main.keylog": 1, "Main.KeyLog": 2},
            ["keylog"],
            r"the target Main\.KeyLog, and the target main\.keylog",
        ),
    ],
)
def test_a_name_that_means_two_things_is_refused_where_it_stands(
    tmp_path: Path, tables: dict[str, int], names: list[str], why: str
) -> None:
    task = with_tables(tmp_path, {"a.other": 7, **tables})
    assert (ids(task, "a.other"), ids(task, "a.other__ct")) == ([7], [70])
    assert task.sql("SELECT 'a.t' AS x").rows() == [{"x": "a.t"}]
    forms = ("SELECT id FROM {}", "DESCRIBE {}", "FROM a.other JOIN {} USING (id)")
    asked = [forms[0].format(n) for n in names] + [one.format(names[0]) for one in forms[1:]]
    for statement in asked:
        with pytest.raises(ConfigError, match=why) as caught:
            task.sql(statement)
        assert caught.value.where == "shop"
        assert "FROM changes('schema.table')" in str(caught.value)


def test_what_goes_with_a_name_of_two_meanings_is_there(tmp_path: Path) -> None:
    task = with_tables(tmp_path, {"a.x": 1, "a.x__ct": 2})
    assert (ids(task, "a.x"), ids(task, "a.x__ct__ct")) == ([1], [20])
    assert task.sql("SELECT columns_changed('a.x', '\\x01'::BLOB) AS c").rows() == [
        {"c": [header_schema().names[0]]}
    ]
    with pytest.raises(ConfigError, match="there is no table nothing"):
        task.sql("SELECT * FROM a.nothing")


def test_nan_is_above_all_numbers_in_targets_and_change_tables(tmp_path: Path) -> None:
    number = Column("f", 2, "double precision", "float8", "double")
    home = TaskHome(tmp_path, columns=[COLUMNS[0], number])
    values = {1: 7.0, 2: float("nan"), 3: 1.0}
    home.baseline([{"id": n, "f": f} for n, f in values.items()], after=10)
    home.store(*((10 + n, "U", {"id": n, "f": f}) for n, f in values.items()))
    task = tailrace.open(home.file)
    for table in ("shop.item", "shop.item__ct", "current('shop.item')", "changes('shop.item')"):
        found = task.sql(f"SELECT id FROM {table} WHERE f > 5 ORDER BY id").rows()
        assert found == [{"id": 1}, {"id": 2}], table


def test_names_with_dots_other_letters_and_names_of_catalogs(tmp_path: Path) -> None:
    task = with_tables(tmp_path, {"a.dot.name": 1, "a.ü": 2, "a.Ü": 3, 'a.q"': 4, "temp.t": 5})
    assert (ids(task, 'a."dot.name"'), ids(task, 'a."dot.name__ct"')) == ([1], [10])
    assert (ids(task, 'a."ü"'), ids(task, 'a."Ü"'), ids(task, 'a."q"""')) == ([2], [3], [4])
    assert ids(task, "memory.temp.t") == [5]
    with pytest.raises(ConfigError, match="does not exist"):
        task.sql('SELECT * FROM "a.dot".name')


def test_a_target_that_is_not_read_here_is_refused_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = with_tables(tmp_path, {"a.t": 1, "a.marked": 2})

    def unread(table: DeltaLakeTable) -> list[str]:
        return ["deletionVectors"] if table.name.endswith("a.marked") else []

    monkeypatch.setattr(DeltaLakeTable, "unread", property(unread))
    assert ids(task, "a.t") == [1]
    with pytest.raises(UnsupportedError, match=r"the target a\.marked has deletionVectors") as caught:
        task.sql("SELECT id FROM a.marked")
    assert isinstance(caught.value, TailraceError)
    assert "--spark" in str(caught.value)
