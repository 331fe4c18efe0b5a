"""Histories that are kept: late events, what is kept aside, crashes, and what a history refuses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import tailrace
from tailrace.engine.history_events import ignore_nulls
from tailrace.engine.history_updates import HistoryRules
from tailrace.errors import ConfigError, UnsupportedError
from tailrace.model import mask
from tailrace.query.history import table as history_table
from tailrace.query.history.files import HistoryFiles
from tailrace.query.history.table import HistoryTable

from ..ending import ends
from .task_home import ITEM, TaskHome

pytestmark = pytest.mark.unit

ENDS = ("history.exchange", "history.forget", "history.columns")
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
    return ignore_nulls(made, COLUMNS, ignored) if ignored else made


def make(path: str | Path, **more: Any) -> HistoryTable:
    return HistoryTable.make(str(path), DATA, HistoryRules(("id",), COLUMNS, **more), pa.int64())


def rows(history: HistoryTable, **more: Any) -> list[Row]:
    found = history.versions(**more).rows()
    names = [*COLUMNS, "__START_AT", "__END_AT"]
    return sorted((tuple(r[n] for n in names) for r in found), key=repr)


def test_what_cannot_count_is_kept_aside_with_its_reason(tmp_path: Path) -> None:
    history = make(tmp_path / "h")
    odd: list[Event] = [
        (None, "U", 1, "a", 1), (1, "U", None, "a", 1), (1, "X", 1, "a", 1), (2, "U", 1, "a", 1), (2, "D", 1, None, None),
        (3, "T", None, None, None), (3, "U", 1, "late", 1),
    ]  # fmt: skip
    for _ in range(2):
        history.apply(table(odd))
    assert rows(history) == []
    found = sorted((r["__operation"], r["__sequence"] or 0, r["why"]) for r in history.rejects().rows())
    assert found == [
        ("U", 0, "NULL as its sequence: its position in the order is unknown"),
        ("U", 1, "NULL in the key"),
        ("U", 2, "another event has the same key and sequence"),
        ("U", 3, "another event has the same key and sequence"),
        ("X", 1, "its operation is none of U, D, T"),
    ]


@pytest.mark.parametrize(
    ("kind", "batches"),
    [
        (pa.float64(), [[1.0, 2.0, NAN]]),
        (pa.float64(), [[NAN, 1.0], [2.0, NAN]]),
        (pa.float64(), [[1.0, 2.0], [NAN]]),
        (pa.float32(), [[NAN, 1.0], [2.0, NAN]]),
    ],
)
def test_nan_is_no_place_in_the_order(tmp_path: Path, batches: list[list[float]], kind: pa.DataType) -> None:
    history = HistoryTable.make(str(tmp_path / "h"), DATA, HistoryRules(("id",), COLUMNS), kind)
    for batch in batches:
        events = table([(1, "U", 1, f"at {n}", 1) for n in batch])
        place = events.column_names.index("__sequence")
        history.apply(events.set_column(place, "__sequence", pa.array(batch, kind)))
    assert rows(history) == [(1, "at 1.0", 1, 1.0, 2.0), (1, "at 2.0", 1, 2.0, None)]
    assert [r["name"] for r in history.as_of(1.5).rows()] == ["at 1.0"]
    assert [(r["name"], r["why"]) for r in history.rejects().rows()] == [
        ("at nan", "NaN as its sequence, which has no order")
    ]


def test_a_late_event_splits_the_version_that_it_falls_into(tmp_path: Path) -> None:
    history = make(tmp_path / "h")
    history.apply(table([(1, "U", 1, "a", 1), (9, "U", 1, "c", 1)]))
    done = history.apply(table([(5, "U", 1, "b", 1)]))
    assert (done.added, done.removed) == (2, 1)
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
        ("name", pa.array([7], pa.int64()), "the types have no values in common"),
        ("qty", pa.array([dt.date(2026, 1, 2)]), "the types have no values in common"),
        ("__sequence", pa.array([dt.datetime(2026, 1, 2)]), "the types have no values in common"),
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
    found = sorted((r["__sequence"], r["__time"]) for r in history.rejects().rows())
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
    assert history.apply(table([(2, "U", 1, "b", 1)]), flow="f", batch=1).added == 0


def test_columns_that_a_crash_kept_out_of_the_versions_come_with_the_next_call(tmp_path: Path) -> None:
    make(tmp_path / "h").apply(table([(1, "U", 1, "a", 1)]))
    more, rules = pa.schema([*DATA, ("note", pa.string())]), HistoryRules(("id",), (*COLUMNS, "note"))
    with ends("history.columns"):
        HistoryTable.make(str(tmp_path / "h"), more, rules, pa.int64())
    assert make(tmp_path / "h").rules.columns == COLUMNS
    history = HistoryTable.make(str(tmp_path / "h"), more, rules, pa.int64())
    new = table([(2, "U", 1, "b", 1)])
    history.apply(new.append_column("note", pa.array(["n"])))
    assert sorted((r["name"], r["note"]) for r in history.versions().rows()) == [("a", None), ("b", "n")]


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
    assert [r["why"] for r in history.rejects().rows()] == ["change_oper is none of I, U, D, B, T"]
    with pytest.raises(ConfigError, match="tracked is None"):
        tailrace.open(home.file).table(ITEM).keep_history(path, track_history_column_list=["name"])


def test_maintenance_joins_the_files_of_events_and_leaves_them_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_table, "SMALL_FILES", 4)
    history = make(tmp_path / "h")
    for number in range(4):
        history.apply(table([(number, "U", number, "a", 1)]))
    before = rows(history)
    assert len(DeltaTable(history.events_path).file_uris()) == 4
    history.maintain()
    assert len(DeltaTable(history.events_path).file_uris()) == 1
    gone = DeltaTable(history.path).vacuum(0, dry_run=True, enforce_retention_duration=False)
    assert gone and not [name for name in gone if "_events" in name]
    history.apply(table([(5, "U", 0, "late", 1)]))
    assert rows(history) == sorted(
        [*(r for r in before if r[0]), (0, "a", 1, 0, 5), (0, "late", 1, 5, None)], key=repr
    )
