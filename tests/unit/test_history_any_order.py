"""Histories that are kept, against a plain model: whatever order events come in, the versions are those of all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from tailrace.engine.history_updates import HistoryRules

from ..examples import examples
from .test_history_table import COLUMNS, Event, Row, make, rows, table

pytestmark = pytest.mark.unit


def versions(events: Sequence[Event], rules: HistoryRules, ignored: Sequence[str] = ()) -> list[Row]:
    """The same, one event after the other."""
    chosen = COLUMNS if rules.tracked is None else rules.tracked
    tracked = {"id"} if rules.scd_type == 1 else {"id", *chosen}
    cuts = {e[0] for e in events if e[1] == "T"}
    live: dict[int, list[Any]] = {}
    done: list[Row] = []

    def close(key: int, at: int) -> None:
        if (one := live.pop(key, None)) is not None and rules.scd_type == 2:
            done.append((*one, at))

    order = {"D": 0, "U": 1}
    seen: set[tuple[int, int]] = set()
    for at, oper, key, name, qty in sorted(
        (e for e in events if e[1] == "T" or e[0] not in cuts), key=lambda e: (e[0], order.get(e[1], 0))
    ):
        assert at is not None
        if oper == "T":
            for one in list(live):
                close(one, at)
            continue
        assert key is not None
        if (key, at) in seen:
            continue
        seen.add((key, at))
        if oper == "D":
            close(key, at)
            continue
        now = live.get(key)
        row = [key, name, qty]
        for k, column in enumerate(COLUMNS):
            if column in ignored and row[k] is None and now:
                row[k] = now[k]
        if now and all(now[k] == row[k] for k, c in enumerate(COLUMNS) if c in tracked):
            now[:3] = row
        else:
            close(key, at)
            live[key] = [*row, at]
    return sorted([*done, *((*one, None) for one in live.values())], key=repr)


@st.composite
def batches(draw: st.DrawFn, *, ties: bool) -> list[list[Event]]:
    """Events in batches, in any order; some come twice."""
    made: dict[Any, Event] = {}
    for _ in range(draw(st.integers(1, 40))):  # a batch costs much, and another event nothing
        oper = draw(st.sampled_from("UUUUUUUUUUDDDT"))
        at, key = draw(st.integers(1, 16)), draw(st.integers(1, 5))
        values = (draw(st.sampled_from([None, "a", "b"])), draw(st.sampled_from([None, 1, 2])))
        event: Event = (at, "T", None, None, None) if oper == "T" else (at, oper, key, *values)
        if oper == "D":
            event = (at, "D", key, None, None)
        made[event if ties else (at, event[2], oper)] = event
    events = [*made.values()]
    events += [e for e in events if draw(st.integers(0, 4)) == 0]
    events = draw(st.permutations(events))
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), min_size=1, max_size=3)))
    return [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]


RULES = st.sampled_from(
    [{}, {"scd_type": 1}, {"tracked": ("name",)}, {"tracked": ()}, {"bitemporal": True}, {"bitemporal": True, "tracked": ("qty",)}]
)  # fmt: skip
IGNORED = st.sampled_from([(), ("name",), ("name", "qty")])


@examples(4, derandomize=True, phases=[Phase.generate])
@given(batches(ties=False), RULES, IGNORED)
def test_any_order_batches_and_repetitions_give_the_history_of_all_events(
    given_in: list[list[Event]], more: dict[str, Any], ignored: Sequence[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = make(folder, **more)
        for number, one in enumerate(given_in):
            history.apply(table(one, ignored), flow="f", batch=number)
        wanted = versions([e for one in given_in for e in one], history.rules, ignored)
        assert rows(history) == wanted
        before = history.versions().table().num_rows
        done = history.apply(table(given_in[-1], ignored))  # a replay, under no name
        assert (done.added, done.removed, rows(history)) == (0, 0, wanted)
        assert history.versions().table().num_rows == before


@examples(2, derandomize=True, phases=[Phase.generate])
@given(batches(ties=True), RULES)
def test_ties_come_out_the_same_whatever_order_they_came_in(
    given_in: list[list[Event]], more: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here, there = make(f"{folder}/a", **more), make(f"{folder}/b", **more)
        for one in given_in:
            here.apply(table(one))
        there.apply(table([e for one in reversed(given_in) for e in reversed(one)]))
        assert rows(here) == rows(there)
        told = [
            sorted(map(repr, h.rejects().select([*COLUMNS, "__sequence", "why"]).rows()))
            for h in (here, there)
        ]
        assert told[0] == told[1]


@pytest.mark.slow
@examples(6, derandomize=True, phases=[Phase.generate])
@given(batches(ties=False), batches(ties=False), st.integers(1, 16), RULES, IGNORED)
def test_events_that_are_forgotten_were_not_needed(
    before: list[list[Event]], later: list[list[Event]], at: int, more: dict[str, Any], ignored: Sequence[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = make(folder, **more)
        for one in before:
            history.apply(table(one, ignored))
        known = {(e[0], e[2]) for one in before for e in one}
        cuts = {e[0] for one in before for e in one if e[1] == "T"}
        history.forget(at)
        fresh = [[e for e in one if (e[0], e[2]) not in known and e[0] not in cuts] for one in later]
        for one in fresh:
            history.apply(table(one, ignored))
        counted = [e for one in before for e in one]
        counted += [e for one in fresh for e in one if e[0] is not None and e[0] >= at]
        assert rows(history) == versions(counted, history.rules, ignored)
        late = {r["why"] for r in history.rejects().rows()} & {"older than the events that the history keeps"}
        assert bool(late) == any(e[0] is not None and e[0] < at for one in fresh for e in one)
