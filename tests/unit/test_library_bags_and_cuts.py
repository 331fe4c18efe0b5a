"""Tables without a key, cuts over all tables, masks in SQL, and questions under watch."""

from __future__ import annotations

import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import CancelledError, ConfigError, PositionError, UnsupportedError
from tailrace.model import mask
from tailrace.model.change import Column
from tailrace.state import commands

from .once import once
from .task_home import COLUMNS, ITEM, Row, TaskHome, at, position, seq

pytestmark = pytest.mark.unit
KEYLESS = tuple(replace(c, key=False) for c in COLUMNS)


def item(id: int, name: str | None = "a") -> Row:
    return {"id": id, "name": name, "price": Decimal("1.00")}


def rows(found: tailrace.Result) -> list[tuple[int, str]]:
    return sorted((r["id"], r["name"]) for r in found.rows())


@once
def keyless(folder: Path) -> TaskHome:
    """Two equal rows and another in the baseline."""
    made = TaskHome(folder, columns=KEYLESS)
    made.baseline([item(1), item(1), item(2)], after=10)
    made.store((11, "D", item(1)), (12, "B", item(2)), (12, "U", item(2, "b")), (13, "I", item(1)))
    return made


@pytest.fixture
def bag(tmp_path: Path) -> TaskHome:
    return keyless(tmp_path)


def test_a_table_without_key_as_of_any_place(bag: TaskHome) -> None:
    table = tailrace.open(bag.file).table(ITEM)
    assert rows(table.as_of(10)) == [(1, "a"), (1, "a"), (2, "a")]
    assert rows(table.as_of(11)) == [(1, "a"), (2, "a")]
    assert rows(table.as_of(12)) == [(1, "a"), (2, "b")]
    assert rows(table.current()) == [(1, "a"), (1, "a"), (2, "b")]
    bag.store((14, "T", {}), (15, "I", item(9)))
    table = tailrace.open(bag.file).table(ITEM)
    assert rows(table.current()) == [(9, "a")]
    told = sorted((r["id"], r["name"], r["_change_type"]) for r in table.diff(12).rows())
    assert told == [(1, "a", "delete"), (2, "b", "delete"), (9, "a", "insert")]


def test_net_changes_and_pairs_of_a_table_without_key(bag: TaskHome) -> None:
    table = tailrace.open(bag.file).table(ITEM)
    told = [(r["id"], r["name"], r["_change_type"]) for r in table.net().rows()]
    assert told == [(2, "a", "delete"), (2, "b", "insert")]
    assert [r["_change_type"] for r in table.pairs().rows()] == ["delete", "update", "insert"]
    with pytest.raises(UnsupportedError, match="no key"):
        table.history()


def test_what_a_table_without_key_cannot_answer_names_what_can(bag: TaskHome) -> None:
    task = tailrace.open(bag.file)
    table = task.table(ITEM)
    for asked in (table.history, table.rebuild, lambda: table.chain({"id": 1})):
        with pytest.raises(UnsupportedError) as caught:
            asked()
        assert caught.value.hint is not None
        assert "use pairs, net, changes or transactions" in caught.value.hint
        assert "tailrace.read(CHANGE_TABLE, key=[...])" in caught.value.hint
    for answer in (table.pairs(), table.net(), table.changes(), task.transactions()):
        assert answer.rows()
    named = tailrace.read(bag.task.changes_path(ITEM), key=["id"])
    assert [r["_change_type"] for r in named.chain({"id": 2}).rows()] == ["update"]


def test_updates_without_before_images_are_answered_for_columns_named_as_the_key(tmp_path: Path) -> None:
    home = TaskHome(tmp_path, columns=KEYLESS)
    home.store((11, "U", item(2, "b")))
    with pytest.raises(UnsupportedError, match=r"`tailrace\.read\(CHANGE_TABLE, key="):
        tailrace.open(home.file).table(ITEM).pairs()
    named = tailrace.read(home.task.changes_path(ITEM), key=["id"])
    assert [r["after"]["name"] for r in named.pairs().rows()] == ["b"]


def test_a_cut_shows_all_tables_at_one_place(bag: TaskHome) -> None:
    task = tailrace.open(bag.file)
    end = task.finalized_until
    assert end is not None
    assert (end.upto, end.change_seq, end.position, end.commit_time) == (13, seq(13), position(13), at(13))
    assert {n: rows(r) for n, r in task.cut().items()} == {ITEM: [(1, "a"), (1, "a"), (2, "b")]}
    assert rows(task.cut(11, ["shop.*"])[ITEM]) == [(1, "a"), (2, "a")]


def test_what_is_not_stored_in_all_tables_yet_is_in_no_question_to_several(bag: TaskHome) -> None:
    """The store commits one table after the other, then says so."""
    bag.store((14, "I", item(9)), recorded=False)
    task = tailrace.open(bag.file)
    for end in (None, 14, seq(14), position(14), at(99)):
        assert [r["transaction_id"] for r in task.transactions(12, end).rows()] == ["12", "13"]
    before = [(1, "a"), (1, "a"), (2, "b")]
    for place in (None, at(13), at(99)):
        assert rows(task.cut(place)[ITEM]) == before
    bag.store((15, "D", item(2, "b")))
    assert [r["transaction_id"] for r in task.transactions(13).rows()] == ["13", "14", "15"]
    assert rows(task.cut(at(99))[ITEM]) == [(1, "a"), (1, "a"), (9, "a")]


def test_nothing_is_stored_as_a_whole_yet(tmp_path: Path) -> None:
    home = TaskHome(tmp_path)
    home.store((11, "I", item(1)), recorded=False)
    assert tailrace.open(home.file).transactions().rows() == []


def test_a_target_that_is_gone_is_named(bag: TaskHome) -> None:
    shutil.rmtree(bag.task.target_path(ITEM))
    task = tailrace.open(bag.file)
    for question in (task.table(ITEM).current, lambda: task.table(ITEM).as_of(12), task.cut):
        with pytest.raises(ConfigError, match=r"shop\.item is not in the target") as error:
            question()
        assert error.value.where == bag.task.target_path(ITEM) and "tailrace resync" in (
            error.value.hint or ""
        )


def test_a_cut_is_one_of_the_tables_that_are_captured(bag: TaskHome) -> None:
    commands.give(bag.task.commands_path, commands.REMOVE, [ITEM], why="", who="me")
    task = tailrace.open(bag.file)
    assert (task.tables, task.cut()) == ([ITEM], {})
    assert list(task.cut(12, [ITEM])) == [ITEM]


def test_a_place_that_is_not_stored_yet_is_refused(bag: TaskHome) -> None:
    table = tailrace.open(bag.file).table(ITEM)
    for place in (14, seq(14), position(14)):
        with pytest.raises(
            PositionError,
            match=r"not stored yet; changes are stored up to .*committed at 2026-11-22T10:00:13Z",
        ):
            table.as_of(place)
    assert len(rows(table.as_of(at(99)))) == 3


def test_masks_are_names_in_sql(tmp_path: Path) -> None:
    home = TaskHome(tmp_path)
    start = 8  # headers before the columns
    masks = [mask.encode([start, start + 2]), mask.encode([start + 1]), b"", None]
    home.store(*((n, "U", item(n) | {"header__change_mask": m}) for n, m in enumerate(masks, 1)))
    said = "SELECT columns_changed('shop.item', header__change_mask) AS c FROM shop.item__ct ORDER BY id"
    found = tailrace.open(home.file).sql(said).rows()
    assert [r["c"] for r in found] == [["id", "price"], ["name"], [], None]


@pytest.mark.parametrize("many", [9, 16, 17, 300])
def test_masks_of_wide_tables_are_the_same_names_in_sql(tmp_path: Path, many: int) -> None:
    more = [Column(f"c{n}", n, "integer", "int4", "int") for n in range(2, many + 1)]
    home = TaskHome(tmp_path, columns=[Column("id", 1, "integer", "int4", "int", key=True), *more])
    start = 8  # headers before the columns
    sets = [[n] for n in range(many)] + [[], list(range(many)), [0, many - 1]]
    masks = [mask.encode([start + n for n in one]) for one in sets] + [None]
    home.store(*((n, "U", {"id": n, "header__change_mask": m}) for n, m in enumerate(masks, 1)))
    said = "SELECT columns_changed('shop.item', header__change_mask) AS c FROM shop.item__ct ORDER BY id"
    task = tailrace.open(home.file)
    names = ["id", *(f"c{n}" for n in range(2, many + 1))]
    found = [r["c"] for r in task.sql(said).rows()]
    assert found == [*([names[n] for n in one] for one in sets), None]
    asked = task.table(ITEM).changes(columns_changed=True).table()
    assert found == asked["columns_changed"].to_pylist()
    of_last = f"SELECT id FROM shop.item__ct WHERE list_contains(columns_changed('shop.item', header__change_mask), 'c{many}')"
    assert sorted(r["id"] for r in task.sql(of_last).rows()) == [many, many + 2, many + 3]


def test_questions_under_watch(bag: TaskHome, tmp_path: Path) -> None:
    bag.store((14, "I", item(3)))
    table = tailrace.open(bag.file).table(ITEM)
    told: list[tuple[str, int, int]] = []
    with tailrace.watching(progress=lambda *one: told.append(one)):
        table.current().table()
    assert told == [
        ("changes", 0, 2),
        ("changes", 1, 2),
        ("changes", 2, 2),
        ("the target", 0, 1),
        ("the target", 1, 1),
    ]
    with (
        tailrace.watching(cancelled=lambda: len(told) > 1),
        pytest.raises(CancelledError, match="changes was cancelled"),
    ):
        table.net()
    with tailrace.watching(scratch=str(tmp_path / "scratch")):
        found = tailrace.open(bag.file).sql("SELECT current_setting('temp_directory') AS folder").rows()
    assert found == [{"folder": str(tmp_path / "scratch")}]
