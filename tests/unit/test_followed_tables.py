"""What capture does with the tables that it follows: publishes them, takes them out, or waits for somebody."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tailrace.capture.baselines import Baselines
from tailrace.capture.followed_tables import FollowedTables
from tailrace.capture.incremental_snapshot import Windows
from tailrace.capture.stream import ALTERED, MISSING, RECREATED
from tailrace.capture.table_selection import find_moved
from tailrace.config.task import Task
from tailrace.errors import SourceError
from tailrace.lake.log import Layout, LogState, LogWriter, record_layouts
from tailrace.model.change import Relation
from tailrace.operate.checks import without_suspended
from tailrace.sources.base import Finding, Renamed
from tailrace.state import commands, ddl, streams

from .test_membership import Selected
from .test_renaming import states, task

pytestmark = pytest.mark.unit

WITHOUT_BASELINES = "baseline: {enabled: false}\n"
TRACKED = "policies: {s.*: 1}\n"


class Server(Selected):
    """A catalog, the stream of its tables, and nobody who reads baselines."""

    busy: set[str] = set()  # noqa: RUF012 - nothing is read

    def __init__(self, lost: dict[str, str], **now: str) -> None:
        super().__init__(**now)
        self.prepared: list[str] = []
        self.withdrawn: list[str] = []
        self.lost = lambda *_, **__: lost
        self.roots: dict[str, str] = {}
        self.unidentified: dict[str, str] = {}

    def attached(self, tables: Sequence[str]) -> dict[str, str]:
        return {t: root for t, root in self.roots.items() if t in tables}

    def prepare(self, source: Any, tables: Sequence[str]) -> bool:
        self.prepared = list(tables)
        return False

    def withdraw(self, tables: Sequence[str]) -> bool:
        self.withdrawn += tables
        return True

    def due(self, *_: Any) -> list[str]:
        return []

    def unsent(self, tables: Any) -> None:
        """Nobody reads."""

    sent = unsent


def noted(one: Task, *tables: str) -> None:
    """Tables that were in the stream when capture prepared it."""
    published = json.dumps(dict.fromkeys(tables, "1"))
    streams.write(one, streams.StreamRecord(0, 1, streams.MADE, {streams.PUBLISHED: published}))


def follow(one: Task, server: Any) -> FollowedTables:
    followed = FollowedTables(one, lambda *_: [])
    followed.begin(server)
    followed.follow(server, server, server)
    return followed


@pytest.mark.parametrize("why", [MISSING, ALTERED])
def test_where_no_first_baseline_comes_a_table_that_lost_changes_waits(tmp_path: Path, why: str) -> None:
    one = task(tmp_path, WITHOUT_BASELINES)
    noted(one, "s.a", "s.b")
    server = Server({"s.a": why, "s.new": MISSING}, r1="s.a", r2="s.b", r3="s.new")
    follow(one, server)
    assert server.prepared == ["s.b", "s.new"]
    assert {t: (state.held, state.why) for t, state in states(one).items()} == {"s.a": ("suspended", why)}


def test_and_gets_a_baseline_if_its_policy_says_so(tmp_path: Path) -> None:
    one = task(tmp_path, WITHOUT_BASELINES + "tables: {s.a: {ddl: {recreate_table: apply}}}\n")
    noted(one, "s.a")
    server = Server({"s.a": MISSING}, r1="s.a")
    follow(one, server)
    assert server.prepared == ["s.a"] and states(one)["s.a"].wanted
    assert [(o.action, o.who) for o in commands.read(one.commands_path)] == [
        ("suspend", "capture"),
        ("resync", commands.CAPTURE),
    ]


def test_a_table_that_is_only_tracked_goes_on_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no target: nothing can wait, and no baseline can make up for it."""
    one = task(tmp_path, TRACKED)
    noted(one, "s.a")
    server = Server({"s.a": MISSING, "s.b": MISSING}, r1="s.a", r2="s.b")
    follow(one, server)
    assert server.prepared == ["s.a", "s.b"] and states(one) == {}
    assert caplog.messages == [
        "s.a: it was dropped and created again, or removed from the publication; at its level it gets no "
        "baseline: what was changed meanwhile is not tracked"
    ]


def test_a_table_whose_first_baseline_is_to_come_needs_no_other(tmp_path: Path) -> None:
    one = task(tmp_path)
    noted(one, "s.a")
    server = Server({"s.a": MISSING}, r1="s.a")
    follow(one, server)
    assert server.prepared == ["s.a"] and states(one) == {}


STOPS = "tables: {s.a: {ddl: {recreate_table: stop}}}\n"


def _in_log(one: Task, table: str, relid: int) -> None:
    relation = Relation(relid, *table.split("."), "d", ())
    record_layouts(one.relations_path, [Layout(relation, bytes(20), "0" * 35)])


def test_a_table_that_was_taken_out_of_the_publication_is_suspended_where_the_policy_is_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the same table: no event ends the task, and its changes would be missing in silence."""
    one = task(tmp_path, WITHOUT_BASELINES + STOPS)
    noted(one, "s.a", "s.b")
    _in_log(one, "s.a", 1)
    server = Server({"s.a": MISSING}, r1="s.a", r2="s.b")
    follow(one, server)
    assert server.prepared == ["s.b"]
    assert {t: (state.held, state.why) for t, state in states(one).items()} == {"s.a": ("suspended", MISSING)}
    assert caplog.messages == [f"s.a: {MISSING}; its policy is `stop`"]


def test_and_one_that_was_made_again_ends_the_task_if_nothing_has_been_decided(tmp_path: Path) -> None:
    one = task(tmp_path, WITHOUT_BASELINES + STOPS)
    noted(one, "s.a", "s.b")
    _in_log(one, "s.a", 1)
    server: Any = Server({"s.a": MISSING}, r3="s.a", r2="s.b")
    followed = follow(one, server)
    assert (server.prepared, states(one)) == (["s.b"], {})
    server.end_position, server.reached = lambda: b"5", lambda: b"9"
    with pytest.raises(SourceError, match="its policy is `stop`"):
        followed.watch.check(server, LogState(b"8", 0, 0))
    (event,) = ddl.events(one.control_path("ddl_events"))
    ddl.record_decisions(
        one.control_path("ddl_decisions"), [(("s.a", event.change_seq, event.kind, 0), "suspend")]
    )
    followed.watch.apply_policies()  # under an earlier policy, and somebody has resumed it since
    followed.follow(server, server, server)
    assert (states(one)["s.a"].held, states(one)["s.a"].why) == ("suspended", MISSING)


def _known(one: Task, tables: dict[str, int]) -> Any:
    """Gives the relations by which tables are known."""
    layouts = {t: [Layout(Relation(r, *t.split("."), "d", ()), b"", "")] for t, r in tables.items()}
    return lambda source: find_moved(source, layouts, {}, lambda _: False)


def test_a_followed_table_that_has_a_removed_ones_name_now_stays_in_the_stream(tmp_path: Path) -> None:
    one = task(tmp_path)
    commands.give(one.commands_path, commands.REMOVE, ["s.a", "s.c"], why="", who="me")
    server: Any = Server({}, r2="s.a", r3="s.d")  # s.b has the name of s.a, which is gone
    followed = FollowedTables(one, lambda *_: [])
    followed.watch.moved = _known(one, {"s.a": 1, "s.b": 2, "s.c": 3})  # type: ignore[method-assign]
    followed.begin(server)
    followed.follow(server, server, server)
    assert server.renamed == [Renamed(2, "s.b", "s.a"), Renamed(3, "s.c", "s.d")]
    assert (server.prepared, server.withdrawn) == (["s.b"], ["s.c"])


def test_and_so_does_one_when_the_removed_table_has_another_name(tmp_path: Path) -> None:
    one = task(tmp_path)
    commands.give(one.commands_path, commands.REMOVE, ["s.a"], why="", who="me")
    server: Any = Server({}, r1="s.old", r2="s.a")
    followed = FollowedTables(one, lambda *_: [])
    followed.watch.moved = _known(one, {"s.a": 1, "s.b": 2})  # type: ignore[method-assign]
    followed.begin(server)
    followed.follow(server, server, server)
    assert (server.prepared, server.withdrawn) == (["s.b"], ["s.a"])


class Reader(Server):
    """A server, and the baselines that are on their way while `happens` at each of its steps."""

    def __init__(self, one: Task, lost: dict[str, str], **now: str) -> None:
        super().__init__(lost, **now)
        windows = Windows(one, self)  # type: ignore[arg-type]
        writer = LogWriter(one.log_path, one.relations_path)
        self.work = Baselines(one, self, windows, threading.Event(), writer)  # type: ignore[arg-type]
        self.unsent, self.sent = self.work.unsent, self.work.sent  # type: ignore[method-assign,assignment]
        self.happens: Callable[[str], Any] = lambda step: None
        self.asked: list[str] = []

    def answers(self, table: str) -> int:
        """The order that a baseline answers which begins now."""
        return self.work._attempts([table])[table].order

    def prepare(self, source: Any, tables: Sequence[str]) -> bool:
        self.happens("prepare")
        return super().prepare(source, tables)

    def withdraw(self, tables: Sequence[str]) -> None:
        super().withdraw(tables)
        self.happens("withdrawn")

    def due(self, wanted: Sequence[str], *_: Any) -> list[str]:
        self.asked = list(wanted)
        return []


def test_a_baseline_that_begins_before_its_table_is_published_again_answers_no_order(tmp_path: Path) -> None:
    """A reading that is begun once more, or waits for others: changes up to the publication are missing."""
    one = task(tmp_path)
    noted(one, "s.a")
    server = Reader(one, {"s.a": MISSING}, r1="s.a")
    server.busy, answered = {"s.a"}, []
    server.happens = lambda step: answered.append((step, server.answers("s.a")))
    follow(one, server)
    wanted = states(one)["s.a"].wanted
    assert wanted and answered == [("prepare", 0)]
    assert server.answers("s.a") == wanted


def test_nor_does_one_of_a_removed_table_that_is_added_again(tmp_path: Path) -> None:
    one = task(tmp_path)
    commands.give(one.commands_path, commands.REMOVE, ["s.a"], why="", who="me")
    server = Reader(one, {}, r1="s.a", r2="s.b")
    server.busy, answered = {"s.a"}, []

    def added(step: str) -> None:
        if step == "withdrawn":
            commands.give(one.commands_path, commands.ADD, ["s.a"], why="", who="me")
            answered.append(server.answers("s.a"))

    server.happens = added
    followed = follow(one, server)
    assert (server.withdrawn, answered, server.answers("s.a")) == (["s.a"], [0], 0)
    followed.check(server, server, server)  # type: ignore[arg-type]
    assert (server.prepared, server.answers("s.a")) == (["s.a", "s.b"], 2)


def test_a_removed_table_that_is_added_again_just_before_it_is_withdrawn_stays(tmp_path: Path) -> None:
    """Its baseline may have answered that: from there on all changes have to come."""
    one = task(tmp_path)
    commands.give(one.commands_path, commands.REMOVE, ["s.a"], why="", who="me")
    server = Reader(one, {}, r1="s.a", r2="s.b")
    followed = FollowedTables(one, lambda *_: [])
    followed.begin(server)  # type: ignore[arg-type]
    commands.give(one.commands_path, commands.ADD, ["s.a"], why="", who="me")
    followed.follow(server, server, server)  # type: ignore[arg-type]
    assert server.withdrawn == []
    followed.check(server, server, server)  # type: ignore[arg-type]
    assert server.prepared == ["s.a", "s.b"]


def test_a_baseline_that_is_ordered_of_a_table_that_waits_begins_once_it_is_published(tmp_path: Path) -> None:
    one = task(tmp_path, WITHOUT_BASELINES)
    noted(one, "s.a", "s.b")
    server = Reader(one, {"s.a": MISSING}, r1="s.a", r2="s.b")
    server.happens = lambda _: commands.resync(one.commands_path, "s.a", "", who="me")
    followed = follow(one, server)
    assert (server.prepared, server.asked) == (["s.b"], ["s.b"])
    server.happens = lambda _: None
    followed.check(server, server, server)  # type: ignore[arg-type]
    assert (server.prepared, server.asked) == (["s.a", "s.b"], ["s.a", "s.b"])


def test_a_table_that_is_new_in_a_later_session_waits_if_it_cannot_be_captured(tmp_path: Path) -> None:
    """It came while the source was away: the checks of the session would end capture for it."""

    def findings(source: Any, names: Sequence[str]) -> list[Finding]:
        return [Finding("error", "the role may not read it", n, "GRANT") for n in names if n == "s.b"]

    one = task(tmp_path)
    followed = FollowedTables(one, findings)
    followed.begin(Server({}, r1="s.a"))  # type: ignore[arg-type]
    followed.begin(Server({}, r1="s.a", r2="s.b", r3="s.c"))  # type: ignore[arg-type]
    assert followed.tables == ["s.a", "s.c"]
    assert followed.message == "s.b cannot be captured yet: the role may not read it; fix: GRANT"
    first = FollowedTables(one, findings)  # at the first start it is to be said at once
    first.begin(Server({}, r1="s.a", r2="s.b"))  # type: ignore[arg-type]
    assert first.tables == ["s.a", "s.b"]


def _unreadable(_: Any, names: Sequence[str]) -> list[Finding]:
    return [Finding("error", f"the role may not read {n}", "server", "GRANT") for n in names if n == "s.b"]


def test_a_suspended_table_that_cannot_be_captured_waits_and_ends_no_session(tmp_path: Path) -> None:
    """It was dropped and created again, and its rights are gone."""
    one = task(tmp_path)
    server: Any = Server({}, r1="s.a", r2="s.b", r3="s.c")
    followed = FollowedTables(one, lambda *_: [])
    followed.begin(server)
    assert followed.tables == ["s.a", "s.b", "s.c"]
    commands.suspend(one.commands_path, "s.b", RECREATED)
    commands.suspend(one.commands_path, "s.c", "an error in its data")
    followed._findings = _unreadable
    for later in (followed, FollowedTables(one, _unreadable)):  # after a lost connection, and at a start
        later.begin(server)
        assert later.tables == ["s.a", "s.c"]
        assert later.message == "s.b cannot be captured yet: the role may not read s.b; fix: GRANT"
    followed._findings = lambda *_: []
    followed.begin(server)
    assert (followed.tables, followed.message) == (["s.a", "s.b", "s.c"], None)


def test_check_warns_of_what_is_wrong_with_suspended_tables_only() -> None:
    def look(names: Sequence[str]) -> list[Finding]:
        general = [Finding("error", "the slot is gone", "slot", "")]
        lacks = f"the role may not read {', '.join(names)}"  # one finding of all
        return [*general, *([Finding("error", lacks, "server", "GRANT")] if "s.b" in names else [])]

    found = without_suspended(look, ["s.a", "s.b"], {"s.b", "s.z"})
    assert [(one.level, one.what) for one in found] == [
        ("error", "the slot is gone"),
        ("warning", "the role may not read s.b"),
    ]
    assert without_suspended(look, ["s.a", "s.b"], set()) == look(["s.a", "s.b"])
