"""SQL over answers, by DuckDB: the times of a condition are UTC, wherever the machine is; only questions are run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.errors import ConfigError
from tailrace.query.duckdb_session import connect
from tailrace.query.result import Result
from tailrace.query.sql import run_query

pytestmark = pytest.mark.unit

ASK = """
import datetime as dt
import pyarrow as pa
from tailrace.query.result import Result
utc = dt.timezone.utc
times = [dt.datetime(1969, 12, 31, 23, tzinfo=utc), dt.datetime(1970, 1, 1, 3, tzinfo=utc)]
found = Result.of(pa.table({"id": [1, 2], "ts": times}))
for condition in ("ts < '1970-01-01 00:00:00'", "ts::date = '1970-01-01'"):
    print([r["id"] for r in found.where(condition).rows()])
print(found.duckdb().filter("ts < '1970-01-01 00:00:00'").fetchone()[0])
"""


def test_times_without_a_zone_are_utc_wherever_the_machine_is() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ASK],
        env=os.environ | {"TZ": "America/New_York"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split("\n") == ["[1]", "[2]", "1", ""]


ITEMS = Result.of(pa.table({"id": [1, 2, 3]}))


def test_a_subquery_of_a_condition_does_not_read_the_rows() -> None:
    """They come once: it would take them away from the question."""
    with pytest.raises(ConfigError, match="the condition is not valid"):
        ITEMS.where("id IN (SELECT id FROM rows WHERE id = 2)")


def test_a_condition_may_name_the_rows() -> None:
    assert ITEMS.where(
        "rows.id = 2 AND EXISTS (SELECT 1 FROM range(3) r WHERE r.range = rows.id)"
    ).rows() == [{"id": 2}]


def test_a_subquery_of_other_rows_is_one(tmp_path: Path) -> None:
    (tmp_path / "wanted.csv").write_text("id\n2\n")
    assert ITEMS.where(f"id IN (SELECT id FROM '{tmp_path}/wanted.csv')").rows() == [{"id": 2}]


NUMBERS = Result.of(
    pa.table(
        {
            "id": [1, 2, 3, 4],
            "f": [7.0, float("nan"), 1.0, None],
            "of": [{"F": 7.0}, {"F": float("nan")}, None, None],
        }
    )
)


@pytest.mark.parametrize(
    "condition, ids",
    [
        ("f > 5", [1, 2]),
        ("f >= 7 AND id > 1", [2]),
        ("f < 5", [3]),
        ("f <> 1", [1, 2]),
        ("NOT f <= 5", [1, 2]),
        ("f = 'nan'", [2]),
        ("f IS NULL", [4]),
        ('"of".F > 5', [1, 2]),
    ],
)
def test_nan_is_above_all_numbers(condition: str, ids: list[int]) -> None:
    """As it is without Arrow, which finds it by no comparison."""
    assert [r["id"] for r in NUMBERS.where(condition).rows()] == ids
    given = run_query(connect(), f"SELECT id FROM numbers WHERE {condition}", {"numbers": NUMBERS})
    for _ in range(2):
        assert [r["id"] for r in given.rows()] == ids
    assert [n for n, *_ in NUMBERS.duckdb().filter(condition).fetchall()] == ids


def test_numbers_come_as_they_are() -> None:
    halves = pa.table({"F": pa.array([1.5, None], pa.float32()), "f": pa.array([2.5, -0.0])})
    found = run_query(connect(), "FROM given", {"given": Result.of(halves)}).table()
    assert found.schema.types == halves.schema.types
    assert [c.to_pylist() for c in found.columns] == [c.to_pylist() for c in halves.columns]


@pytest.mark.parametrize(
    "statement, why",
    [
        ("COPY (SELECT 1) TO '{}'", "returns no rows, or changes something"),
        ("CREATE TABLE t (id INT)", "returns no rows, or changes something"),
        ("/* nothing */", "returns no rows, or changes something"),
        ("CHECKPOINT", "returns no rows, or changes something"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO '{}'", "returns no rows, or changes something"),
        ("EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO '{}'", "returns no rows, or changes something"),
        ("SELECT 1; SELECT 2", "several statements"),
        ("SELECT 1 AS a$b$; COPY (SELECT 1 AS b$b$) TO '{}'", "several statements"),
    ],
)
def test_only_questions_are_run(tmp_path: Path, statement: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        run_query(connect(), statement.format(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "statement, rows",
    [
        ("SELECT 1 AS a;", [{"a": 1}]),
        ("PIVOT (SELECT 'x' AS k, 1 AS n) ON k USING sum(n)", [{"x": 1}]),
        ("FROM range(1)", [{"range": 0}]),
        ("SELECT * FROM range(1) a, (SELECT 7 AS range)", [{"range": 0, "range_1": 7}]),
    ],
)
def test_a_question_is_answered(statement: str, rows: list[dict[str, object]]) -> None:
    assert run_query(connect(), statement).rows() == rows
