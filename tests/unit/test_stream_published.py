"""How tables are published is recorded; somebody may alter it at any moment."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.capture.stream import ALTERED, MISSING, RECREATED, Streams

from .test_renaming import task

pytestmark = pytest.mark.unit


def source_of(published: dict[str, str]) -> Any:
    """A source whose tables are published like that."""
    one: Any = SimpleNamespace(identity=lambda: {"slot": "s"}, prepare=lambda *_, **__: False)
    one.published = lambda tables: {t: published[t] for t in tables if t in published}
    one.partitions = lambda *_: {}
    one.column_states = lambda *_: {}
    return one


def test_tables_that_are_missing_or_published_otherwise_are_lost(tmp_path: Path) -> None:
    now = {"s.a": "1", "s.b": "1", "s.c": "1"}
    source, one = source_of(now), task(tmp_path)
    Streams(one).prepare(source, list(now))
    now |= {"s.a": "2"}
    del now["s.b"]
    later = Streams(one)  # in another process
    assert later.lost(source, ["s.a", "s.b", "s.c", "s.new"]) == {
        "s.a": ALTERED,
        "s.b": MISSING,
        "s.new": MISSING,
    }


def test_what_was_handled_is_lost_no_longer(tmp_path: Path) -> None:
    now = {"s.a": "1", "s.b": "1"}
    source, mine = source_of(now), Streams(task(tmp_path))
    mine.prepare(source, list(now))
    now |= {"s.a": "2", "s.b": "2"}
    assert mine.lost(source, ["s.a", "s.b"]) == {"s.a": ALTERED, "s.b": ALTERED}
    mine.prepare(source, ["s.a"])  # s.b waits for somebody
    assert mine.lost(source, ["s.a", "s.b"]) == {"s.b": ALTERED}


def test_what_is_altered_between_the_look_and_the_record_is_seen_by_the_next_look(tmp_path: Path) -> None:
    now = {"s.a": "1"}
    source, mine = source_of(now), Streams(task(tmp_path))
    mine.prepare(source, ["s.a"])
    assert mine.lost(source, ["s.a", "s.new"]) == {"s.new": MISSING}
    now |= {"s.a": "2", "s.new": "1"}
    mine.prepare(source, ["s.a", "s.new"])
    assert mine.lost(source, ["s.a", "s.new"]) == {"s.a": ALTERED}


def test_another_table_of_that_name_is_lost(tmp_path: Path) -> None:
    now = {"s.a": "1 table 7", "s.b": "1 table 8", "s.c": "1 table 9"}
    source, one = source_of(now), task(tmp_path)
    Streams(one).prepare(source, list(now))
    now |= {"s.a": "1 table 10", "s.c": "2 table 9"}
    later = Streams(one)
    assert later.lost(source, list(now)) == {"s.a": RECREATED, "s.c": ALTERED}
    later.prepare(source, list(now))
    assert later.lost(source, list(now)) == {}
