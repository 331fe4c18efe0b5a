"""Ranges across changes that were never captured are refused; those on one side of them are answered."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace
from tailrace.capture.partition_notes import ATTACHED
from tailrace.errors import GapError
from tailrace.lake import delta as lake
from tailrace.library.task_table import TaskTable
from tailrace.model.change import Relation
from tailrace.query.positions import PositionLike
from tailrace.state import commands, ledger, streams
from tailrace.state.baselines import Baseline, all_baselines, read_baselines, write_baseline
from tailrace.state.declarations import COMMANDS, STREAMS
from tailrace.state.ledger import Stored
from tailrace.state.retention import trim_tables

from ..state_rows import put
from .once import once
from .task_home import ITEM, TaskHome, at, item, position, rows, seq
from .test_ranges import KINDS, RANGES

pytestmark = pytest.mark.unit
WAYS = (
    "removed and added",
    "new stream",
    "made again",
    "partition attached",
)
TOLD_BY = ("removed and added", "new stream")
"""Where what comes after a gap is told by a change number, and by a position."""


def table(home: TaskHome) -> TaskTable:
    return tailrace.open(home.file).table(ITEM)


def order(home: TaskHome, number: int, action: str, when: int, who: str = "me", why: str = "") -> None:
    row = {"number": number, "at": at(when), "table": ITEM, "action": action, "why": why, "who": who}
    put(home.task.commands_path, COMMANDS, row)


def stream(home: TaskHome, number: int, seq_: str) -> None:
    row = {
        "number": number, "stream": 1 if number == 1 else 2, "state": streams.MADE, "at": at(17), "who": "me", "why": "",
        "identity": json.dumps({"begin": position(19)}), "after": position(14), "change_seq": seq_,
    }  # fmt: skip
    put(home.task.control_path("streams"), STREAMS, row)


def baseline(home: TaskHome, given: Sequence[Any], number: int = 2) -> None:
    """A baseline after change 18, which answers the orders before."""
    home.write(given, 18)
    relation = Relation(1, "shop", "item", "d", home.columns)
    version = lake.version(home.task.target_path(ITEM))
    taken = Baseline(ITEM, relation, position(19), len(given), version, at(20), 0, number, 2, 18)
    write_baseline(home.task.control_path("baselines"), taken)


@once
def begun(folder: Path) -> TaskHome:
    """A row in the baseline, up to 10, and changes 12 and 13."""
    made = TaskHome(folder)
    made.baseline([item(1)], after=10)
    made.store((12, "U", item(1, "b")), (13, "U", item(1, "c")))
    made.applied([item(1, "c")], 13)
    return made


def lose(home: TaskHome, way: str) -> None:
    """What is changed from 15 to 18 is lost; the new baseline is not there yet."""
    if way == "removed and added":
        order(home, 1, commands.REMOVE, 15)
        order(home, 2, commands.ADD, 17)
    elif way == "made again":
        order(home, 1, commands.RESYNC, 15, commands.CAPTURE)
    elif way == "partition attached":
        order(home, 1, commands.SUSPEND, 15, commands.CAPTURE, ATTACHED.format("shop.item_1"))
        order(home, 2, commands.RESYNC, 17)
    else:
        stream(home, 1, seq(1))
        stream(home, 4, seq(14))


@once
def lossy(folder: Path, way: str) -> TaskHome:
    """Up to 14 and from 19 on all is captured; there are 12, 13, 22 and 24."""
    made = begun(folder)
    lose(made, way)
    baseline(made, [item(1, "lost"), item(2, "lost")])
    made.store((22, "U", item(1, "after")), (24, "I", item(3)))
    return made


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    return lossy(tmp_path, "removed and added")


@pytest.fixture(params=WAYS, scope="module")
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TaskTable:
    """Nobody writes to it."""
    return table(lossy(tmp_path_factory.mktemp("shop"), request.param))


def refused(asked: TaskTable, start: PositionLike | None, end: PositionLike | None) -> None:
    with pytest.raises(GapError, match=r"shop\.item between change number 13 and .* were never captured"):
        asked.net(start, end)


def test_every_question_is_refused(home: TaskHome) -> None:
    asked = table(home)
    for question in RANGES:
        with pytest.raises(GapError):
            getattr(asked, question)(12, 22)
    with pytest.raises(GapError):
        asked.chain({"id": 1}, 12, 22)
    with pytest.raises(GapError):
        tailrace.open(home.file).transactions(12, 22)


@pytest.mark.parametrize("kind", KINDS)
def test_no_question_goes_across(asked: TaskTable, kind: str) -> None:
    of, ranges = KINDS[kind], [(12, 22), (13, 24), (16, 22), (12, 17), (15, 17)]
    assert asked.task
    if streams.renewed(asked.task) and kind in ("number", "change_seq"):
        ranges = ranges[:2]  # what LOG never had has no numbers
    for start, end in ranges:
        refused(asked, of(start), of(end))
    refused(asked, None, of(24))
    refused(asked, of(12), None)


@pytest.mark.parametrize("kind", KINDS)
def test_each_side_is_answered(asked: TaskTable, kind: str) -> None:
    of = KINDS[kind]
    for start in (22, 24):
        assert len(asked.changes(of(start)).rows()) == (2 if start == 22 else 1)
    assert rows(asked.changes(of(22), of(24))) == [(1, "after"), (3, "a")]
    before = of(12) if kind == "time" else of(13)  # of a time, more may have been lost in the same hundredth
    assert rows(asked.changes(None, before))[0] == (1, "b")


def test_the_places_that_the_error_names_can_be_asked_for(asked: TaskTable) -> None:
    with pytest.raises(GapError) as caught:
        asked.net()
    hint = caught.value.hint or ""
    words = hint.replace(",", "").split()
    ends = [w for w in words if w.isdecimal() or len(w) == 40]
    assert (
        len(ends) == 2
        and ends[0] == "13"
        and ITEM.replace(".", "/") in (caught.value.where or "").replace(".", "/")
    )
    assert rows(asked.changes(None, ends[0])) == [(1, "b"), (1, "c")]
    assert rows(asked.changes(ends[1])) == [(1, "after"), (3, "a")]
    assert rows(asked.changes(position(19))) == [(1, "after"), (3, "a")]
    assert [r["_change_type"] for r in asked.net(22).rows()] == [
        "update_preimage",
        "update_postimage",
        "insert",
    ]


def test_rows_are_those_of_the_new_baseline(asked: TaskTable) -> None:
    assert rows(asked.as_of(20)) == [(1, "lost"), (2, "lost")]
    assert rows(asked.current()) == [(1, "after"), (2, "lost"), (3, "a")]
    with pytest.raises(GapError):
        asked.as_of(22, base=asked.schema.empty_table())


def test_differences_begin_with_the_rows_of_the_new_baseline(home: TaskHome) -> None:
    assert len(table(home).diff(20).rows()) == 3


@pytest.mark.parametrize("way", TOLD_BY)
def test_what_retention_left_begins_behind_it(tmp_path: Path, way: str) -> None:
    home = lossy(tmp_path, way)
    path = home.task.changes_path(ITEM)
    later = [r for r in lake.read(path).to_pylist() if r["header__change_seq"] >= seq(20)]
    part = lake.Part(path, lake.arrow_schema(path))
    part.write(pa.Table.from_pylist(later, lake.arrow_schema(path)))
    added = part.close()
    assert added is not None
    lake.replace_all(path, [added], schema=lake.arrow_schema(path), progress={"tailrace/kept": 18})
    # The row of before is in the new baseline.
    assert [r["name"] for r in table(home).net().rows()] == ["lost", "after", "a"]


def test_a_kept_history_does_not_go_on_across(tmp_path: Path) -> None:
    home = begun(tmp_path)
    kept = table(home).keep_history(
        str(tmp_path / "kept"), base=pa.Table.from_pylist([item(1)], table(home).schema)
    )
    lose(home, "removed and added")
    baseline(home, [item(1, "lost"), item(2, "lost")])
    before = kept.versions().rows()
    for _ in range(2):
        with pytest.raises(GapError, match="never captured") as caught:
            table(home).keep_history(str(tmp_path / "kept"))
        home.store((22, "U", item(1, "after")))
    assert "start=" in (caught.value.hint or "") and kept.versions().rows() == before
    with pytest.raises(GapError):
        table(home).keep_history(str(tmp_path / "another"))
    assert not (tmp_path / "another").exists()


@pytest.mark.parametrize("way", TOLD_BY)
def test_another_history_begins_behind_it(tmp_path: Path, way: str) -> None:
    home = lossy(tmp_path, way)
    path, base = str(tmp_path / "later"), table(home).as_of(18).table()
    kept = table(home).keep_history(path, start=position(19), base=base)
    assert rows(kept.current()) == [(1, "after"), (2, "lost"), (3, "a")]
    home.store((26, "D", item(2)))
    assert rows(table(home).keep_history(path).current()) == [(1, "after"), (3, "a")]


def test_a_history_may_begin_before_there_are_changes(tmp_path: Path) -> None:
    home = begun(tmp_path)
    lose(home, "removed and added")
    baseline(home, [item(1, "lost"), item(2, "lost")])
    for _ in range(2):
        kept = table(home).keep_history(str(tmp_path / "kept"), start=19, base=table(home).current().table())
        assert rows(kept.current()) == [(1, "lost"), (2, "lost")]
    home.store((19, "U", item(1, "after")))
    kept = table(home).keep_history(str(tmp_path / "kept"), start=19)
    assert rows(kept.current()) == [(1, "after"), (2, "lost")]


@once
def unanswered(folder: Path, way: str) -> TaskHome:
    """Change 22 is there, and the baseline before it is not."""
    home = begun(folder)
    lose(home, way)
    home.store((22, "U", item(2, "after")))
    return home


@pytest.mark.parametrize("way", WAYS)
def test_no_question_goes_on_until_the_new_baseline_is_there(tmp_path: Path, way: str) -> None:
    with pytest.raises(GapError) as caught:
        table(unanswered(tmp_path, way)).net()
    assert "after change number 13 were never captured" in caught.value.what
    assert "`tailrace status`" in (caught.value.hint or "")


@pytest.mark.parametrize("way", ["made again", "new stream"])
def test_rows_are_those_of_before_until_the_new_baseline_is_there(tmp_path: Path, way: str) -> None:
    asked = table(unanswered(tmp_path, way))
    with pytest.raises(GapError, match="never captured"):
        asked.current()
    for end in (22, None):
        with pytest.raises(GapError, match="never captured"):
            asked.diff(12, end)
    assert [r["name"] for r in asked.diff(12, 13).rows()] == ["b", "c"]
    assert rows(asked.as_of(13)) == [(1, "c")]


@pytest.mark.parametrize("way", WAYS)
def test_all_is_answered_where_nothing_has_come_since(tmp_path: Path, way: str) -> None:
    home = begun(tmp_path)
    lose(home, way)
    asked = table(home)
    assert rows(asked.current()) == [(1, "c")]
    assert len(asked.changes().rows()) == 2
    if way == WAYS[0]:  # it reads the rows and the changes in the same way
        assert [r["name"] for r in asked.diff(12).rows()] == ["b", "c"]


def test_a_new_baseline_alone_loses_nothing(tmp_path: Path) -> None:
    """Changes go on into the change table while it is read."""
    home = begun(tmp_path)
    order(home, 1, commands.RESYNC, 15)
    baseline(home, [item(1, "d")])
    home.store((16, "U", item(1, "d")), (22, "U", item(1, "after")))
    assert len(table(home).changes().rows()) == 4
    assert [r["name"] for r in table(home).net(22).rows()] == ["d", "after"] and table(home).net().rows()


def test_a_removed_table_is_answered_as_far_as_it_was_captured(tmp_path: Path) -> None:
    home = begun(tmp_path)
    order(home, 1, commands.REMOVE, 14)
    home.store((16, "U", item(1, "d")))  # capture had not heard of it yet
    assert len(table(home).changes().rows()) == 3
    assert rows(table(home).current()) == [(1, "d")]
    assert rows(table(home).as_of(16)) == [(1, "d")]
    kept = table(home).keep_history(str(tmp_path / "kept"))
    assert rows(table(home).keep_history(kept.path).current()) == [(1, "d")]


@once
def removed(folder: Path) -> TaskHome:
    """The table is captured up to 15; others go on."""
    made = begun(folder)
    order(made, 1, commands.REMOVE, 15)
    ledger.write_stored(made.task.control_path("stored"), Stored(50, seq(50), position(50), at(50)), {})
    return made


def test_a_removed_table_has_no_rows_of_later_places(tmp_path: Path) -> None:
    """Rows at places of each kind, and each question."""
    home = removed(tmp_path)
    task, asked = tailrace.open(home.file), table(home)
    questions: list[Callable[[], object]] = [
        lambda: asked.as_of(30),
        lambda: asked.as_of(at(30)),
        lambda: asked.diff(13, position(30)),
        lambda: asked.diff(at(13), seq(30)),
        *(partial(asked.net, of(20), of(50)) for of in KINDS.values()),
        lambda: task.cut(seq(30), [ITEM]),
        lambda: task.cut(at(30), [ITEM]),
        lambda: task.cut(None, [ITEM]),
        lambda: task.transactions(position(12), position(50), [ITEM]),
    ]
    for question in questions:
        with pytest.raises(GapError, match=r"after change number 13 .* captured no longer") as error:
            question()
        assert "up to change number 13" in (error.value.hint or "") and "tailrace add" in (
            error.value.hint or ""
        )
    assert rows(asked.as_of(at(13))) == rows(asked.current()) == [(1, "c")]
    for of in KINDS.values():
        assert len(asked.changes(of(12)).rows()) == len(asked.changes(None, of(13)).rows()) == 2
    assert [r["name"] for r in asked.diff(position(12)).rows()] == ["b", "c"]
    assert len(task.transactions().rows()) == 2


def test_transactions_of_all_tables_have_a_removed_one_up_to_its_removal(tmp_path: Path) -> None:
    home = removed(tmp_path)
    task = tailrace.open(home.file)
    ranges: tuple[tuple[int, int, list[str]], ...]
    ranges = ((12, 50, ["12", "13"]), (13, 30, ["13"]), (12, 12, ["12"]), (20, 50, []))
    for of, (start, end, want) in zip(KINDS.values(), ranges, strict=True):
        found = task.transactions(of(start), of(end)).rows()
        assert [r["transaction_id"] for r in found] == want
    assert task.sql('SELECT * FROM transactions(start => 12, "end" => 50)').rows()
    order(home, 2, commands.ADD, 17)
    for of in KINDS.values():
        with pytest.raises(GapError, match="never captured"):
            task.transactions(of(12), of(50))


def test_changes_that_came_before_the_new_baseline_began_are_within_the_gap(tmp_path: Path) -> None:
    """The table was published again by then; what came before them is missing all the same."""
    home = begun(tmp_path)
    lose(home, "removed and added")
    home.store((17, "U", item(1, "d")))
    baseline(home, [item(1, "d")])
    home.store((22, "U", item(1, "after")))
    asked = table(home)
    for start, end in ((None, 17), (12, 17), (17, None), (17, 22), (17, 17), (18, 22)):
        refused(asked, start, end)
    assert rows(asked.changes(19)) == [(1, "after")]


@pytest.mark.slow
def test_records_of_gaps_are_kept(tmp_path: Path) -> None:
    home = begun(tmp_path)
    order(home, 1, commands.REMOVE, 15)
    order(home, 2, commands.ADD, 17)
    baseline(home, [item(1)])
    home.store((22, "U", item(1, "after")))
    pauses = [(n, commands.PAUSE if n % 2 else commands.RESUME) for n in range(3, 401)]
    ordered = [
        {"number": n, "at": at(30), "table": ITEM, "action": action, "why": "", "who": "me"}
        for n, action in pauses
    ]
    put(home.task.commands_path, COMMANDS, *ordered)
    record = home.task.control_path("baselines")
    taken = read_baselines(record)[ITEM]
    write_baseline(record, *(replace(taken, number=n) for n in range(3, 140)))
    trim_tables(home.task, now=at(30) + dt.timedelta(days=400))
    assert len(commands.read(home.task.commands_path)) < 10
    assert len(all_baselines(home.task.control_path("baselines"))) < 10
    with pytest.raises(GapError, match="between change number 13 and change number 19"):
        table(home).net()
