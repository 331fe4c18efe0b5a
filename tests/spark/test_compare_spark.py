"""Spark's tasks and threads of the driver compare the same files, and find the same."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace.execution import BackgroundSession, Job, counted
from tailrace.model.types import header_schema, schema_of
from tailrace.validate import compare as comparing
from tailrace.validate.compare import Comparison, TablePair, TableResult
from tailrace.validate.differences import ChangeStamp, Differences
from tailrace.validate.file_rows import FileRows
from tailrace.validate.sql_rows import write_query_rows

from ..unit.file_rows import Rows, rows_in
from ..unit.test_compare import EVERY, OTHERS
from ..unit.test_repair_changes import KEYED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
MARK = ChangeStamp(
    2026030100000000, 41, "AB", "repair by me", dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
)


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return partial(rows_in, tmp_path)


def ready(spark: SparkSession, driver_limit: int) -> BackgroundSession:
    """A session whose tasks work from now on."""
    late = BackgroundSession(lambda: spark, driver_limit=driver_limit, given=spark)
    late.begin()
    while late.ready is None:
        late.check()
        time.sleep(0.01)
    return late


@pytest.fixture(params=["driver", "spark"])
def session(request: pytest.FixtureRequest) -> SparkSession | None:
    """Whose tasks compare; None: threads of the driver."""
    if request.param == "driver":
        return None
    spark: SparkSession = request.getfixturevalue("spark")
    return ready(spark, driver_limit=0).as_session


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are cut into several pieces and groups."""
    monkeypatch.setattr(comparing, "PIECE_BYTES", (1 << 11, 1 << 12))
    monkeypatch.setattr(comparing, "GROUP_ROWS", 150)


def by_hand(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """The copies of each row that one side has more than the other."""
    one, other = Counter(left), Counter(right)
    return (one - other) + (other - one)


def sides(rows: Rows) -> tuple[FileRows, FileRows, Counter[tuple[Any, ...]]]:
    """Two sides in several files and row groups: keys that one side alone has, other values, copies."""
    random.seed(7)
    left = [(i, random.choice("abc")) for i in range(1000)]
    right = [(i + 3, v if i % 10 else "z") for i, v in left] + [left[5]] * 3
    random.shuffle(right)
    made = [
        rows(files=n, group=g, id=[i for i, _ in side], **{"a b.`c": [v for _, v in side]})
        for side, n, g in ((left, 3, 100), (right, 2, 70))
    ]
    return made[0], made[1], by_hand(left, right)


def test_rows_that_differ_are_counted_whatever_pieces_they_are_in(
    rows: Rows, tmp_path: Path, session: SparkSession | None
) -> None:
    left, right, apart = sides(rows)
    before = counted().get("validate")
    pair = TablePair("s.t", ("id",), left, right)
    ((_, found),) = Comparison(session, str(tmp_path / "scratch")).compare([pair], 16, 4)
    assert isinstance(found, TableResult)
    assert (found.source_rows, found.target_rows, found.equal) == (1000, 1003, False)
    assert found.differing_rows == apart.total()
    first = sorted(apart)[:4]
    assert sorted((int(s["id"]), s["a b.`c"]) for s in found.samples) == first
    after = counted()["validate"]
    tasks = after.tasks - (before.tasks if before else 0)
    assert tasks > 8 if session is not None else tasks == 0


def test_tables_that_are_compared_together_have_results_of_their_own(
    rows: Rows, tmp_path: Path, session: SparkSession | None
) -> None:
    ids = pa.array([1, 2])
    every = rows(id=ids, **EVERY)
    times = rows(id=ids, at=pa.array([1, 2], pa.time64("us")))
    pairs = [
        TablePair("s.equal", ("id",), every, rows(id=ids, **(EVERY | OTHERS))),
        TablePair("s.times", ("id",), times, times),
        TablePair("s.empty", ("id",), rows(id=ids[:0]), rows(id=ids[:0])),
        TablePair("s.none", (), FileRows.of([], pa.schema([])), rows(id=ids)),
        TablePair("s.other", ("id",), rows(id=ids), rows(id=pa.array([2, 3, 3]))),
    ]
    found = {p.table: one for p, one in Comparison(session, str(tmp_path / "scratch")).compare(pairs, 4, 9)}
    assert "cannot be compared" in str(found.pop("s.times"))
    results = {t: (one.equal, one.differing_rows) for t, one in found.items() if isinstance(one, TableResult)}
    assert results == {
        "s.equal": (True, 0), "s.empty": (True, 0), "s.none": (False, 0), "s.other": (False, 3),
    }  # fmt: skip


def test_changes_of_a_repair_are_the_same_on_both_executors(
    rows: Rows, tmp_path: Path, session: SparkSession | None
) -> None:
    def side(ids: range, value: Callable[[int], int]) -> FileRows:
        made = rows(
            files=3, group=90, id=pa.array(ids, pa.int32()), part=["p"] * len(ids), v=list(map(value, ids))
        )
        return replace(made, rows=len(ids))

    wanted, there = side(range(1000), lambda i: i), side(range(20, 1010), lambda i: i if i % 50 else -1)
    found = Differences(Comparison(session, str(tmp_path / "scratch"), "repair"), KEYED, 1 << 20)
    none = pa.schema([*header_schema(), *schema_of(KEYED.columns)]).empty_table()
    changes = pa.concat_tables([none, *found.changes(wanted, there, MARK)]).to_pylist()
    by_kind: dict[str, set[int]] = {}
    for one in changes:
        by_kind.setdefault(one["header__change_oper"], set()).add(one["id"])
    updated = set(range(50, 1000, 50))
    assert by_kind == {"I": set(range(20)), "D": set(range(1000, 1010)), "U": updated, "B": updated}
    numbers = [int(one["header__change_seq"][-19:]) for one in changes if one["header__change_oper"] != "B"]
    assert numbers == list(range(42, 42 + len(numbers)))


def test_rows_that_spark_computes_are_files_with_the_same_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    def made(session: SparkSession) -> DataFrame:
        return session.createDataFrame(
            [(1, "x", [1, None]), (2, None, None)], "id int, `a.b` string, n array<int>"
        )

    before = counted().get("validate")
    found = write_query_rows(spark, made, str(tmp_path), Job("validate", "validate s.t: rows of the target"))
    assert found.schema.names == ["id", "a.b", "n"] and found.rows == 2
    read = pa.Table.from_batches(found.batches(["id", "a.b", "n"])).sort_by("id")
    assert read["n"].to_pylist() == [[1, None], None] and read["a.b"].to_pylist() == ["x", None]
    assert counted()["validate"].jobs > (before.jobs if before else 0)
    assert (
        write_query_rows(spark, lambda s: made(s).select(), str(tmp_path), Job("validate", "")).schema.names
        == []
    )
