"""Orders for single tables, and what they make of a table."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.config.task import load
from tailrace.lake import delta as lake
from tailrace.lake import json_files
from tailrace.model.change import Column, Relation
from tailrace.state import commands, lifecycle, live
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.state.commands import Command
from tailrace.state.lifecycle import Failure, TableLifecycle, TableState, states

from ..processes import copies

pytestmark = pytest.mark.unit

AT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


@dataclass(frozen=True)
class Taken:
    order: int
    number: int = 1


def after(*actions: str, taken: Taken | None = None) -> TableLifecycle:
    """What a table is after orders 1, 2, ...; `land:2` is the landing of baseline 2."""
    orders = []
    for number, text in enumerate(actions, 1):
        action, _, baseline = text.partition(":")
        orders.append(Command(number, AT, "s.t", action, f"{action}!", "me", int(baseline or 0)))
    return states(orders, {"s.t": taken} if taken else {})["s.t"]


BASELINE: Any = Taken(order=0)


@pytest.mark.parametrize(
    ("actions", "facts", "state"),
    [
        ((), {}, TableState.DISCOVERED),
        (("add",), {}, TableState.WAITING),
        (("resync",), {}, TableState.WAITING),
        (("resync",), {"baseline": BASELINE}, TableState.APPLYING),
        (("anew",), {"baseline": BASELINE}, TableState.WAITING),
        (("land:1",), {}, TableState.LOADING),
        ((), {"loading": BASELINE}, TableState.LOADING),
        ((), {"baseline": BASELINE}, TableState.APPLYING),
        ((), {"baseline": BASELINE, "failure": Failure(2, "no room", AT)}, TableState.FAILED),
        (("pause",), {"baseline": BASELINE}, TableState.PAUSED),
        (("suspend", "pause"), {"baseline": BASELINE}, TableState.SUSPENDED),
        (("pause", "suspend", "remove"), {"baseline": BASELINE}, TableState.DROPPED),
        (("remove", "add"), {"baseline": BASELINE}, TableState.WAITING),
    ],
)
def test_state_of_a_table(actions: tuple[str, ...], facts: dict[str, Any], state: TableState) -> None:
    table = after(*actions) if actions else TableLifecycle("s.t")
    assert replace(table, **facts).state is state


def test_lifecycles_of_a_task_have_its_baselines_and_failures(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text("name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\n")
    task = load(tmp_path / "shop.yaml")
    assert lifecycle.read(task) == {}
    relation = Relation(7, "s", "a", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
    done = Baseline("s.a", relation, "0" * 40, 3, 0, AT, 1.0, after=0)
    opened = replace(done, table="s.b", window="open")
    write_baseline(task.control_path("baselines"), done, opened)
    lifecycle.record_failure(task.control_path("errors"), "s.a", 2, "no room")
    commands.give(task.commands_path, commands.PAUSE, ["s.c"], why="", who="me")
    found = lifecycle.read(task)
    assert {t: one.state for t, one in found.items()} == {
        "s.a": TableState.FAILED, "s.b": TableState.LOADING, "s.c": TableState.PAUSED,
    }  # fmt: skip
    assert (found.baselines, found["s.b"].loading, found["s.d"].state) == (
        {"s.a": done}, opened, TableState.WAITING,
    )  # fmt: skip
    assert (list(found.waiting), found.removed, found.target_names) == (["s.c"], set(), {})


def test_a_paused_table_waits_until_it_is_resumed() -> None:
    assert (after("pause").held, after("pause").why, after("pause").waits) == ("paused", "pause!", True)
    assert (after("pause", "resume").held, after("pause", "resume").why) == ("", "")


def test_a_suspension_keeps_its_reason_and_ends_with_the_baseline_that_was_asked_for() -> None:
    asked = after("suspend", "pause", "resync", taken=Taken(order=0))
    assert (asked.held, asked.why, asked.wanted) == ("suspended", "suspend!", 3)
    done = after("suspend", "resync", taken=Taken(order=2))
    assert (done.held, done.why, done.wanted, done.waits) == ("", "", 0, False)


def test_what_is_suspended_again_while_its_baseline_is_read_stays_so() -> None:
    assert after("suspend", "resync", "suspend", taken=Taken(order=2)).held == "suspended"
    assert after("suspend", "resync", "suspend", "resync", taken=Taken(order=2)).wanted == 4


def test_a_pause_outlives_a_baseline() -> None:
    assert after("pause", "resync", taken=Taken(order=2)).held == "paused"


@pytest.mark.parametrize("first", [("pause", "suspend"), ("suspend", "pause")])
def test_a_pause_outlives_a_suspension_that_a_baseline_ends(first: tuple[str, str]) -> None:
    """`pause` and `suspend` may come at the same moment."""
    assert (after(*first).held, after(*first).why) == ("suspended", "suspend!")
    assert after(*first, "resync", taken=Taken(order=0)).held == "suspended"
    done = after(*first, "resync", taken=Taken(order=3))
    assert (done.held, done.why, done.who, done.since, done.wanted) == ("paused", "pause!", "me", AT, 0)
    assert after(*first, "resume") == TableLifecycle("s.t")
    assert after(*first, "resume", "suspend", "resync", taken=Taken(order=5)).held == ""
    assert after(*first, "remove", "add", taken=Taken(order=4)).held == ""


def test_pause_under_a_suspension_lasts(tmp_path: Path) -> None:
    path = str(tmp_path / "orders")
    for action in ("pause", "suspend", "resync"):
        commands.give(path, action, ["s.t"], why=action, who="me")
    done = states(commands.read(path), {"s.t": Taken(order=3)})["s.t"]
    assert (done.held, done.why) == ("paused", "pause")


def test_apply_waits_from_the_landing_of_a_baseline_until_it_is_recorded() -> None:
    assert after("resync", taken=Taken(0, 1)).waits is False
    assert after("resync", "land:2", "resume", taken=Taken(0, 1)).waits is True
    assert after("resync", "land:2", taken=Taken(1, 2)).waits is False


def test_a_removed_table_comes_back_with_a_baseline_only() -> None:
    assert after("remove", "drop", taken=Taken(0)) == TableLifecycle(
        "s.t", member="removed", why="remove!", who="me", since=AT, gap=True, dropped=2
    )
    assert after("remove", "drop", "dropped").dropped == 0
    back = after("remove", "drop", "add", taken=Taken(0))
    assert (back.member, back.wanted, back.waits, back.dropped) == ("added", 3, True, 0)
    assert after("remove", "drop", "add", taken=Taken(3)).waits is False


def test_a_table_that_left_with_the_task_file_comes_back_with_it() -> None:
    def of(*given: tuple[str, str]) -> TableLifecycle:
        made = [Command(n, AT, "s.t", action, "", who) for n, (action, who) in enumerate(given, 1)]
        return states(made, {})["s.t"]

    left, back = ("remove", "the task file"), ("add", "the task file")
    assert (of(left).member, of(left).unlisted, of(left).waits) == ("removed", True, True)
    assert (of(left, back).member, of(left, back).unlisted, of(left, back).wanted) == ("file", False, 2)
    assert not of(("remove", "me")).unlisted and not of(left, ("remove", "me")).unlisted
    assert of(left, ("add", "me")).member == "added"


def test_apply_has_heard_of_an_order_when_it_says_so_or_does_not_run(tmp_path: Path) -> None:
    assert commands.heard(str(tmp_path), 3)
    with live.lock(tmp_path, "pipeline"):
        assert not commands.heard(str(tmp_path), 3)
        json_files.write(tmp_path, "pipeline", {"commands": 2})
        assert not commands.heard(str(tmp_path), 3)
        json_files.write(tmp_path, "pipeline", {"commands": 3})
        assert commands.heard(str(tmp_path), 3)


def test_orders_given_at_once_from_everywhere_are_all_there_with_numbers_of_their_own(tmp_path: Path) -> None:
    path = str(tmp_path / "orders")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: commands.suspend(path, f"s.t{n}", "why"), range(8)))
    commands.give(path, commands.PAUSE, ["s.a", "s.b"], why="night", who="me")
    found = commands.read(path)
    assert [o.number for o in found] == list(range(1, 11))
    assert sorted(o.table for o in found[:8]) == [f"s.t{n}" for n in range(8)]
    assert [(o.table, o.action, o.why, o.who) for o in found[8:]] == [
        ("s.a", "pause", "night", "me"), ("s.b", "pause", "night", "me"),
    ]  # fmt: skip
    assert sorted(lifecycle.of_task(path, {}).waiting) == sorted(
        [*(f"s.t{n}" for n in range(8)), "s.a", "s.b"]
    )


@pytest.mark.parametrize(("mine", "others"), [(3, 1), (1, 3), (2, 2)])
def test_orders_given_between_the_look_at_the_numbers_and_the_commit_get_other_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mine: int, others: int
) -> None:
    path = str(tmp_path / "orders")
    commands.give(path, commands.PAUSE, ["s.first"], why="", who="me")
    append, overtaken = lake.append, []

    def overtaking(*given: Any, **named: Any) -> int | None:
        if not overtaken:  # the numbers have been taken, and nothing is committed yet
            overtaken.append(True)
            commands.give(path, commands.RESUME, [f"s.other{n}" for n in range(others)], why="", who="other")
        return append(*given, **named)

    monkeypatch.setattr(lake, "append", overtaking)
    last = commands.give(path, commands.PAUSE, [f"s.mine{n}" for n in range(mine)], why="", who="me")
    found = commands.read(path)
    assert [o.number for o in found] == list(range(1, mine + others + 2))
    assert [o.table for o in found] == [
        "s.first", *(f"s.other{n}" for n in range(others)), *(f"s.mine{n}" for n in range(mine))
    ]  # fmt: skip
    assert last == commands.newest(path) == mine + others + 1


def _give_many(path: str, who: str, many: int) -> None:
    for turn in range(6):
        commands.give(path, commands.PAUSE, [f"{who}.t{n}" for n in range(many)], why=str(turn), who=who)


def test_processes_that_give_one_order_or_several_never_share_a_number(tmp_path: Path) -> None:
    path = str(tmp_path / "orders")
    givers = [copies.Process(target=_give_many, args=(path, f"g{many}", many)) for many in (1, 2, 4)]
    for one in givers:
        one.start()
    for one in givers:
        one.join(60)
    found = commands.read(path)
    assert [o.number for o in found] == list(range(1, 6 * (1 + 2 + 4) + 1))
    for many in (1, 2, 4):
        mine = [o for o in found if o.who == f"g{many}"]
        assert [o.why for o in mine] == [str(turn) for turn in range(6) for _ in range(many)]
        starts = [o.number for o in mine][::many]
        assert [o.number for o in mine] == [n + k for n in starts for k in range(many)]  # not torn apart


def test_commands_that_come_after_a_removal_leave_its_reason_and_time() -> None:
    """Given at the same moment, they may be recorded in any order."""
    removed = after("remove")
    for late in ("pause", "suspend", "resume", "resync", "resync_exact", "anew"):
        assert after("remove", late) == removed
        assert after("remove", late, taken=Taken(order=2)) == removed
    added = after("remove", "pause", "add", "resync")
    assert (added.member, added.held, added.wanted) == ("added", "", 4)


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ("", TableState.WAITING),
        ("baseline: {enabled: false}\n", TableState.APPLYING),
        ("policies: {s.a: 1}\n", TableState.DISCOVERED),
    ],
)
def test_state_of_a_table_without_a_baseline_follows_from_the_task_file(
    tmp_path: Path, settings: str, state: TableState
) -> None:
    text = "name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\n"
    (tmp_path / "shop.yaml").write_text(text + settings)
    assert lifecycle.read(load(tmp_path / "shop.yaml"))["s.a"].state is state
