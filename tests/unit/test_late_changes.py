"""Changes that come late are told, whatever happened to the calls before: a model of files and a target."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.apply.vendor.applied_files import FilePart, Files
from tailrace.apply.vendor.late_changes import LateChanges, Passed

pytestmark = pytest.mark.unit

T = "s.t"


@dataclass
class World:
    """Files of change numbers, and a target that has some of them."""

    root: str
    files: dict[str, set[int]] = field(default_factory=dict)
    away: dict[str, set[int]] = field(default_factory=dict)
    has: set[int] = field(default_factory=set)
    reached: int = -1

    def parts(self, upto: int) -> Files:
        """The changes up to a number, by file."""
        mine = {f: sorted(n for n in numbers if n <= upto) for f, numbers in self.files.items()}
        return {
            f: FilePart(len(some), sum(n * 7919 + 13 for n in some), f"{some[-1]:019d}")
            for f, some in mine.items()
            if some
        }

    def call(self, ends: str, stops_at: int) -> dict[str, int]:
        """One call of `tailrace apply`: the changes that came late; with any, nothing is applied."""
        known, stood = LateChanges(self.root, "task"), {T: self.reached}
        late = known.late({T: self.parts(known.upto(T))}, stood, lambda table, upto: self.parts(upto))
        if late:
            return late
        every = set().union(*self.files.values()) if self.files else set()
        end = max(every, default=-1)
        known.plan({T: Passed(end, self.parts(end))}, stood)
        if ends == "killed before":
            return {}
        stop = min(end, stops_at) if ends == "stopped midway" else end
        new = {n for n in every if self.reached < n <= stop}
        self.has |= new
        self.reached = max(self.reached, *new) if new else self.reached
        if ends == "done":
            known.note({T: Passed(self.reached, self.parts(self.reached))}, stood)
        return {}

    def lost(self) -> set[int]:
        """Changes that the target has passed without having them."""
        every = set().union(*self.files.values()) if self.files else set()
        return {n for n in every if n <= self.reached} - self.has


ENDS = ["done", "killed before", "killed after", "stopped midway"]
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abc"), st.sets(st.integers(0, 30), min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["take away", "put back"]), st.sampled_from("abc"), st.just(set())),
    st.tuples(st.just("call"), st.sampled_from(ENDS), st.sets(st.integers(0, 30), min_size=1, max_size=1)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=9))
def test_what_comes_late_is_told(steps: list[tuple[str, str, set[int]]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = World(root)
        for what, name, numbers in [*steps, ("call", "done", {30})]:
            if what == "put":
                seen = set().union(*world.files.values(), *world.away.values())
                world.files[name] = world.files.get(name, set()) | (numbers - seen)
                if not world.files[name]:
                    del world.files[name]
            elif what == "take away" and name in world.files:
                world.away.setdefault(name, set()).update(world.files.pop(name))
            elif what == "put back" and name in world.away:
                world.files[name] = world.files.get(name, set()) | world.away.pop(name)
            elif what == "call":
                told = world.call(name, min(numbers))
                if name == "done" and not told:
                    assert world.lost() == set(), "skipped without a word"


def test_nothing_is_told_where_nothing_is_late() -> None:
    with tempfile.TemporaryDirectory() as root:
        world = World(root)
        for number, ends in enumerate(["done", "killed before", "killed after", "stopped midway", "done"]):
            world.files[f"f{number}"] = {10 * number, 10 * number + 5}
            assert world.call(ends, 10 * number) == {}
        assert world.lost() == set() and world.reached == 45


def test_a_call_that_was_killed_may_have_made_targets_of_other_names(tmp_path: Path) -> None:
    """Which table an id means was not written down any more: it is asked for."""
    killed = LateChanges(str(tmp_path), "task")
    assert killed.strange({"17": "no row names it"}) == {}
    killed.plan({"s.t": Passed(4, {"1.csv": FilePart(2, 9, "4")})}, {"s.t": -1})
    later = LateChanges(str(tmp_path), "task")
    assert later.strange({"17": "no row names it", "s.t": ""}) == {"17": "no row names it"}


def test_changes_below_the_progress_of_another_tables_target_came_late(tmp_path: Path) -> None:
    """A mapping without constants led both to one target, in calls of their own."""
    first, stood = LateChanges(str(tmp_path), "task"), {"s.b": -1}
    first.plan({"s.b": Passed(9, {"b.csv": FilePart(4, 9, "9")})}, stood)
    first.note({"s.b": Passed(9, {"b.csv": FilePart(4, 9, "9")})}, stood)
    mine = {"s.a": {5: FilePart(1, 5, "5"), 12: FilePart(2, 17, "12")}}

    def look(table: str, upto: int) -> Files:
        return {f"{n}.csv": part for n, part in mine[table].items() if n <= upto}

    found: dict[str, Files] = {"s.a": {}}
    assert LateChanges(str(tmp_path), "task").late(found, {"s.a": 9}, look) == {"s.a": 1}
    assert LateChanges(str(tmp_path), "task").late(found, {"s.a": -1}, look) == {}
    # Nothing at all was noted by versions that did not write it down.
    assert LateChanges(str(tmp_path / "old"), "task").late(found, {"s.a": 9}, look) == {}


@pytest.mark.parametrize(("number", "late"), [(30, {}), (5, {T: 1})])
def test_what_comes_between_the_place_and_the_end_of_a_call_that_stopped_is_not_late(
    tmp_path: Path, number: int, late: dict[str, int]
) -> None:
    world = World(str(tmp_path), {"a": {10, 50}})
    assert world.call("stopped midway", 20) == {}
    world.files["b"] = {number}
    assert world.call("done", 99) == late
    assert world.lost() == set() or late
