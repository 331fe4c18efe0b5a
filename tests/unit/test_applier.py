"""Slices end where store batches end; segments end where a layout ends."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest
from tailrace.apply.segment import segments, slices

from tailrace.lake.log import Layout
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.state.baselines import Baseline
from tailrace.state.ledger import Stored

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


def facts(*args: object) -> list[tuple[int, int, str, str]]:
    """(after, upto, layout before, layout)."""
    return [(s.after, s.upto, s.before.key[0], s.relation.key[0]) for s in segments(*args)]  # type: ignore[arg-type]


def test_slices_hold_whole_batches_up_to_the_limit() -> None:
    pending = [stored(1, 5), stored(2, 5), stored(3, 1), stored(4, 50), stored(5, 1)]
    assert [[b.upto for b in s] for s in slices(pending, 11)] == [[1, 2, 3], [4], [5]]


def test_nothing_pending_is_no_slice() -> None:
    assert slices([], 10) == []


def test_one_layout_is_one_segment() -> None:
    assert facts([layout("a", 0, 0)], baseline("a", 5), -1, 90) == [(-1, 90, "a", "a")]


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
    assert facts(history, baseline("b", 60), -1, 100) == [(-1, 79, "b", "b"), (79, 100, "b", "c")]


def test_the_close_of_an_open_window_cuts_the_range() -> None:
    taken = replace(baseline("a", 5), window="open", closes=50)
    history = [layout("a", 0, 0), layout("b", 40, 50), layout("c", 60, 70)]

    def cut(after: int, upto: int) -> list[tuple[int, int, str, str, bool]]:
        found = segments(history, taken, after, upto)
        return [(s.after, s.upto, s.before.key[0], s.relation.key[0], s.tolerant) for s in found]

    assert cut(10, 90) == [
        (10, 39, "a", "a", True), (39, 50, "a", "b", True), (50, 59, "b", "b", False), (59, 90, "b", "c", False),
    ]  # fmt: skip
    assert cut(10, 50)[-1] == (39, 50, "a", "b", True)
    assert cut(50, 55) == [(50, 55, "b", "b", False)]


def test_what_the_key_log_has_cuts_the_range() -> None:
    history = [layout("a", 0, 0), layout("b", 40, 50)]

    def cut(after: int, upto: int, logged: int) -> list[tuple[int, int, str, bool]]:
        found = segments(history, baseline("a", 5), after, upto, logged)
        return [(s.after, s.upto, s.relation.key[0], s.logged) for s in found]

    assert cut(10, 30, 20) == [(10, 20, "a", True), (20, 30, "a", False)]
    assert cut(10, 60, 50) == [(10, 39, "a", True), (39, 50, "b", True), (50, 60, "b", False)]
    assert cut(10, 30, 30) == [(10, 30, "a", True)]
    assert cut(10, 30, 10) == cut(10, 30, -1) == [(10, 30, "a", False)]
