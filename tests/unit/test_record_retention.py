"""ApplyExceptions, quarantine and the DDL history are kept as long as `retention` says."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.capture import ddl_history
from tailrace.config.task import Task, load
from tailrace.formats.qlik.control import TABLES
from tailrace.keylog.control_tables import EXCEPTIONS
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make, time_part
from tailrace.model.types import arrow_type
from tailrace.runtime.maintenance import forget_old_records
from tailrace.state.ddl import CatalogEvent
from tailrace.state.declarations import QUARANTINE
from tailrace.state.retention import trim_batches, trim_tables
from tailrace.store.task import set_aside

pytestmark = pytest.mark.unit

NOW = dt.datetime(2026, 3, 31, tzinfo=dt.timezone.utc)


def days_ago(days: float) -> dt.datetime:
    return NOW - dt.timedelta(days=days)


def seq(days: float, number: int) -> str:
    return make(time_part(days_ago(days)), number)


def task(at: Path, said: str) -> Task:
    (at / "t.yaml").write_text(
        f"name: shop\nhome: home\nsource: {{url: 'postgresql://db/shop'}}\nretention: {said}\n"
    )
    return load(at / "t.yaml")


def test_exceptions_of_the_task_go_by_age_and_those_of_others_stay(tmp_path: Path) -> None:
    one = task(tmp_path, "{keep: 10d}")
    schema = pa.schema([pa.field(c.name, arrow_type(c.type)) for c in TABLES[EXCEPTIONS].columns])
    rows = [
        {"TASK_NAME": name, "TABLE_OWNER": "s", "TABLE_NAME": "t", "ERROR_TIME": days_ago(days), "ERROR": f"{name} {days}"}
        for name in ("shop", "other")
        for days in (9, 11)
    ]  # fmt: skip
    lake.append(one.control_path(EXCEPTIONS), pa.Table.from_pylist(rows, schema))
    forget_old_records(one, NOW)
    left = lake.read(one.control_path(EXCEPTIONS))["ERROR"].to_pylist()
    assert sorted(left) == ["other 11", "other 9", "shop 9"]


def test_values_in_quarantine_are_removed_by_age(tmp_path: Path) -> None:
    one = task(tmp_path, "{keep: forever, records: 10d}")
    rows = [
        {"change_seq": s, "table": "s.t", "column": "c", "value": v, "reason": "", "noticed_at": days_ago(d)}
        for s, v, d in [(seq(11, 1), "old", 11), (seq(9, 2), "young", 9), (None, "baseline", 11)]
    ]
    lake.append(one.control_path("quarantine"), pa.Table.from_pylist(rows, QUARANTINE))
    forget_old_records(one, NOW)
    left = lake.read(one.control_path("quarantine"))["value"].to_pylist()
    assert left == ["young"]


def test_values_are_put_aside_with_the_time() -> None:
    (row,) = set_aside([{"table": "s.t", "column": "c", "value": "v", "reason": "r"}]).to_pylist()
    assert row["change_seq"] is None and row["noticed_at"].tzinfo is not None


def test_ddl_that_is_forgotten_is_not_written_again(tmp_path: Path) -> None:
    one = task(tmp_path, "{keep: 10d}")
    path, column = one.control_path("ddl_history"), Column("id", 1, "integer", "int4", "int", key=True)
    relation = Relation(7, "s", "t", "d", (column,))
    history = {"s.t": [log.Layout(relation, bytes(20), make(0, 0))]}
    events = [
        CatalogEvent("s.t", 7, "rename_table", seq(days, n), f"s.t{n}")
        for n, days in enumerate((12, 11, 9), 1)
    ]
    assert ddl_history.write_missing(path, one.name, history, events) == 4
    forget_old_records(one, NOW)
    assert (
        ddl_history.write_missing(
            path, one.name, history, [*events, CatalogEvent("s.t", 7, "drop_table", seq(1, 4))]
        )
        == 1
    )
    left = lake.read(path).to_pylist()
    assert sorted(r["CHANGE_SEQ"] for r in left) == [make(0, 0), seq(9, 3), seq(1, 4)]


def test_nothing_goes_unless_the_task_file_says_so(tmp_path: Path) -> None:
    one = task(tmp_path, "{tracking: 1d}")
    lake.append(
        one.control_path("quarantine"),
        set_aside([{"table": "s.t", "column": "c", "value": "v", "reason": "r"}]),
    )
    forget_old_records(one, NOW + dt.timedelta(days=1000))
    assert lake.read(one.control_path("quarantine")).num_rows == 1


def test_nothing_is_older_than_all_time(tmp_path: Path) -> None:
    """Some write a million days where they mean for ever."""
    one = task(tmp_path, "{keep: 1000000d}\nmaintenance: {keep_ledger: 1000000d}")
    value = {"table": "s.t", "column": "c", "value": "v", "reason": ""}
    lake.append(one.control_path("quarantine"), set_aside([value]))
    forget_old_records(one)
    trim_batches(one, {})
    trim_tables(one)
    assert lake.read(one.control_path("quarantine")).num_rows == 1
