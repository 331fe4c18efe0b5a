"""Histories that are kept, of events that leave values out: one that is not known is NULL, in every batch."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from tailrace.engine.history_updates import HistoryRules
from tailrace.model.mask import pack
from tailrace.query.history.table import HistoryTable

from ..examples import examples

pytestmark = pytest.mark.unit

COLUMNS = ("id", "a", "b")
DATA = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.int64())])
LEFT_OUT = "left out"
Event = tuple[int, str, int | None, Any, Any]
"""Sequence, operation, id, a, b; `LEFT_OUT`: the image lacks the value."""
Row = tuple[Any, ...]


def table(events: Sequence[Event]) -> pa.Table:
    values = [[None if v == LEFT_OUT else v for v in e[2:]] for e in events]
    there = np.array([[v != LEFT_OUT for v in e[2:]] for e in events], np.bool_).reshape(-1, len(COLUMNS))
    masks = pack(there, range(len(COLUMNS)))
    data = [pa.array([v[k] for v in values], f.type) for k, f in enumerate(DATA)]
    told = pa.array([e[0] for e in events], pa.int64()), pa.array([e[1] for e in events], pa.string())
    return pa.table([*data, *told, masks], names=[*COLUMNS, "__sequence", "__operation", "__carries"])


def make(path: str | Path, **more: Any) -> HistoryTable:
    return HistoryTable.make(str(path), DATA, HistoryRules(("id",), COLUMNS, **more), pa.int64())


def rows(history: HistoryTable) -> list[Row]:
    names = [*COLUMNS, "__START_AT", "__END_AT"]
    return sorted((tuple(r[n] for n in names) for r in history.versions().rows()), key=repr)


def versions(events: Sequence[Event], rules: HistoryRules) -> list[Row]:
    """The same, one event after the other: a value that is left out is the row's, or NULL."""
    tracked = () if rules.scd_type == 1 else COLUMNS if rules.tracked is None else rules.tracked
    cuts = {e[0] for e in events if e[1] == "T"}
    live: dict[int, Row] = {}
    done: list[Row] = []
    for at, oper, key, *values in sorted({e for e in events if e[1] == "T" or e[0] not in cuts}, key=order):
        gone = live.copy() if oper == "T" else {k: v for k, v in live.items() if k == key}
        if oper == "U":
            assert key is not None
            now = live.get(key, (key, None, None, at))
            new = (key, *(o if v == LEFT_OUT else v for o, v in zip(now[1:3], values, strict=True)))
            same = all(now[COLUMNS.index(c)] == new[COLUMNS.index(c)] for c in tracked)
            live[key] = (*new, now[3] if same and gone else at)
            gone = {} if same else gone
        else:
            live = {k: v for k, v in live.items() if k not in gone}
        done += [(*v, at) for v in gone.values() if rules.scd_type == 2]
    return sorted([*done, *((*v, None) for v in live.values())], key=repr)


def order(event: Event) -> tuple[int, int]:
    return event[0], "TDU".index(event[1])


@st.composite
def batches(draw: st.DrawFn) -> list[list[Event]]:
    """Events in batches, in any order; some come twice. One upsert for a key and sequence."""
    made: dict[Any, Event] = {}
    for _ in range(draw(st.integers(1, 32))):  # a batch costs much, and another event nothing
        oper, at, key = draw(st.sampled_from("UUUUUUUUDT")), draw(st.integers(1, 16)), draw(st.integers(1, 4))
        a, b = (draw(st.sampled_from([LEFT_OUT, LEFT_OUT, None, None, v])) for v in ("x", 7))
        event: Event = (at, "T", None, None, None) if oper == "T" else (at, "D", key, None, None)
        made[at, key, oper] = (at, "U", key, a, b) if oper == "U" else event
    deleted = {(at, key) for at, key, oper in made if oper == "D"}
    events = [e for e in made.values() if e[1] != "U" or (e[0], e[2]) not in deleted]
    events = draw(st.permutations([*events, *(e for e in events if draw(st.integers(0, 4)) == 0)]))
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), min_size=1, max_size=4)))
    return [events[a:b] for a, b in itertools.pairwise([0, *cuts, len(events)])]


RULES = st.sampled_from(
    [{}, {"scd_type": 1}, {"tracked": ("a",)}, {"tracked": ()}, {"bitemporal": True, "tracked": ("b",)}]
)


@examples(2, derandomize=True, phases=[Phase.generate])
@given(batches(), RULES)
def test_values_that_are_left_out_give_one_history_in_any_order_and_batches(
    given_in: list[list[Event]], more: dict[str, Any]
) -> None:
    events = [e for one in given_in for e in one]
    with tempfile.TemporaryDirectory() as folder:
        history, at_once = make(f"{folder}/a", **more), make(f"{folder}/b", **more)
        for number, one in enumerate(given_in):
            history.apply(table(one), flow="f", batch=number)
        at_once.apply(table(events))
        assert rows(history) == rows(at_once) == versions(events, history.rules)


@pytest.mark.slow
@examples(2, derandomize=True, phases=[Phase.generate])
@given(batches(), batches(), st.integers(1, 16), RULES)
def test_values_that_are_left_out_do_not_need_events_that_are_forgotten(
    before: list[list[Event]], later: list[list[Event]], at: int, more: dict[str, Any]
) -> None:
    first = [e for one in before for e in one]
    taken = {e[0] for e in first}
    second = [e for one in later for e in one if e[0] not in taken]
    with tempfile.TemporaryDirectory() as folder:
        history = make(folder, **more)
        for one in before:
            history.apply(table(one))
        history.forget(at)
        for event in second:
            history.apply(table([event]))
        assert rows(history) == versions([*first, *(e for e in second if e[0] >= at)], history.rules)


LACKS: Event = (1, "U", 1, LEFT_OUT, 5)
NULLS: Event = (2, "U", 1, None, 6)


@pytest.mark.parametrize(
    "told",
    [[(LACKS, NULLS)], [(LACKS,), (NULLS,)], [(NULLS,), (LACKS,)], [(LACKS,), (NULLS,), (LACKS, NULLS)]],
)
def test_a_value_that_is_not_known_is_no_other_than_null(tmp_path: Path, told: list[tuple[Event]]) -> None:
    history = make(tmp_path / "h", tracked=("a",))
    for one in told:
        history.apply(table(one))
    assert rows(history) == [(1, None, 6, 1, None)]


def test_a_late_event_fills_values_that_are_left_out_and_no_null(tmp_path: Path) -> None:
    history = make(tmp_path / "h")
    for one in (LACKS, NULLS, (0, "U", 1, "x", 4)):
        history.apply(table([one]))
    assert rows(history) == [(1, "x", 4, 0, 1), (1, "x", 5, 1, 2), (1, None, 6, 2, None)]
