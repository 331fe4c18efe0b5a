"""The relation history gets the layouts that its readers would not go by otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.lake.announced import Announced
from tailrace.model.change import Column, Relation

pytestmark = pytest.mark.unit
ID, NAME = Column("id", 1, "integer", "int4", "int", key=True), Column("name", 2, "text", "text", "string")
PLAIN = Relation(7, "s", "t", "d", (ID, NAME))
RENAMED = PLAIN.with_columns([ID, replace(NAME, name="called")])
START = [(PLAIN, b"")]


def at(number: int) -> bytes:
    return number.to_bytes(20, "big")


def test_what_equals_the_newest_layout_is_no_news() -> None:
    layouts = Announced(lambda: START)
    told = [(PLAIN, False), (RENAMED, True), (RENAMED, False), (PLAIN, True), (replace(PLAIN, relid=8), True)]
    assert [layouts.news(one, at(n)) for n, (one, _) in enumerate(told)] == [new for _, new in told]


def test_a_table_is_altered_loaded_and_altered_back() -> None:
    layouts = Announced(lambda: START)
    assert layouts.base(RENAMED, at(10))
    # Read after the baseline began, made before it; then made after it.
    assert [layouts.news(PLAIN, at(n)) for n in (9, 11, 12)] == [False, True, False]


def test_a_baseline_in_the_newest_layout_is_no_news_however_that_was_learned_of() -> None:
    layouts = Announced(lambda: [(PLAIN.with_columns([ID, replace(NAME, attnum=-1)]), b"")])
    assert layouts.base(PLAIN, at(10))
    assert not layouts.news(PLAIN.with_columns([ID, replace(NAME, attnum=-1)]), at(11))


def test_two_baselines_and_one_that_the_history_is_behind_already() -> None:
    layouts = Announced(lambda: [(PLAIN, at(5))])
    assert layouts.base(PLAIN, at(3)) and not layouts.base(RENAMED, at(4))  # both of earlier sessions
    assert layouts.base(RENAMED, at(10)) and layouts.base(PLAIN, at(20))
    assert [layouts.news(PLAIN, at(n)) for n in (6, 15, 25)] == [False, True, False]


def test_a_change_behind_the_baseline_was_announced_before_it_was_told() -> None:
    layouts = Announced(lambda: START)
    assert not layouts.news(PLAIN, at(11))
    assert not layouts.base(RENAMED, at(10)) and layouts.base(PLAIN, at(10))


def test_a_table_that_came_later_is_looked_up() -> None:
    history: list[tuple[Relation, bytes]] = []
    layouts = Announced(lambda: history)
    history.append((PLAIN, b""))
    assert layouts.base(PLAIN, at(3)) and not layouts.news(PLAIN, at(4))
