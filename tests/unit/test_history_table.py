"""Histories that are kept: whatever order events come in, the versions are those of all of them together."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tailrace
from tailrace.engine.event_rows import ignoring_nulls
from tailrace.engine.kept_history import HistoryRules
from tailrace.errors import ConfigError, UnsupportedError
from tailrace.model import mask
from tailrace.query.history_files import HistoryFiles
from tailrace.query.history_table import HistoryTable

from ..ending import ends
from ..examples import examples
from .task_home import ITEM, TaskHome

pytestmark = pytest.mark.unit

ENDS = ("history.exchange", "history.forget")
"""The fail points at which tests of this file end."""
COLUMNS = ("id", "name", "qty")
DATA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("qty", pa.int64())])
Event = tuple[int | None, str, int | None, str | None, int | None]
"""Sequence, operation, id, name, qty."""
Row = tuple[Any, ...]
NAN = float("nan")


def table(events: Sequence[Event], ignored: Sequence[str] = ()) -> pa.Table:
    names = ("__sequence", "__operation", *COLUMNS)
    rows = [dict(zip(names, one, strict=True)) | {"__carries": None} for one in events]
    schema = pa.schema(
        [*DATA, ("__sequence", pa.int64()), ("__operation", pa.string()), ("__carries", pa.binary())]
    )
    made = pa.Table.from_pylist(rows, schema)
    return ignoring_nulls(made, COLUMNS, ignored) if ignored else made


def make(path: str | Path, **more: Any) -> HistoryTable:
    return HistoryTable.make(str(path), DATA, HistoryRules(("id",), COLUMNS, **more), pa.int64())


def rows(history: HistoryTable, **more: Any) -> list[Row]:
    found = history.versions(**more).rows()
    names = [*COLUMNS, "__START_AT", "__END_AT"]
    return sorted((tuple(r[n] for n in names) for r in found), key=repr)


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
    for _ in range(draw(st.integers(1, 14))):
        oper = draw(st.sampled_from("UUUUUUDDT"))
        at, key = draw(st.integers(1, 12)), draw(st.integers(1, 3))
        values = (draw(st.sampled_from([None, "a", "b"])), draw(st.sampled_from([None, 1, 2])))
        event: Event = (at, "T", None, None, None) if oper == "T" else (at, oper, key, *values)
        if oper == "D":
            event = (at, "D", key, None, None)
        made[event if ties else (at, event[2], oper)] = event
    events = [*made.values()]
    events += [e for e in events if draw(st.integers(0, 4)) == 0]
    events = draw(st.permutations(events))
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=3)))
    return [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]


RULES = st.sampled_from(
    [{}, {"scd_type": 1}, {"tracked": ("name",)}, {"tracked": ()}, {"bitemporal": True}, {"bitemporal": True, "tracked": ("qty",)}]
)  # fmt: skip
IGNORED = st.sampled_from([(), ("name",), ("name", "qty")])


@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate])
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
        assert (done.came, done.gone, rows(history)) == (0, 0, wanted)
        assert history.versions().table().num_rows == before


@settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])
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
            sorted(map(repr, h.aside().select([*COLUMNS, "__sequence", "why"]).rows())) for h in (here, there)
        ]
        assert told[0] == told[1]


@pytest.mark.slow
@examples(8, derandomize=True, phases=[Phase.generate])
@given(batches(ties=False), batches(ties=False), st.integers(1, 12), RULES, IGNORED)
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
        late = {r["why"] for r in history.aside().rows()} & {"older than the events that the history keeps"}
        assert bool(late) == any(e[0] is not None and e[0] < at for one in fresh for e in one)


def test_what_cannot_count_is_kept_aside_with_its_reason(tmp_path: Path) -> None:
    history = make(tmp_path / "h")
    odd: list[Event] = [
        (None, "U", 1, "a", 1), (1, "U", None, "a", 1), (1, "X", 1, "a", 1), (2, "U", 1, "a", 1), (2, "D", 1, None, None),
        (3, "T", None, None, None), (3, "U", 1, "late", 1),
    ]  # fmt: skip
    for _ in range(2):
        history.apply(table(odd))
    assert rows(history) == []
    found = sorted((r["__operation"], r["__sequence"] or 0, r["why"]) for r in history.aside().rows())
    assert found == [
        ("U", 0, "NULL as its sequence: its place in the order is not known"),
        ("U", 1, "NULL in the key"),
        ("U", 2, "another event of the same key and sequence counts"),
        ("U", 3, "another event of the same key and sequence counts"),
        ("X", 1, "its operation is none of U, D, T"),
    ]


@pytest.mark.parametrize("batches", [[[1.0, 2.0, NAN]], [[NAN, 1.0], [2.0, NAN]], [[1.0, 2.0], [NAN]]])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_nan_is_no_place_in_the_order(tmp_path: Path, batches: list[list[float]], kind: pa.DataType) -> None:
    history = HistoryTable.make(str(tmp_path / "h"), DATA, HistoryRules(("id",), COLUMNS), kind)
    for batch in batches:
        events = table([(1, "U", 1, f"at {n}", 1) for n in batch])
        place = events.column_names.index("__sequence")
        history.apply(events.set_column(place, "__sequence", pa.array(batch, kind)))
    assert rows(history) == [(1, "at 1.0", 1, 1.0, 2.0), (1, "at 2.0", 1, 2.0, None)]
    assert [r["name"] for r in history.as_of(1.5).rows()] == ["at 1.0"]
    assert [(r["name"], r["why"]) for r in history.aside().rows()] == [
        ("at nan", "NaN as its sequence: it has no place in the order")
    ]


def test_a_late_event_splits_the_version_that_it_falls_into(tmp_path: Path) -> None:
    history = make(tmp_path / "h")
    history.apply(table([(1, "U", 1, "a", 1), (9, "U", 1, "c", 1)]))
    done = history.apply(table([(5, "U", 1, "b", 1)]))
    assert (done.came, done.gone) == (2, 1)
    assert rows(history) == [(1, "a", 1, 1, 5), (1, "b", 1, 5, 9), (1, "c", 1, 9, None)]
    assert [r["name"] for r in history.as_of(6).rows()] == ["b"]
    assert [r["name"] for r in history.current().rows()] == ["c"]


def test_a_bitemporal_history_knows_what_it_knew(tmp_path: Path) -> None:
    history = make(tmp_path / "h", bitemporal=True)
    days = [dt.datetime(2026, 11, day, tzinfo=dt.timezone.utc) for day in (1, 2, 3)]
    history.apply(table([(1, "U", 1, "a", 1), (9, "U", 1, "c", 1)]), at=days[0])
    history.apply(table([(5, "U", 1, "b", 1)]), at=days[2])
    assert rows(history, system=days[1]) == [(1, "a", 1, 1, 9), (1, "c", 1, 9, None)]
    assert rows(history) == [(1, "a", 1, 1, 5), (1, "b", 1, 5, 9), (1, "c", 1, 9, None)]
    assert [r["name"] for r in history.as_of(6, system=days[1]).rows()] == ["a"]
    assert [r["name"] for r in history.as_of(6, system=days[2]).rows()] == ["b"]
    with pytest.raises(UnsupportedError, match="newest rows only"):
        make(tmp_path / "one", scd_type=1).as_of(1)


def test_times_are_kept_beside_sequences(tmp_path: Path) -> None:
    history = make(tmp_path / "h", timed=True)
    at = [dt.datetime(2026, 11, 22, 10, minute, tzinfo=dt.timezone.utc) for minute in range(10)]
    events = table([(1, "U", 1, "a", 1), (9, "D", 1, None, None)])
    history.apply(events.append_column("__time", pa.array([at[1], at[9]], pa.timestamp("us", "UTC"))))
    history.apply(
        table([(5, "U", 1, "b", 1)]).append_column("__time", pa.array([at[5]], pa.timestamp("us", "UTC")))
    )
    found = [(r["name"], r["valid_from"], r["valid_to"], r["is_current"]) for r in history.versions().rows()]
    assert sorted(found) == [("a", at[1], at[5], False), ("b", at[5], at[9], False)]


def test_a_history_keeps_what_it_was_made_for(tmp_path: Path) -> None:
    make(tmp_path / "h").apply(table([(1, "U", 1, "a", 1)]))
    assert HistoryTable.open(str(tmp_path / "h")).rules == HistoryRules(("id",), COLUMNS)
    with pytest.raises(ConfigError, match="scd_type is 2, not 1"):
        make(tmp_path / "h", scd_type=1)
    with pytest.raises(ConfigError, match="the sequence is int64, not string"):
        HistoryTable.make(str(tmp_path / "h"), DATA, HistoryRules(("id",), COLUMNS), pa.string())
    with pytest.raises(ConfigError, match="there is no column nope"):
        make(tmp_path / "n", tracked=("nope",))
    with pytest.raises(ConfigError, match="there is no history"):
        HistoryTable.open(str(tmp_path / "n"))
    with pytest.raises(ConfigError, match="have no column qty"):
        make(tmp_path / "h").apply(table([]).drop_columns(["qty"]))
    with pytest.raises(ConfigError, match="has no column more"):
        make(tmp_path / "h").apply(table([]).append_column("more", pa.array([], pa.int64())))


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("name", pa.array([7], pa.int64()), "another kind of values"),
        ("qty", pa.array([dt.date(2026, 1, 2)]), "another kind of values"),
        ("__sequence", pa.array([dt.datetime(2026, 1, 2)]), "another kind of values"),
        ("qty", pa.array([1.5]), "truncated"),
    ],
)
def test_values_that_would_become_others_in_a_history_are_refused(
    tmp_path: Path, name: str, given: pa.Array, why: str
) -> None:
    history = make(tmp_path / "h")
    events = table([(1, "U", 1, "a", 1)])
    place = events.column_names.index(name)
    with pytest.raises(ConfigError, match=why):
        history.apply(events.set_column(place, name, given))
    assert rows(history) == []


def test_an_event_that_is_aside_is_told_with_its_first_time(tmp_path: Path) -> None:
    history, days = make(tmp_path / "h"), [dt.datetime(2026, 1, d, tzinfo=dt.timezone.utc) for d in (1, 2, 3)]
    for day, number in ((days[1], 1), (days[2], 2), (days[0], 1), (None, 1)):
        events = table([(number, "U", None, "a", 1)])
        history.apply(events.append_column("__time", pa.array([day], pa.timestamp("us", "UTC"))))
    found = sorted((r["__sequence"], r["__time"]) for r in history.aside().rows())
    assert found == [(1, days[0]), (2, days[2])]


def test_values_that_are_the_same_in_another_type_are_taken(tmp_path: Path) -> None:
    history = make(tmp_path / "h")
    events = table([(1, "U", 1, "a", 1)])
    place = events.column_names.index("qty")
    history.apply(events.set_column(place, "qty", pa.array([3.0])))
    assert rows(history) == [(1, "a", 3, 1, None)]


def test_what_a_crash_kept_out_of_the_versions_is_done_by_the_next_batch(tmp_path: Path) -> None:
    history = make(tmp_path / "h")
    history.apply(table([(1, "U", 1, "a", 1)]), flow="f", batch=0)
    with ends("history.exchange"):
        history.apply(table([(2, "U", 1, "b", 1), (2, "U", 2, "b", 1)]), flow="f", batch=1)
    assert rows(history) == [(1, "a", 1, 1, None)]
    history.apply(table([(3, "U", 3, "c", 1)]), flow="g", batch=0)
    wanted = [(1, "a", 1, 1, 2), (1, "b", 1, 2, None), (2, "b", 1, 2, None), (3, "c", 1, 3, None)]
    assert rows(history) == wanted
    assert history.apply(table([(2, "U", 1, "b", 1)]), flow="f", batch=1).came == 0


def test_events_that_a_crash_left_are_forgotten_the_next_time(tmp_path: Path) -> None:
    history = make(tmp_path / "h")
    history.apply(table([(1, "U", 1, "a", 1), (2, "U", 1, "b", 1), (5, "U", 1, "c", 1)]))
    before = rows(history)
    with ends("history.forget"):
        history.forget(4)
    assert rows(history) == before
    assert (history.forget(4), rows(history)) == (1, before)  # the version of then began with the second one
    assert history.forget(4) == 0


def test_forget_waits_for_another_process_that_commits_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = make(tmp_path / "h")
    history.apply(table([(1, "U", 1, "a", 1), (2, "U", 1, "b", 1)]))
    with ends("history.exchange"):
        history.apply(table([(5, "U", 1, "c", 1)]))
    exchange = HistoryFiles.exchange

    def later(*given: Any) -> None:
        monkeypatch.setattr(HistoryFiles, "exchange", exchange)
        HistoryTable.open(history.path).finish()  # the other process
        exchange(*given)

    monkeypatch.setattr(HistoryFiles, "exchange", later)
    assert history.forget(4) == 1
    assert rows(history) == [(1, "a", 1, 1, 2), (1, "b", 1, 2, 5), (1, "c", 1, 5, None)]


def test_the_history_of_a_change_table_is_that_of_its_changes(tmp_path: Path) -> None:
    home = TaskHome(tmp_path)
    one = {"id": 1, "name": "a", "price": Decimal("1.00")}
    home.store((11, "I", one), (12, "B", one), (12, "U", one | {"id": 2}))
    changes = tailrace.open(home.file).table(ITEM)
    path = str(tmp_path / "h")
    changes.keep_history(path)
    start = 8  # headers before the columns
    sparse = {"id": 3, "header__column_mask": mask.encode([start])}
    home.store(
        (13, "B", one | {"id": 2}),
        (13, "U", sparse),
        (14, "U", {**sparse, "name": "b", "header__column_mask": mask.encode([start, start + 1])}),
    )
    home.store((15, "D", one | {"id": 3}), (16, "I", one | {"id": 4}), (16, "X", one), (17, "T", {}))
    for _ in range(2):
        history = tailrace.open(home.file).table(ITEM).keep_history(path)
    names = ["id", "name", "price", "valid_from", "valid_to", "is_current", "__START_AT", "__END_AT"]
    whole = (
        tailrace.open(home.file).table(ITEM).history(base=changes.files.schema.empty_table()).select(names)
    )
    assert sorted(map(repr, history.versions().select(names).rows())) == sorted(map(repr, whole.rows()))
    assert history.versions().table().num_rows == 5
    assert [r["why"] for r in history.aside().rows()] == ["change_oper is none of I, U, D, B, T"]
    with pytest.raises(ConfigError, match="tracked is None"):
        tailrace.open(home.file).table(ITEM).keep_history(path, track_history_column_list=["name"])


def test_maintenance_joins_the_files_of_events_and_leaves_them_where_they_are(tmp_path: Path) -> None:
    history = make(tmp_path / "h")
    for number in range(20):
        history.apply(table([(number, "U", number, "a", 1)]))
    before = rows(history)
    assert len(DeltaTable(history.events_path).file_uris()) == 20
    history.maintain()
    assert len(DeltaTable(history.events_path).file_uris()) == 1
    gone = DeltaTable(history.path).vacuum(0, dry_run=True, enforce_retention_duration=False)
    assert gone and not [name for name in gone if "_events" in name]
    history.apply(table([(5, "U", 0, "late", 1)]))
    assert rows(history) == sorted(
        [*(r for r in before if r[0]), (0, "a", 1, 0, 5), (0, "late", 1, 5, None)], key=repr
    )
