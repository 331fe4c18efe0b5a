"""The small tables of a task: append-only ones, and those with one row for each key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.errors import OvertakenError
from tailrace.lake import delta as lake
from tailrace.lake import failpoints
from tailrace.state import declarations, state_table
from tailrace.state.state_table import Declaration, KeyedTable, StateTable

pytestmark = pytest.mark.unit

COLOURS = Declaration(
    "colours", (("name", pa.string()), ("colour", pa.string())), ("name",), "replaced rows", "state.note"
)


@pytest.fixture
def colours(tmp_path: Path) -> StateTable[str]:
    return StateTable(str(tmp_path / "colours"), COLOURS, lambda row: str(row["colour"]))


def row(name: str, colour: str) -> dict[str, Any]:
    return {"name": name, "colour": colour}


def test_missing_table_has_no_rows(colours: StateTable[str]) -> None:
    assert (colours.rows(), colours.latest(), colours.newest) == ([], {}, 0)
    assert colours.append([]) == 0 and not lake.exists(colours.path)


def test_newest_row_of_each_key_counts(colours: StateTable[str]) -> None:
    assert colours.append([row("sky", "grey"), row("sea", "green")]) == 2
    assert colours.append([row("sky", "blue")]) == 3
    assert colours.rows() == ["grey", "green", "blue"]
    assert colours.latest() == {"sky": "blue", "sea": "green"}
    assert [r["number"] for r in lake.read(colours.path).sort_by("number").to_pylist()] == [1, 2, 3]


def test_rows_of_another_process_are_read(colours: StateTable[str]) -> None:
    colours.append([row("sky", "grey")])
    assert colours.latest() == {"sky": "grey"}
    StateTable(colours.path, COLOURS, str).append([row("sky", "red")])
    assert colours.latest() == {"sky": "red"}


def test_append_after_another_process_gets_later_numbers(
    colours: StateTable[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = state_table.reach, [lambda: colours.append([row("sky", "red")])]

    def reach(name: str) -> None:
        if left:
            left.pop()()
        real(name)

    monkeypatch.setattr(state_table, "reach", reach)
    assert colours.append([row("sky", "blue")]) == 2
    assert colours.rows() == ["red", "blue"]


def test_append_that_follows_a_number_is_refused_after_another_row(colours: StateTable[str]) -> None:
    assert colours.append([row("sky", "red")], follows=0) == 1
    with pytest.raises(OvertakenError):
        colours.append([row("sky", "blue")], follows=0)
    assert colours.append([row("sky", "blue")], follows=1) == 2


def test_trim_leaves_the_newest_row_of_each_key(
    colours: StateTable[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    colours.append([row("sky", "grey"), row("sea", "green"), row("sky", "blue")])
    colours.trim()
    assert colours.rows() == ["grey", "green", "blue"]  # so few rows stay
    monkeypatch.setattr(state_table, "_TRIM_FROM", -2)
    colours.trim()
    assert colours.rows() == ["green", "blue"]
    assert colours.append([row("sea", "black")]) == 4


def test_keyed_table_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("name", pa.string()), ("colour", pa.string())])
    table = KeyedTable(str(tmp_path / "keyed"), schema, "control.change")
    assert table.read() == (None, [])
    table.change(lambda rows: [*rows, row("sky", "grey")])
    table.change(lambda rows: [{**r, "colour": "blue"} for r in rows])
    assert table.rows() == [row("sky", "blue")]
    version = lake.version(table.path)
    table.change(lambda rows: rows)
    assert lake.version(table.path) == version


def test_keyed_table_is_changed_after_another_process(tmp_path: Path) -> None:
    schema = pa.schema([("name", pa.string()), ("colour", pa.string())])
    table = KeyedTable(str(tmp_path / "keyed"), schema, "control.change")
    table.change(lambda _: [row("sky", "grey")])
    others = [[row("sea", "green")]]

    def add(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if others:
            other = others.pop()
            table.change(lambda have: [*have, *other])
        return [*rows, row("fog", "white")]

    table.change(add)
    assert [r["name"] for r in table.rows()] == ["sky", "sea", "fog"]


@pytest.mark.parametrize("declared", declarations.APPENDED, ids=lambda one: one.name)
def test_declaration_names_its_key_and_its_fail_point(declared: Declaration) -> None:
    assert set(declared.key) <= set(declared.schema.names)
    assert declared.fail_point in failpoints.POINTS
    assert declared.trimmed


def test_declarations_have_names_of_their_own() -> None:
    names = [one.name for one in declarations.APPENDED]
    assert sorted(set(names)) == sorted(names)
