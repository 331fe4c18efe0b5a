"""What becomes of tables by the source's catalog."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.capture.ddl_watch import DdlWatch
from tailrace.capture.followed_tables import FollowedTables
from tailrace.capture.table_selection import KnownTables, MovedTables, find_moved, wanted_tables
from tailrace.capture.unlisted_tables import add_listed_again, find_unlisted, warn_of_archives
from tailrace.errors import SourceError
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.lake.log import Layout, LogState
from tailrace.model import sequence
from tailrace.model.change import Relation
from tailrace.sources.base import LeftOut, Renamed
from tailrace.sources.soliddb.catalog import chosen
from tailrace.state import commands, ddl, ledger, lifecycle, streams
from tailrace.state.baselines import Baseline, write_baseline

from .test_renaming import states, task

pytestmark = pytest.mark.unit
T = "s.t"
AT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


class Catalog:
    """The names that relations have."""

    def __init__(self, **now: str) -> None:
        self._now = {int(relid.removeprefix("r")): name for relid, name in now.items()}
        self.renamed: list[Renamed] = []

    def names(self, relids: Sequence[int]) -> dict[int, str]:
        return {r: n for r, n in self._now.items() if r in relids}

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        return sorted(self._now.values())

    unpublished: dict[str, str] = {}  # noqa: RUF012 - nothing is locked

    def locked(self, tables: Sequence[str]) -> dict[str, str]:
        return {}

    def left_out(self) -> dict[str, LeftOut]:
        return {}

    def attached(self, tables: Sequence[str]) -> dict[str, str]:
        return {}

    def called(self, renamed: Sequence[Renamed]) -> None:
        self.renamed = list(renamed)


def _moved(catalog: Any, *relids: int, baseline: int) -> MovedTables:
    history = {T: [Layout(Relation(r, "s", "t", "d", ()), b"", "") for r in relids]}
    taken: Any = {T: SimpleNamespace(relation=Relation(baseline, "s", "t", "d", ()))}
    return find_moved(catalog, history, taken, lambda table: False)


def test_a_table_made_again_whose_first_changes_came_before_its_new_baseline() -> None:
    """The process was killed between the two: the table is still the task's."""
    catalog = Catalog(r8=T)
    assert _moved(catalog, 7, 8, baseline=7) == MovedTables()
    assert catalog.renamed == []


def test_the_table_before_it_is_followed_no_longer_when_it_only_gave_its_name() -> None:
    catalog = Catalog(r7="s.t_old", r8=T)
    old = Renamed(7, "s.t, relation 7", "s.t_old")
    assert _moved(catalog, 7, 8, baseline=7) == MovedTables(left=frozenset({"s.t_old"}), old=(old,))
    assert catalog.renamed == [old]


def test_a_table_made_again_that_nothing_is_known_of_yet_is_a_member_too() -> None:
    assert _moved(Catalog(r9=T), 7, 8, baseline=8) == MovedTables()


def test_the_target_of_a_removed_table_goes_at_the_start_of_a_session(tmp_path: Path) -> None:
    """With `--once` a session may end before it has looked at orders again."""
    one = task(tmp_path)
    lake.append(one.target_path("s.a"), pa.table({"id": [1]}))
    for action in (commands.REMOVE, commands.DROP):
        commands.give(one.commands_path, action, ["s.a"], why="dropped at the source", who="ddl")
    source: Any = Catalog(r8="s.b")
    followed = FollowedTables(one, lambda *_: [])
    followed.begin(source)
    assert followed.tables == ["s.b"]
    assert not lake.exists(one.target_path("s.a")) and states(one)["s.a"].gone


class Selected(Catalog):
    """Tables by the patterns of a task file."""

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        return chosen(super().tables([]), patterns, exclude)


def test_a_table_that_the_task_file_selects_no_longer_leaves_until_it_does_again(tmp_path: Path) -> None:
    """Its changes in between are in no change table, so it comes back with a new baseline."""
    source: Any = Selected(r1="s.a", r2="s.b")
    excluding = task(tmp_path, exclude="s.b")
    published = json.dumps({"s.a": "1", "s.b": "1"})
    streams.write(excluding, streams.StreamRecord(0, 1, streams.MADE, {streams.PUBLISHED: published}))
    followed = FollowedTables(excluding, lambda *_: [])
    followed.begin(source)
    assert followed.tables == ["s.a"]
    left = states(excluding)["s.b"]
    assert (left.member, left.why, left.who) == (
        "removed",
        "the task file no longer selects it",
        "the task file",
    )
    assert "s.a" not in states(excluding)

    FollowedTables(excluding, lambda *_: []).begin(source)  # it is said once
    assert [(o.table, o.action) for o in commands.read(excluding.commands_path)] == [("s.b", "remove")]

    followed = FollowedTables(task(tmp_path), lambda *_: [])
    followed.begin(source)
    assert followed.tables == ["s.a", "s.b"]
    back = states(excluding)["s.b"]
    assert (back.member, back.wanted, back.waits) == ("file", 2, True)


def test_the_task_file_brings_back_neither_archives_nor_what_an_operator_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = "tables: {s.a: {mode: archive}}\n"
    one = task(tmp_path, archive)
    known = KnownTables(one)
    for table, who in (("s.a", commands.TASK_FILE), ("s.b", "capture")):
        commands.give(one.commands_path, commands.REMOVE, [table], why="", who=who)
    known.refresh()
    known.baselines = {"s.a": object()}
    assert not add_listed_again(one, known)
    warn_of_archives(one, known)
    assert caplog.messages == [
        "s.a: not captured, though the task file selects it again; `tailrace add TASK TABLE` captures it again, "
        "and a new baseline replaces the archive's rows"
    ]


def test_a_renamed_table_that_the_task_file_calls_by_its_new_name_stays(tmp_path: Path) -> None:
    one = task(tmp_path, exclude="s.a")
    known = KnownTables(one)
    source: Any = Selected(r1="s.b")
    known.baselines = {"s.a": object(), "s.gone": object()}
    now = MovedTables(frozenset({"s.gone"}), frozenset({"s.b"}), (Renamed(1, "s.a", "s.b"),))
    wanted = wanted_tables(source, one, lifecycle.TableStates(), now)
    assert wanted == ["s.a"]
    assert find_unlisted(one, known, wanted, now.gone) == []
    assert find_unlisted(one, known, [], now.gone) == ["s.a"]


@pytest.mark.parametrize("order", ["s.a", "s.b"], ids=["its own name", "the name that it has now"])
def test_an_added_table_whose_name_another_one_has_now_is_that_one(tmp_path: Path, order: str) -> None:
    """One relation is captured under one name: the first by which it is known."""
    one = task(tmp_path, exclude="s.*")
    commands.give(one.commands_path, commands.ADD, ["s.b", order], why="", who="me")
    source: Any = Selected(r1="s.b")
    now = MovedTables(frozenset(), frozenset({"s.b"}), (Renamed(1, "s.a", "s.b"),))
    assert wanted_tables(source, one, states(one), now) == ["s.a"]


@pytest.mark.parametrize("name", ["s.wow!", "s.a[1]", "s.why?", "s.]", "s.*", "s.^-"])
def test_an_added_table_may_have_any_name(tmp_path: Path, name: str) -> None:
    one = task(tmp_path, exclude="s.*")
    commands.give(one.commands_path, commands.ADD, [name], why="", who="me")
    source: Any = Selected(r1=name, r2="s.wow", r3="s.a1")
    assert wanted_tables(source, one, states(one)) == [name]


def test_stop_waits_until_what_came_before_is_applied(tmp_path: Path) -> None:
    one = task(tmp_path, "tables: {s.a: {ddl: {drop_table: stop}}}\n")
    event = ddl.CatalogEvent("s.a", 7, "drop_table", sequence.make(0, 3))
    ddl.record_events(one.control_path("ddl_events"), [event])
    for applied in (2, 3):
        rows, app = pa.table({"upto": [applied]}), {ledger.APPLIED_APP: applied}
        DdlWatch(one).apply_policies()
        lake.append(one.control_path("applied"), rows, progress=app)
    for _ in range(2):  # at each start
        with pytest.raises(SourceError, match="dropped at the source, and its policy is `stop`"):
            DdlWatch(one).apply_policies()


@pytest.mark.parametrize("kind", ["drop_table", "rename_table", "recreate_table"])
def test_stop_is_nothing_to_a_table_that_was_removed(tmp_path: Path, kind: str) -> None:
    """That is what its hint says to do."""
    one = task(tmp_path, f"tables: {{s.a: {{ddl: {{{kind}: stop}}}}}}\n")
    event = ddl.CatalogEvent("s.a", 7, kind, sequence.make(0, 0), "s.new")
    ddl.record_events(one.control_path("ddl_events"), [event])
    with pytest.raises(SourceError, match="or remove the table from the task"):
        DdlWatch(one).apply_policies()
    commands.give(one.commands_path, commands.REMOVE, ["s.a"], why="", who="me")
    DdlWatch(one).apply_policies()
    key = ("s.a", event.change_seq, kind, 0)
    assert ddl.decisions(one.control_path("ddl_decisions")) == {key: "ignore"}
    commands.give(one.commands_path, commands.ADD, ["s.a"], why="", who="me")
    DdlWatch(one).apply_policies()  # it is settled


def test_a_kill_after_the_order_to_remove_a_dropped_table_leaves_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = task(tmp_path, "tables: {s.a: {ddl: {drop_table: apply}}}\n")
    event = ddl.CatalogEvent("s.a", 7, "drop_table", sequence.make(0, 0))
    ddl.record_events(one.control_path("ddl_events"), [event])
    give = commands.give

    def killed(path: str, action: str, *given: Any, **more: Any) -> int:
        if action == commands.DROP:
            raise KeyboardInterrupt
        return give(path, action, *given, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(commands, "give", killed)
        DdlWatch(one).apply_policies()
    assert (states(one)["s.a"].member, states(one)["s.a"].dropped) == ("removed", 0)
    for _ in range(2):
        DdlWatch(one).apply_policies()
    assert (states(one)["s.a"].member, states(one)["s.a"].dropped) == ("removed", 2)


def test_the_target_of_a_table_that_somebody_removed_before_stays(tmp_path: Path) -> None:
    one = task(tmp_path, "tables: {s.a: {ddl: {drop_table: apply}}}\n")
    ddl.record_events(
        one.control_path("ddl_events"), [ddl.CatalogEvent("s.a", 7, "drop_table", sequence.make(0, 0))]
    )
    commands.give(one.commands_path, commands.REMOVE, ["s.a"], why="", who="me")
    DdlWatch(one).apply_policies()
    assert states(one)["s.a"].dropped == 0


@pytest.mark.parametrize("policy", ["apply", "suspend", "stop"])
def test_a_drop_that_is_applied_late_leaves_the_table_alone_that_has_its_name_now(
    tmp_path: Path, policy: str
) -> None:
    more = f"tables: {{s.a: {{ddl: {{drop_table: {policy}, recreate_table: apply}}}}}}\n"
    one = task(tmp_path, more)
    path = one.control_path("ddl_events")
    dropped = ddl.CatalogEvent("s.a", 7, "drop_table", sequence.make(0, 3))
    ddl.record_events(path, [dropped])
    DdlWatch(one).apply_policies()  # the pipeline is behind
    ddl.record_events(path, [ddl.CatalogEvent("s.a", 7, "recreate_table", sequence.make(0, 4))])
    lake.append(one.control_path("applied"), pa.table({"upto": [3]}), progress={ledger.APPLIED_APP: 3})
    DdlWatch(one).apply_policies()
    assert commands.read(one.commands_path) == []
    key = ("s.a", dropped.change_seq, "drop_table", 0)
    assert ddl.decisions(one.control_path("ddl_decisions")) == {key: "ignore"}


@pytest.mark.parametrize(("seen", "actions"), [("r8", []), ("r7", ["remove", "drop"])])
def test_so_it_is_once_the_baseline_of_that_one_is_there_and_while_it_is_noticed(
    tmp_path: Path, seen: str, actions: list[str]
) -> None:
    one = task(tmp_path, "tables: {s.a: {ddl: {drop_table: apply}}}\n")
    relation = Relation(7, "s", "a", "d", ())
    log.record_layouts(one.relations_path, [Layout(relation, bytes(20), "0" * 35)])
    event = ddl.CatalogEvent("s.a", 7, "drop_table", sequence.make(0, 0))
    ddl.record_events(one.control_path("ddl_events"), [event])
    source: Any = Catalog(**{seen: "s.a"})
    source.end_position, source.reached = lambda: b"5", lambda: b"4"  # the look's moment is not reached yet
    DdlWatch(one).check(source, LogState(b"3", 1, 0))
    assert [o.action for o in commands.read(one.commands_path)] == actions

    other = task(tmp_path / "other", "tables: {s.a: {ddl: {drop_table: apply}}}\n")
    ddl.record_events(other.control_path("ddl_events"), [event])
    relation = replace(relation, relid=int(seen.removeprefix("r")))
    taken = Baseline("s.a", relation, "00", 0, 0, AT, 0.0)
    write_baseline(other.control_path("baselines"), taken)
    DdlWatch(other).apply_policies()
    assert [o.action for o in commands.read(other.commands_path)] == actions


def _watched(tmp_path: Path, policy: str) -> tuple[Any, str]:
    """A task that knows s.a as relation 7, and where its events are."""
    one = task(tmp_path, f"tables: {{s.a: {{ddl: {{drop_table: {policy}}}}}}}\n")
    log.record_layouts(one.relations_path, [Layout(Relation(7, "s", "a", "d", ()), bytes(20), "0" * 35)])
    return one, one.control_path("ddl_events")


def _sees(one: Any, watch: DdlWatch, **now: str) -> None:
    """The watch looks at a catalog; whatever came before is in LOG, whose last change number is 3."""
    source: Any = Catalog(**now)
    source.end_position, source.reached = lambda: b"5", lambda: b"9"
    watch.check(source, LogState(b"9", 3, 0))


def _applied(one: Any) -> None:
    lake.append(one.control_path("applied"), pa.table({"upto": [3]}), progress={ledger.APPLIED_APP: 3})


@pytest.mark.parametrize(("policy", "actions"), [("apply", ["remove", "drop"]), ("suspend", ["suspend"])])
@pytest.mark.parametrize("late", [False, True])
def test_a_table_that_was_made_again_and_dropped_again_before_its_baseline_is_dropped(
    tmp_path: Path, policy: str, actions: list[str], late: bool
) -> None:
    one, path = _watched(tmp_path, policy)
    watch = DdlWatch(one)
    _sees(one, watch)
    _sees(one, watch, r8="s.a")
    if not late:
        _applied(one)
        _sees(one, watch, r8="s.a")
        assert commands.read(one.commands_path) == []
    for _ in range(2):
        _sees(one, watch)
    kinds = ["drop_table", "recreate_table", "drop_table"]
    assert [e.kind for e in ddl.events(path)] == kinds
    if late:
        _applied(one)
    DdlWatch(one).apply_policies()
    assert {o.action for o in commands.read(one.commands_path)} == set(actions)
    _sees(one, watch, r9="s.a")
    assert [e.kind for e in ddl.events(path)] == [*kinds, "recreate_table"]


def test_a_drop_is_not_settled_by_a_table_made_again_that_is_not_recorded_yet(tmp_path: Path) -> None:
    """The process is killed before it is, and that table is gone at the next start."""
    one, path = _watched(tmp_path, "suspend")
    ddl.record_events(path, [ddl.CatalogEvent("s.a", 7, "drop_table", sequence.make(0, 0))])
    source: Any = Catalog(r8="s.a")
    source.end_position, source.reached = lambda: b"5", lambda: b"4"
    DdlWatch(one).check(source, LogState(b"3", 1, 0))
    assert (commands.read(one.commands_path), ddl.decisions(one.control_path("ddl_decisions"))) == ([], {})
    _sees(one, DdlWatch(one))
    assert [o.action for o in commands.read(one.commands_path)] == ["suspend"]


def test_a_table_that_gave_its_name_has_it_no_longer_when_the_next_one_is_dropped(tmp_path: Path) -> None:
    one, path = _watched(tmp_path, "suspend")
    watch = DdlWatch(one)
    for now in ({"r7": "s.b"}, {"r7": "s.b", "r8": "s.a"}, {"r7": "s.b"}, {"r7": "s.b", "r9": "s.a"}):
        for _ in range(2):
            _sees(one, watch, **now)
    kinds = ["rename_table", "recreate_table"] * 2
    assert [(e.kind, e.new_name) for e in ddl.events(path)] == [(kind, "s.b") for kind in kinds]


def test_an_event_comes_after_what_was_received_before_it_and_is_not_in_log_yet(tmp_path: Path) -> None:
    """Else its policy is carried out first: a table is suspended, and lacks the row."""
    one = task(tmp_path)
    log.record_layouts(one.relations_path, [Layout(Relation(7, "s", "a", "d", ()), bytes(20), "0" * 35)])
    source: Any = Catalog()  # s.a is gone
    source.end_position, source.reached = lambda: b"5", lambda: b"9"
    watch, events = DdlWatch(one), one.control_path("ddl_events")
    watch.check(source, LogState(b"3", 1, 0), waiting=True)  # an insert at 4 waits for a commit to LOG
    assert ddl.events(events) == []
    watch.check(source, LogState(b"8", 2, 0), waiting=True)  # it is there, and a later one waits
    assert [(e.kind, sequence.number_of(e.change_seq)) for e in ddl.events(events)] == [("drop_table", 2)]


def test_an_event_needs_no_commit_where_nothing_waits_for_one(tmp_path: Path) -> None:
    one = task(tmp_path)
    log.record_layouts(one.relations_path, [Layout(Relation(7, "s", "a", "d", ()), bytes(20), "0" * 35)])
    source: Any = Catalog()
    source.end_position, source.reached = lambda: b"5", lambda: b"9"
    DdlWatch(one).check(source, LogState(b"3", 1, 0))
    (event,) = ddl.events(one.control_path("ddl_events"))
    assert sequence.number_of(event.change_seq) == 1
