"""Ledgers say the same however often they were added up and shortened, and whoever writes meanwhile."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailrace.errors import PositionError
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.state import ledger, rolling
from tailrace.state.baselines import Baseline
from tailrace.state.declarations import APPLIED, STORED
from tailrace.state.ledger import AppliedTable, Stored
from tailrace.state.totals import Totals, batches_after, last_stored, records_of, stored_since

pytestmark = pytest.mark.unit
AT = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
RELATION = Relation(7, "s", "a", "d", (Column("id", 1, "integer", "int4", "int", key=True),))


def batch(upto: int, **rows: int) -> Stored:
    return Stored(upto, make(0, upto), f"{upto:040X}", AT, {t: {"rows": n} for t, n in rows.items()})


def store(path: str, one: Stored) -> None:
    ledger.write_stored(path, one, dict.fromkeys(one.tables, 7))


def did(table: str, version: int, upto: int, inserted: int) -> AppliedTable:
    return AppliedTable(table, version, inserted, 0, 0, 0, "append", 0.1, upto=upto)


def kept(after: int) -> Callable[[pa.Table], pa.ChunkedArray]:
    """Keeps rows with larger change numbers."""
    return lambda rows: pc.greater(rows["upto"], after)


def test_totals_are_the_same_whatever_was_folded_and_removed(tmp_path: Path) -> None:
    path, dice = str(tmp_path / "stored"), random.Random(5)
    model: list[Stored] = []
    removed = -1
    for upto in range(1, 30):
        one = batch(upto, **{t: dice.randint(1, 9) for t in "abc" if dice.random() < 0.6})
        model.append(one)
        store(path, one)
        if dice.random() < 0.2:
            assert rolling.fold(path, STORED)
        if dice.random() < 0.2:
            removed = max(removed, dice.randint(0, upto // 2))
            assert rolling.trim(path, STORED, kept(removed), lambda _: True, many=1)
        seen = Totals(path, str(tmp_path / "applied"))
        rows = {t: sum(b.tables[t]["rows"] for b in model if t in b.tables) for t in "abc"}
        assert {t: n.rows for t, n in seen.stored.items()} == {t: n for t, n in rows.items() if n}
        assert [b for b in ledger.read_stored(path) if b.upto > removed] == model[max(removed, 0) :]
        last = last_stored(path)
        assert seen.stored_upto == upto and last is not None and last.upto == upto
    assert removed > 0  # it was shortened


def test_what_waits_is_counted_from_where_each_table_stands(tmp_path: Path) -> None:
    path = str(tmp_path / "stored")
    for upto in (10, 20, 30, 40):
        store(path, batch(upto, a=upto, b=1))
        if upto == 30:
            rolling.fold(path, STORED)
    seen = Totals(path, str(tmp_path / "applied"))
    assert seen.behind({"a": 20, "b": 40}) == {"a": 70}
    assert seen.behind({"a": 0, "b": 30}) == {"a": 100, "b": 1}
    assert seen.behind({"a": 40}) == {"b": 4}


def test_a_fold_takes_nothing_that_comes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "stored")
    store(path, batch(1, a=1))
    store(path, batch(2, a=2))
    replace, others = rolling.Ledger.replace, [batch(3, a=4), batch(4, a=8)]

    def late(self: rolling.Ledger, *args: object) -> bool:
        if others:
            store(path, others.pop(0))
        return replace(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(rolling.Ledger, "replace", late)
    assert rolling.fold(path, STORED)
    assert Totals(path, str(tmp_path / "applied")).stored["a"].rows == 15
    assert [f.kind for f in rolling.Ledger(path, STORED).files].count(None) == 0


def test_files_that_others_have_joined_are_told_apart_by_their_rows(tmp_path: Path) -> None:
    path = str(tmp_path / "stored")
    for upto in (1, 2, 3):
        store(path, batch(upto, a=upto))
        if upto == 2:
            rolling.fold(path, STORED)
    lake.compact(path, 2)
    (only,) = rolling.Ledger(path, STORED).files
    assert only.kind is None
    for _ in range(2):
        assert Totals(path, "").stored["a"].rows == 6
        assert [b.upto for b in ledger.read_stored(path)] == [1, 2, 3]
        rolling.fold(path, STORED)


def test_single_batches_that_are_gone_are_not_taken_for_none(tmp_path: Path) -> None:
    path = str(tmp_path / "stored")
    for upto in (10, 20, 30):
        store(path, batch(upto, a=1) if upto < 30 else batch(upto, b=1))
    rolling.fold(path, STORED)
    rolling.trim(path, STORED, kept(10), lambda _: True, many=1)
    assert [b.upto for b in batches_after(path, "a", 10)] == [20]
    with pytest.raises(PositionError, match="between the change numbers 5 and 10"):
        batches_after(path, "a", 5)
    assert [b.upto for b in batches_after(path, "b", 5)] == [30]
    assert (stored_since(path, 5), stored_since(path, 20)) == ((30, ["a", "b"]), (30, ["b"]))
    assert ledger.newest_stored(path, 25) == {"a": 20}
    assert ledger.read_waiting(path, None, most=2) == (ledger.read_stored(path)[:1], True)
    assert [b.tables for b in ledger.read_waiting(path, None, tables=["a"], most=9)[0]] == [
        {"a": {"rows": 1}}
    ]


def test_the_last_record_of_a_target_is_the_one_written_last(tmp_path: Path) -> None:
    path = str(tmp_path / "applied")
    for number, one in enumerate(
        [did("a", 5, 10, 1), did("a", 6, 30, 1), did("b", 2, 30, 7), did("a", 8, 20, 1)]
    ):
        ledger.write_applied(path, batch(one.upto), [one], "tailrace/applied" if one.upto < 20 else None)
        if number in (1, 3):
            rolling.fold(path, APPLIED)
        if number == 1:
            rolling.trim(path, APPLIED, kept(99), lambda _: True, many=1)
    seen = Totals(str(tmp_path / "stored"), path)
    assert (seen.applied["a"].upto, seen.applied["a"].version, seen.applied["a"].inserted) == (20, 8, 3)
    assert seen.applied["b"].inserted == 7 and seen.applied_upto == 10
    # It is there to be found, whatever was removed.
    assert {r["upto"] for r in records_of(path, "a")} == {20}
    assert ledger.newest_applied(path) == {"a": 20, "b": 30}


def test_records_of_before_a_baseline_do_not_count(tmp_path: Path) -> None:
    path = str(tmp_path / "applied")
    ledger.write_applied(path, batch(50), [did("a", 7, 50, 1), did("m", 7, 50, 1)])
    seen = Totals(str(tmp_path / "stored"), path)

    def taken(table: str, after: int, version: int, number: int = 2) -> dict[str, Baseline]:
        return {table: Baseline(table, RELATION, "", 0, version, AT, 0.0, number, after=after)}

    assert seen.reached(taken("a", 40, 5), {})["a"] == 50
    assert seen.reached(taken("a", 40, 9), {})["a"] == 40  # it has replaced what came to 50
    assert seen.reached(taken("a", 60, 5), {})["a"] == 60  # of a target that was dropped
    assert seen.reached(taken("m", 40, None), {"m": (1, "", 6)})["m"] == 40  # waits in staging
    assert seen.reached(taken("m", 40, None), {"m": (2, "", 6)})["m"] == 50


def test_a_ledger_stays_a_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "stored")
    monkeypatch.setattr(rolling, "FOLD_EVERY", 4)
    for upto in range(1, 14):
        store(path, batch(upto, a=1))
        assert len([f for f in rolling.Ledger(path, STORED).files if f.kind is None]) < 4
