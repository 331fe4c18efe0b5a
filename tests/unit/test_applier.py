"""Rounds end where store batches end; batches of a table end where a layout ends."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from tailrace.apply.backlog import cut_rounds
from tailrace.apply.layout_batches import layout_batches
from tailrace.lake.log import Layout
from tailrace.model.change import Column, Relation
from tailrace.model.positions import ChangeNumber, ChangeRange
from tailrace.model.sequence import make
from tailrace.state.baselines import Baseline
from tailrace.state.ledger import Stored
from tailrace.targets.change_batch import ChangeBatch

pytestmark = pytest.mark.unit

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def stored(upto: int, rows: int) -> Stored:
    return Stored(upto, make(0, upto), f"{upto:040X}", NOW, {"s.t": {"rows": rows}})


def layout(name: str, number: int, lsn: int) -> Layout:
    relation = Relation(1, "s", "t", "d", (Column(name, 1, "integer", "int4", "int", key=True),))
    return Layout(relation, lsn.to_bytes(8, "big") + bytes(12) if lsn else b"", make(0, number))


def baseline(name: str, lsn: int) -> Baseline:
    return Baseline(
        "s.t", layout(name, 0, 0).relation, lsn.to_bytes(8, "big").hex().upper() + "0" * 24, 0, 1, NOW, 0
    )


def batches(
    history: list[Layout], of: Baseline, start: int | None, end: int, logged: int | None = None
) -> list[ChangeBatch]:
    return layout_batches("s.t", history, of, ChangeRange(start, end), "changes", logged)


def key(relation: Relation | None) -> str:
    assert relation is not None
    return relation.key[0]


def facts(
    history: list[Layout], of: Baseline, start: int | None, end: int
) -> list[tuple[int | None, int, str, str]]:
    """(start, end, layout before, layout)."""
    found = batches(history, of, start, end)
    return [(b.range.start, b.range.end, key(b.before), key(b.relation)) for b in found]


def test_rounds_hold_whole_batches_up_to_the_limit() -> None:
    pending = [stored(1, 5), stored(2, 5), stored(3, 1), stored(4, 50), stored(5, 1)]
    assert [[b.upto for b in one] for one in cut_rounds(pending, 11)] == [[1, 2, 3], [4], [5]]


def test_nothing_pending_is_no_round() -> None:
    assert cut_rounds([], 10) == []


def test_one_layout_is_one_batch() -> None:
    assert facts([layout("a", 0, 0)], baseline("a", 5), None, 90) == [(None, 90, "a", "a")]


def test_a_layout_in_the_range_cuts_it() -> None:
    history = [layout("a", 0, 0), layout("b", 40, 50), layout("c", 60, 70)]
    assert facts(history, baseline("a", 5), 10, 90) == [
        (10, 39, "a", "a"), (39, 59, "a", "b"), (59, 90, "b", "c"),
    ]  # fmt: skip


def test_layouts_already_applied_do_not_cut() -> None:
    history = [layout("a", 0, 0), layout("b", 40, 50)]
    assert facts(history, baseline("a", 5), 45, 90) == [(45, 90, "b", "b")]


def test_a_baseline_has_the_layout_of_its_position_not_older_ones() -> None:
    history = [layout("a", 0, 0), layout("b", 40, 50), layout("c", 80, 90)]
    assert facts(history, baseline("b", 60), None, 100) == [(None, 79, "b", "b"), (79, 100, "b", "c")]


def test_the_close_of_an_open_window_cuts_the_range() -> None:
    taken = replace(baseline("a", 5), window="open", closes=ChangeNumber(50))
    history = [layout("a", 0, 0), layout("b", 40, 50), layout("c", 60, 70)]

    def cut(start: int, end: int) -> list[tuple[int | None, int, str, str, bool]]:
        found = batches(history, taken, start, end)
        return [(b.range.start, b.range.end, key(b.before), key(b.relation), b.open_window) for b in found]

    assert cut(10, 90) == [
        (10, 39, "a", "a", True), (39, 50, "a", "b", True), (50, 59, "b", "b", False), (59, 90, "b", "c", False),
    ]  # fmt: skip
    assert cut(10, 50)[-1] == (39, 50, "a", "b", True)
    assert cut(50, 55) == [(50, 55, "b", "b", False)]


def test_what_the_key_log_has_cuts_the_range() -> None:
    history = [layout("a", 0, 0), layout("b", 40, 50)]

    def cut(start: int, end: int, logged: int | None) -> list[tuple[int | None, int, str, bool]]:
        found = batches(history, baseline("a", 5), start, end, logged)
        return [(b.range.start, b.range.end, key(b.relation), b.logged) for b in found]

    assert cut(10, 30, 20) == [(10, 20, "a", True), (20, 30, "a", False)]
    assert cut(10, 60, 50) == [(10, 39, "a", True), (39, 50, "b", True), (50, 60, "b", False)]
    assert cut(10, 30, 30) == [(10, 30, "a", True)]
    assert cut(10, 30, 10) == cut(10, 30, None) == [(10, 30, "a", False)]
