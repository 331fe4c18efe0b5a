"""Large targets: several tasks merge changes that they read from the change table themselves, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.apply.targets.audit import Audited
from tailrace.apply.targets.delta import rewrite_tasks
from tailrace.apply.targets.delta.staged import FOLDER
from tailrace.apply.targets.delta.target import DeltaTarget
from tailrace.apply.targets.task_batch import TaskBatch
from tailrace.errors import ApplyError
from tailrace.lake import delta as lake
from tailrace.model import sequence
from tailrace.model.change import Column, Relation

from ..examples import examples

pytestmark = pytest.mark.unit
RELATION = Relation(
    1, "s", "t", "d",
    (Column("id", 1, "integer", "int4", "int", key=True), Column("v", 2, "text", "text", "string")),
)  # fmt: skip
ROWS = pa.schema([("id", pa.int32()), ("v", pa.string())])
TEXTS = pa.schema([(f"header__{n}", pa.string()) for n in ("change_seq", "change_oper", "stream_position")])
CHANGES = pa.schema([*TEXTS, *ROWS])
WHOLE = {"I": 9, "U": 9, "D": 9, "T": 0, "key_changes": 0, "absent": 0}
Change = tuple[int, str, int | None, str | None]


class Place:
    """A target above the size of one task, and its change table."""

    def __init__(
        self, root: Path, rows: Mapping[int, str], memory: int | None = None, session: Any = None
    ) -> None:
        self.changes = f"{root}/changes"
        self.target = DeltaTarget(
            session, f"{root}/lake", app_id="x", local_limit_bytes=0, merge_memory_bytes=memory
        )
        self.path = self.target.path("s.t")
        lake.append(self.path, pa.table([list(rows), list(rows.values())], schema=ROWS))

    def stored(self, *changes: Change) -> Place:
        """A file of the change table: (number, operation, id, v) in order."""
        rows = [
            (sequence.make(1_700_000_000_000_000, n), oper, f"{n:040X}", key, v)
            for n, oper, key, v in changes
        ]
        lake.append(self.changes, pa.table(list(map(list, zip(*rows, strict=True))), schema=CHANGES))
        return self

    def merge(self, after: int, upto: int, **more: Any) -> Audited | Exception | None:
        one = TaskBatch("s.t", self.changes, self.path, RELATION, after, upto, counts=WHOLE)
        (done,) = self.target.merge_many([replace(one, **more)])
        return done

    def rows(self) -> dict[int, str]:
        return {r["id"]: r["v"] for r in lake.read(self.path).to_pylist()}


def counted(done: Audited | Exception | None) -> tuple[object, ...]:
    assert isinstance(done, Audited), done
    outcome = done.outcome
    return outcome.inserted, outcome.updated, outcome.deleted, outcome.plan, done.upto


def test_the_changes_of_a_range_are_merged(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a", 2: "b", 3: "c"})
    place.stored((1, "U", 1, "too early"), (2, "U", 2, "B")).stored(
        (3, "I", 4, "D"), (4, "D", 3, None), (5, "D", 1, None)
    )
    assert counted(place.merge(1, 4)) == (1, 1, 1, "rewrite", 4)
    assert place.rows() == {1: "a", 2: "B", 4: "D"}
    assert lake.progress(place.path, "x") == 4
    assert list(Path(place.path, FOLDER).iterdir()) == []


def test_changes_before_the_window_of_a_baseline_stay_out(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a"}).stored((1, "U", 1, "old"), (2, "I", 2, "b"))
    assert counted(place.merge(-1, 2, position=f"{2:040X}")) == (1, 0, 0, "rewrite", 2)
    assert place.rows() == {1: "a", 2: "b"}


def test_an_old_key_goes_and_the_new_one_comes(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a", 2: "b"})
    place.stored((1, "B", 1, "a"), (1, "U", 7, "a"), (2, "B", 7, "a"), (2, "U", 7, "A"))
    assert counted(place.merge(0, 2, counts=WHOLE | {"key_changes": 1})) == (1, 0, 1, "rewrite", 2)
    assert place.rows() == {2: "b", 7: "A"}


@pytest.mark.parametrize("kind", ["T", "absent"])
def test_truncates_and_partial_images_are_for_others(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path, {1: "a"}).stored((1, "U", 1, "b"))
    assert place.merge(0, 1, counts=WHOLE | {kind: 1}) is None
    assert place.rows() == {1: "a"}


def test_a_target_that_is_not_there_is_made_by_others(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a"}).stored((1, "U", 1, "b"))
    assert place.merge(0, 1, target=f"{tmp_path}/none") is None


def test_a_batch_that_the_target_has_is_not_applied_again(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a"}).stored((1, "U", 1, "b"))
    place.merge(0, 1)
    version = lake.version(place.path)
    assert place.merge(0, 1) is None
    assert lake.version(place.path) == version


def test_a_null_key_is_an_error_of_its_table(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a"}).stored((1, "U", 1, "b"), (2, "I", None, "x"))
    error = place.merge(0, 2)
    assert isinstance(error, ApplyError)
    assert (error.what, error.where) == (
        "a change has NULL in the row key (id)",
        f"s.t, change_seq {sequence.make(1_700_000_000_000_000, 2)}",
    )
    assert place.rows() == {1: "a"}


@pytest.mark.slow
def test_more_than_the_memory_holds_is_for_spark(tmp_path: Path) -> None:
    """Keys, or the values of the changes that one lane writes."""
    long = "x" * 3_000
    for n, changes in enumerate(
        [
            [(k, "I", k, "x") for k in range(1, 400_000)],
            [(k, "U", k, long) for k in range(1, 20_000)],
        ]
    ):
        place = Place(tmp_path / str(n), dict.fromkeys(range(1, 20_000), "a"), memory=64 << 20)
        place.stored(*changes)
        version = lake.version(place.path)
        assert place.merge(0, 500_000) is None
        assert (lake.version(place.path), set(place.rows().values())) == (version, {"a"})
        assert list(Path(place.path, FOLDER).iterdir()) == []


def test_another_writer_in_between_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, {1: "a"}).stored((1, "U", 1, "b"))
    commit = rewrite_tasks.exchange

    def late(*given: Any) -> None:
        lake.append(place.path, pa.table([[70], ["theirs"]], schema=ROWS))
        commit(*given)

    monkeypatch.setattr(rewrite_tasks, "exchange", late)
    assert place.merge(0, 1) is None
    assert place.rows() == {1: "a", 70: "theirs"}


FILES = st.lists(
    st.lists(
        st.tuples(st.sampled_from("IUDM"), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12
    ),
    min_size=1,
    max_size=4,
)


@examples(10)
@given(there=st.sets(st.integers(0, 20), min_size=1), files=FILES, share=st.floats(0, 1))
def test_any_changes_in_any_files(
    tmp_path_factory: pytest.TempPathFactory,
    there: set[int],
    files: Sequence[Sequence[tuple[str, int, int]]],
    share: float,
) -> None:
    """Two ranges of a change table, one after the other, end as a dict does; M: an update that moves a row."""
    place, want = (
        Place(tmp_path_factory.mktemp("t"), dict.fromkeys(there, "old")),
        dict.fromkeys(there, "old"),
    )
    number, steps = 0, list[list[tuple[str, int, str | None]]]()
    for file in files:
        stored: list[Change] = []
        for oper, key, other in file:
            number += 1
            new: list[tuple[str, int, str | None]] = [("U" if oper == "M" else oper, key, f"v{number}")]
            if oper == "M":
                new = [("B", other, "whatever"), *new]
            steps.append(new)
            stored += [(number, o, k, None if o == "D" else v) for o, k, v in new]
        place.stored(*stored)
    cut = round(share * number)
    for after, upto in ((0, cut), (cut, number)):
        if after == upto:
            continue
        assert counted(place.merge(after, upto, counts=WHOLE | {"key_changes": 1}))[-1] == upto
        for step in steps[after:upto]:
            for oper, key, value in step:
                want.pop(key, None)
                if oper in "IU":
                    want[key] = str(value)
        assert place.rows() == want
