"""Large targets: several tasks merge shards of the changes that they read from the change table, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ApplyError, BaselineNeededError
from tailrace.lake import delta as lake
from tailrace.lake import parts
from tailrace.model import sequence
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeRange
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.tables import DeltaLakeTable
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.lake import target_files, write_task
from tailrace.targets.merge_result import MergeResult
from tailrace.targets.scratch import FOLDER

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

    def merge(self, start: int | None, end: int, **more: Any) -> MergeResult | Exception | None:
        numbers = ChangeRange(start, end)
        one = ChangeBatch("s.t", RELATION, numbers, self.changes, counts=WHOLE, target=self.path)
        (done,) = self.target.merge([replace(one, **more)])
        return done

    def rows(self) -> dict[int, str]:
        return {r["id"]: r["v"] for r in lake.read(self.path).to_pylist()}


def counted(done: MergeResult | Exception | None) -> tuple[object, ...]:
    assert isinstance(done, MergeResult), done
    outcome = done.outcome
    return outcome.inserted, outcome.updated, outcome.deleted, outcome.plan, done.end


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
    assert counted(place.merge(None, 2, position=f"{2:040X}")) == (1, 0, 0, "rewrite", 2)
    assert place.rows() == {1: "a", 2: "b"}


def test_an_old_key_goes_and_the_new_one_comes(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a", 2: "b"})
    place.stored((1, "B", 1, "a"), (1, "U", 7, "a"), (2, "B", 7, "a"), (2, "U", 7, "A"))
    assert counted(place.merge(0, 2, counts=WHOLE | {"key_changes": 1})) == (1, 0, 1, "rewrite", 2)
    assert place.rows() == {2: "b", 7: "A"}


def test_a_truncate_takes_the_rows_of_all_files_away(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a", 2: "b"})
    place.stored((1, "U", 1, "A"), (2, "T", None, None), (3, "I", 2, "B"), (4, "I", 3, "c"))
    assert counted(place.merge(0, 4, counts=WHOLE | {"T": 1})) == (2, 0, 2, "replace_all", 4)
    assert place.rows() == {2: "B", 3: "c"}


def test_a_target_that_is_gone_is_an_error_of_its_table(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a"}).stored((1, "U", 1, "b"))
    assert isinstance(place.merge(0, 1, target=f"{tmp_path}/none"), BaselineNeededError)


def test_a_batch_that_the_target_has_is_not_applied_again(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a"}).stored((1, "U", 1, "b"))
    place.merge(0, 1)
    version = lake.version(place.path)
    assert counted(place.merge(0, 1)) == (0, 0, 0, "none", 1)
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


def test_memory_makes_more_shards(tmp_path: Path) -> None:
    place = Place(tmp_path, dict.fromkeys(range(1, 200), "a"), memory=64 << 20)
    place.stored(*[(k, "U", k, "x" * 3_000) for k in range(1, 100)])
    assert counted(place.merge(0, 99)) == (0, 99, 0, "rewrite", 99)
    assert sorted(map(len, place.rows().values())) == [1] * 100 + [3_000] * 99
    assert list(Path(place.path, FOLDER).iterdir()) == []


def test_large_files_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROW_GROUP", 100)
    for module in (target_files, write_task):
        monkeypatch.setattr(module, "PART", 1_000)
    place = Place(tmp_path, {n: f"v{n}" for n in range(1_000)})
    place.stored(*[(n + 1, "D" if n % 2 else "U", 7 * n, None if n % 2 else "x") for n in range(200)])
    want = {n: f"v{n}" for n in range(1_000)}
    for n in range(200):
        want.pop(7 * n, None)
        want |= {} if n % 2 else {7 * n: "x"}
    inserted, *_ = counted(place.merge(0, 200))
    assert inserted == sum(key >= 1_000 for key in want)
    assert place.rows() == want
    assert len(DeltaTable(place.path).file_uris()) > 3


def test_few_new_rows_go_to_the_file_with_the_greatest_keys(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a", 2: "b"})
    lake.append(place.path, pa.table([[11, 12], ["k", "l"]], schema=ROWS))
    place.stored((1, "U", 1, "A"), (2, "U", 12, "L"), (3, "I", 13, "m"))
    place.merge(0, 3)
    ends = pa.table(DeltaTable(place.path).get_add_actions(flatten=True))
    assert sorted(zip(*[ends[c].to_pylist() for c in ("min.id", "max.id")], strict=True)) == [
        (1, 2),
        (11, 13),
    ]


def test_files_that_no_change_meets_stay(tmp_path: Path) -> None:
    place = Place(tmp_path, {1: "a", 2: "b"})
    lake.append(place.path, pa.table([[11, 12], ["k", "l"]], schema=ROWS))
    before = set(DeltaTable(place.path).file_uris())
    place.stored((1, "U", 2, "B"), (2, "D", 4, None))
    place.merge(0, 2)
    assert len(before & set(DeltaTable(place.path).file_uris())) == 1


def test_another_writer_in_between_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, {1: "a"}).stored((1, "U", 1, "b"))
    commit, others = DeltaLakeTable.exchange, iter([70])

    def late(*given: Any) -> int:
        for key in others:
            lake.append(place.path, pa.table([[key], ["theirs"]], schema=ROWS))
        return commit(*given)

    monkeypatch.setattr(DeltaLakeTable, "exchange", late)
    assert counted(place.merge(0, 1)) == (0, 1, 0, "rewrite", 1)
    assert place.rows() == {1: "b", 70: "theirs"}


FILES = st.lists(
    st.lists(
        st.tuples(st.sampled_from("IUDM"), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12
    ),
    min_size=1,
    max_size=4,
)


@examples(5)
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
