"""A kept history of a change table that is followed call by call: where it begins, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace
from tailrace.errors import UnsupportedError
from tailrace.model import mask
from tailrace.model.change import HEADERS, Column, Relation
from tailrace.query.history_table import HistoryTable
from tailrace.store.tables import ensure

from ..ending import ends
from .task_home import ITEM, TaskHome

pytestmark = pytest.mark.unit

KEY = Column("id", 1, "integer", "int4", "int", key=True)
P, Q = (Column(name, number, "text", "text", "string") for name, number in (("p", 2), ("q", 3)))


def begun(tmp_path: Path, *columns: Column) -> TaskHome:
    """A table whose row 1 is there at 10, and whose row 2 comes at 11 and changes at 12."""
    home = TaskHome(tmp_path, columns=columns)
    one = {c.name: f"{c.name}1" for c in columns[1:]}
    two = {c.name: f"{c.name}2" for c in columns[1:]}
    home.baseline([{"id": 1, **one}], after=10)
    home.store((11, "I", {"id": 2, **two}), (12, "U", {"id": 2, **two, columns[-1].name: "new"}))
    return home


def altered(home: TaskHome, number: int, *columns: Column) -> None:
    home.layout(number, columns)
    ensure(home.task.changes_path(ITEM), Relation(1, "shop", "item", "d", columns), number)


def keep(home: TaskHome, path: Path, **given: Any) -> HistoryTable:
    return tailrace.open(home.file).table(ITEM).keep_history(str(path / "kept"), **given)


def versions(history: HistoryTable, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(r[n] for n in ("id", *names)) for r in history.versions().rows())


@pytest.mark.parametrize(
    ("later", "why"),
    [
        pytest.param([KEY, P, replace(Q, attnum=4)], "the column q was replaced", id="made anew"),
        pytest.param(
            [KEY, replace(Q, name="p"), replace(Q, attnum=4)],
            "the column q was renamed to p",
            id="a name taken",
        ),
    ],
)
@pytest.mark.parametrize("start", [None, 13])
def test_a_column_that_is_another_one_by_now_ends_a_history(
    tmp_path: Path, later: list[Column], why: str, start: int | None
) -> None:
    home = begun(tmp_path, KEY, P, Q)
    base = tailrace.open(home.file).table(ITEM).as_of(10 if start is None else 12).table()
    before = keep(home, tmp_path, base=base, start=start).versions().rows()
    altered(home, 13, *later)
    assert keep(home, tmp_path).versions().rows() == before  # nothing has come that could be mistaken
    home.store((20, "I", {"id": 3, "p": "p3", "q": "q3"}))
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=why) as error:
            keep(home, tmp_path)
    assert error.value.where == str(tmp_path / "kept")
    assert "keep another one" in (error.value.hint or "") and "range" not in error.value.what
    assert HistoryTable.open(str(tmp_path / "kept")).versions().rows() == before


def test_a_history_that_begins_behind_the_last_change_is_told_once(tmp_path: Path) -> None:
    """What was before `start` is in the base; the next calls go on from there."""
    home = begun(tmp_path, KEY, P)
    base = tailrace.open(home.file).table(ITEM).current().table()
    for _ in range(2):
        assert versions(keep(home, tmp_path, base=base, start=13), "p") == [(1, "p1"), (2, "new")]
        assert versions(keep(home, tmp_path), "p") == [(1, "p1"), (2, "new")]
    home.store((13, "U", {"id": 2, "p": "newer"}))
    for _ in range(2):
        assert versions(keep(home, tmp_path), "p") == [(1, "p1"), (2, "new"), (2, "newer")]


def test_rows_of_before_a_truncate_have_no_value_of_a_column_that_came_later(tmp_path: Path) -> None:
    keyless, p = replace(KEY, key=False), replace(P, attnum=2)
    home = TaskHome(tmp_path, columns=[keyless])
    home.baseline([{"id": 1}, {"id": 1}], after=10)
    base = tailrace.open(home.file).table(ITEM).as_of(10).table()
    altered(home, 11, keyless, p)
    home.store((11, "T", {}), (12, "I", {"id": 1, "p": None}), (13, "I", {"id": 2, "p": "new"}))
    found = tailrace.open(home.file).table(ITEM).net(11, base=base)
    assert [(r["_change_type"], r["id"], r["p"]) for r in found.rows()] == [
        ("delete", 1, None),
        ("insert", 2, "new"),
    ]
    assert isinstance(base, pa.Table) and base.column_names == ["id"]


@pytest.mark.parametrize("more", [False, True])
def test_what_a_crash_kept_out_of_the_versions_is_done_by_the_next_call(tmp_path: Path, more: bool) -> None:
    """Before the next changes, which may leave out what the row has."""
    home = begun(tmp_path, KEY, P, Q)
    base = tailrace.open(home.file).table(ITEM).as_of(10).table()
    keep(home, tmp_path, base=base)
    home.store((13, "U", {"id": 1, "p": "p1", "q": "newer"}))
    with ends("history.exchange"):
        keep(home, tmp_path)
    if more:  # it lacks q
        known = {"header__column_mask": mask.encode(len(HEADERS) + n for n in (0, 1))}
        home.store((14, "B", {"id": 1, "p": "p1", **known}), (14, "U", {"id": 9, "p": "p2", **known}))
    history = keep(home, tmp_path)
    want = {(2, "p2", "new"), (9, "p2", "newer") if more else (1, "p1", "newer")}
    assert {(r["id"], r["p"], r["q"]) for r in history.current().rows()} == want
    assert not history.cut_off
