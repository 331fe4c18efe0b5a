"""What the ledger gives to who applies: whole batches, in order, no more of them than asked for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from pathlib import Path

import pytest

from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.state import ledger
from tailrace.state.baselines import Baseline
from tailrace.state.ledger import AppliedTable, Stored
from tailrace.state.totals import Totals

pytestmark = pytest.mark.unit
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
A, B = {"rows": 2, "I": 2}, {"rows": 1, "D": 1}


BATCHES: dict[int, dict[str, dict[str, int]]] = {
    5: {"s.a": A, "s.b": B}, 3: {"s.a": A}, 6: {}, 8: {"s.b": B}, 9: {"s.a": A, "s.b": B},
}  # fmt: skip
"""As they stand in the table, which has no order: after compaction, for one."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("ledger")
    for upto, tables in BATCHES.items():
        batch = Stored(upto, make(0, upto), f"{upto:040X}", NOW, tables)
        ledger.write_stored(f"{folder}/{upto}", batch, {"s.a": 1, "s.b": 2})
        lake.append(f"{folder}/stored", lake.read(f"{folder}/{upto}"))
    return f"{folder}/stored"


def waiting(
    path: str, after: int, upto: int | None = None, tables: Collection[str] | None = None, most: int = 99
) -> tuple[list[tuple[int, list[str]]], bool]:
    found, more = ledger.read_waiting(path, after, upto, tables, most=most)
    return [(b.upto, sorted(b.tables)) for b in found], more


def test_all_batches_in_order(stored: str) -> None:
    every = [(3, ["s.a"]), (5, ["s.a", "s.b"]), (6, []), (8, ["s.b"]), (9, ["s.a", "s.b"])]
    assert waiting(stored, None) == (every, False)
    assert waiting(stored, 3, 8) == (every[1:4], False)
    assert [(b.upto, sorted(b.tables)) for b in ledger.read_stored(stored)] == every
    assert ledger.read_waiting(stored, 8, most=9)[0][0].tables == {"s.a": A, "s.b": B}
    assert waiting(stored, 9) == ([], False)


def test_no_more_than_asked_for_but_whole_and_one_at_least(stored: str) -> None:
    assert waiting(stored, None, most=2) == ([(3, ["s.a"])], True)
    assert waiting(stored, None, most=4) == ([(3, ["s.a"])], True)
    assert waiting(stored, None, most=5) == ([(3, ["s.a"]), (5, ["s.a", "s.b"])], True)
    assert waiting(stored, 8, most=1) == ([(9, ["s.a", "s.b"])], False)


def test_some_tables_alone(stored: str) -> None:
    assert waiting(stored, None, tables=["s.b"]) == ([(5, ["s.b"]), (8, ["s.b"]), (9, ["s.b"])], False)
    assert waiting(stored, None, tables=["s.b"], most=1) == ([(5, ["s.b"])], True)
    assert waiting(stored, 5, 8, tables=["s.a"]) == ([], False)


def test_the_newest_batch_of_each_table(stored: str, tmp_path: Path) -> None:
    assert ledger.newest_stored(stored, 99) == {"s.a": 9, "s.b": 9}
    assert ledger.newest_stored(stored, 8) == {"s.a": 5, "s.b": 8}
    path, batch = str(tmp_path / "applied"), Stored(9, make(0, 9), "", NOW)
    assert ledger.newest_applied(path) == {}
    done = [AppliedTable("s.a", 1, 0, 0, 0, 0, "none", 0.0, upto=n) for n in (7, 4)]
    ledger.write_applied(path, batch, done)
    assert ledger.newest_applied(path) == {"s.a": 7}
    assert ledger.read_waiting(str(tmp_path / "none"), None, most=1) == ([], False)


@pytest.mark.parametrize(("version", "reached"), [(3, 10), (4, 20)])
def test_a_record_at_a_baselines_own_version_is_later_than_it(
    tmp_path: Path, version: int, reached: int
) -> None:
    """Changes that the baseline had already were passed over: the target has no newer version."""
    column = Column("id", 1, "integer", "int4", "int", key=True)
    taken = Baseline("s.a", Relation(7, "s", "a", "d", (column,)), "", 1, 4, NOW, 0, number=2, after=10)
    path, done = str(tmp_path / "applied"), AppliedTable("s.a", version, 0, 0, 0, 0, "none", 0.0, upto=20)
    ledger.write_applied(path, Stored(20, make(0, 20), "", NOW), [done])
    totals = Totals(str(tmp_path / "stored"), path)
    assert totals.reached({"s.a": taken}, {}) == {"s.a": reached}
