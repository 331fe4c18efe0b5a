"""Changes below a target's progress are refused, however earlier calls ended: a model of files and a target."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.apply.mapping.table_map import TableMap
from tailrace.apply.vendor.applied_files import AppliedFiles, late_files, refuse_late
from tailrace.apply.vendor.sequence_stats import FileChanges, Files, SequenceStats
from tailrace.errors import ApplyError

from ..examples import examples

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

    def count(self, end: int) -> Files:
        """The changes up to a number, by file."""
        passed = {f: {n for n in numbers if n <= end} for f, numbers in self.files.items()}
        return {f: FileChanges(len(n), sum(1 << one for one in n)) for f, n in passed.items() if n}

    def stats(self, end: int) -> dict[str, SequenceStats]:
        """The statistics of the files."""
        first = {f: (min(numbers), -1) for f, numbers in self.files.items()}
        return {T: SequenceStats(True, False, self.count(99), self.count(end), self.every(), -1, first)}

    def every(self) -> int:
        """The greatest number in the files."""
        return max(set().union(*self.files.values()), default=-1) if self.files else -1

    def call(self, ends: str, stops_at: int = 99) -> list[str]:
        """One call of `tailrace apply`. Returns the files with late changes; with any, nothing is applied."""
        applied, before = AppliedFiles(self.root, "task"), {T: self.reached}
        stats = self.stats(applied.end(T))
        if late := applied.late(stats, before, lambda table, end: self.count(end)):
            return late[T]
        applied.record(stats, {T: ""}, before)
        if ends == "killed before":
            return []
        stop = stops_at if ends == "stopped midway" else 99
        new = {n for numbers in self.files.values() for n in numbers if self.reached < n <= stop}
        self.has |= new
        self.reached = max(self.reached, *new) if new else self.reached
        return []

    def lost(self) -> set[int]:
        """Changes below the progress that the target does not have."""
        every = set().union(*self.files.values()) if self.files else set()
        return {n for n in every if n <= self.reached} - self.has


STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abc"), st.sets(st.integers(0, 30), min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["take away", "put back"]), st.sampled_from("abc"), st.just(set())),
    st.tuples(
        st.just("call"),
        st.sampled_from(["done", "killed before", "stopped midway"]),
        st.sets(st.integers(0, 30), min_size=1, max_size=1),
    ),
    st.tuples(st.just("remove the target"), st.just(""), st.just(set())),
)


@examples(25)
@given(st.lists(STEPS, min_size=2, max_size=9))
def test_no_late_change_is_skipped_silently(steps: list[tuple[str, str, set[int]]]) -> None:
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
            elif what == "remove the target":
                world.has, world.reached = set(), -1
            elif what == "call" and not world.call(name, min(numbers)) and name == "done":
                assert world.lost() == set()


def test_newer_changes_are_never_refused() -> None:
    with tempfile.TemporaryDirectory() as root:
        world = World(root)
        for number, ends in enumerate(["done", "killed before", "stopped midway", "done"]):
            world.files[f"f{number}"] = {10 * number, 10 * number + 5}
            assert world.call(ends, 10 * number) == []
        assert world.lost() == set() and world.reached == 35


@pytest.mark.parametrize(
    ("files", "late"),
    [
        ({"a": {1, 2, 4}}, []),
        ({}, []),
        ({"a": {1, 2, 4, 5}}, []),  # it has grown
        ({"a": {5, 6}}, []),  # it was replaced by newer changes
        ({"a": {1, 2, 4}, "b": {5}}, []),
        ({"b": {5}}, []),
        ({"b": {3}}, ["b (new)"]),
        ({"a": {1, 2, 4}, "b": {3, 5}}, ["b (new)"]),
        ({"a": {1, 2, 3, 4}}, ["a (changed)"]),
        ({"a": {2, 4}}, ["a (changed)"]),
        ({"b": {1, 2, 4}}, ["b (new)"]),  # it was renamed
    ],
)
def test_changed_and_new_files_with_older_changes_are_late(
    tmp_path: Path, files: dict[str, set[int]], late: list[str]
) -> None:
    world = World(str(tmp_path), {"a": {1, 2, 4}})
    assert world.call("done") == []
    world.files = files
    assert world.call("done") == late


def test_a_file_that_was_taken_away_and_put_back_is_known(tmp_path: Path) -> None:
    world = World(str(tmp_path), {"a": {1, 2}, "b": {3}})
    assert world.call("done") == []
    away = world.files.pop("a")
    world.files["c"] = {4}
    assert world.call("done") == []
    world.files["a"] = away
    assert world.call("done") == []


def test_a_file_that_only_a_killed_call_recorded_is_not_known_later(tmp_path: Path) -> None:
    world = World(str(tmp_path), {"a": {1}})
    assert world.call("done") == []
    world.files["b"] = {5}
    assert world.call("killed before") == []
    away = world.files.pop("b")
    world.files["c"] = {9}
    assert world.call("done") == []
    world.files["b"] = away
    assert world.call("done") == ["b (new)"]


@pytest.mark.parametrize(("number", "late"), [(30, []), (5, ["b (new)"])])
def test_changes_beyond_the_progress_of_a_stopped_call_are_not_late(
    tmp_path: Path, number: int, late: list[str]
) -> None:
    world = World(str(tmp_path), {"a": {10, 50}})
    assert world.call("stopped midway", 20) == []
    world.files["b"] = {number}
    assert world.call("done") == late
    assert world.lost() == set() or late


def test_changes_below_the_progress_that_another_table_moved_are_late(tmp_path: Path) -> None:
    """A mapping without constants gives two tables one target, and each call has one of them."""
    world = World(str(tmp_path), {"a": {5}})
    world.reached = 9
    assert world.call("done") == ["a (new)"]
    world.reached = -1
    assert world.call("done") == []
    world.files["a"], world.reached = {5, 7}, 9
    assert world.call("done") == ["a (changed)"]


@pytest.mark.parametrize("edited", ["", "id = 1"])
def test_an_edited_mapping_is_refused_once_the_target_is_filled(tmp_path: Path, edited: str) -> None:
    one, other = (TableMap("s.t", "s.t", where=where).digest for where in (edited, "id = 2"))

    def call(digest: str, reached: int, task: str = "task") -> None:
        applied = AppliedFiles(str(tmp_path), task)
        applied.check_mappings({T: digest}, {T: reached})
        applied.record(World("", {"a": {7}}).stats(-1), {T: digest}, {T: reached})

    call(other, -1)  # it ended before it filled anything
    call(one, -1)
    call(one, 7)
    with pytest.raises(ApplyError, match="the mapping has changed") as error:
        call(other, 7)
    assert error.value.where == "s.t"
    call(other, 7, task="another")
    call(other, -1)  # the target was removed
    call(other, 7)


def test_late_files_are_named(tmp_path: Path) -> None:
    refuse_late({}, "changes")
    names = [f"{n}.csv (new)" for n in range(5)]
    assert late_files({T: names}) == ["s.t: 0.csv (new), 1.csv (new), 2.csv (new) and 2 more"]
    with pytest.raises(ApplyError, match=r"older than the progress of their target: s\.t: 0\.csv"):
        refuse_late({T: names}, "changes")
