"""Metrics: each that is declared has values, and those come from what a task keeps of itself."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import ConfigError
from tailrace.lake import delta as lake
from tailrace.lake import json_files
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.operate import disk
from tailrace.operate.disk import DiskUse
from tailrace.runtime.counts import Counts
from tailrace.runtime.metrics import METRICS, collect, served
from tailrace.runtime.metrics.collect import TaskCollector
from tailrace.state import ledger, live
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.state.capture_state import CaptureState
from tailrace.state.ledger import AppliedTable, Stored

pytestmark = pytest.mark.unit
AT = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
RELATION = Relation(7, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
Labels = dict[str, str]


@pytest.fixture
def task(tmp_path: Path, written: Path) -> Task:
    """A table with a baseline; two batches are stored, one is applied."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return load(tmp_path / "shop.yaml")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of that task, to be copied."""
    folder = tmp_path_factory.mktemp("task")
    (folder / "shop.yaml").write_text("name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\n")
    made = load(folder / "shop.yaml")
    write_baseline(made.control_path("baselines"), Baseline("s.t", RELATION, "0" * 40, 100, 0, AT, 2.0))
    for upto, rows in ((3, 9), (5, 4)):
        one = Stored(upto, make(0, upto), f"{upto:016X}{0:024X}", AT, {"s.t": {"rows": rows}})
        ledger.write_stored(made.control_path("stored"), one, {"s.t": 7})
    first = ledger.read_stored(made.control_path("stored"))[0]
    lake.append(made.target_path("s.t"), pa.table({"id": [1]}), progress={made.apply_app: 3})
    ledger.write_applied(made.control_path("applied"), first, [DONE], "tailrace/applied")
    return folder


DONE = AppliedTable(
    "s.t", 1, 7, 2, 1, 0, "merge", 0.3, flagged=2, conflicts={"update_missing": 2, "insert_exists": 1}
)


@pytest.fixture
def counted() -> Counts:
    made = Counts()
    made.applied([DONE, dataclasses.replace(DONE, seconds=4.0)], 5.0)
    made.stored(Stored(3, make(0, 3), "0" * 40, AT, {"s.t": {"rows": 9}}), 0.2)
    return made


@pytest.fixture
def running(task: Task) -> Iterator[Task]:
    said = CaptureState(
        "running", position=f"{0x1A0:016X}{0:024X}", records=10, transactions=2, bytes=5000, commits=2,
        lag_bytes=77, lag_seconds=0.5, retained_bytes=16 << 20, left_bytes=1 << 30, read_at=AT.timestamp(),
        baselines={"s.new": {"state": "running", "parts": 8, "parts_done": 3}},
    )  # fmt: skip
    said.commit_seconds.add(0.01)
    with live.lock(task.run_path, "capture"), live.lock(task.run_path, "pipeline"):
        said.tell(task.run_path)
        interval = {"interval": 4.0, "reason": "files", "tables": {"s.t": {"interval": 15.0, "reason": None}}}
        json_files.write(task.run_path, "pipeline", {"state": "running", "freshness": interval})
        disk.note(task, DiskUse({"live": 7, "past": 5}, 3, 1 << 30, 24.0))
        json_files.write(task.run_path, "maintenance", {"done": AT.timestamp()})
        yield task


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(port: int) -> Values:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def value(found: Values, name: str, **labels: str) -> float:
    return found[name, frozenset({"task": "shop", **labels}.items())]


def test_every_declared_metric_has_values(running: Task, counted: Counts, port: int) -> None:
    with served(running, f"127.0.0.1:{port}", "capture", "pipeline") as watched:
        watched.counted = counted.as_dict
        found = scrape(port)
    names = {name for name, _ in found}
    assert {n for one in METRICS.values() for n in one.series} <= names
    assert {n for n in names if n.startswith("tailrace_")} == {n for m in METRICS.values() for n in m.series}
    assert "process_resident_memory_bytes" in names
    for name, labels in found:
        if one := next((m for m in METRICS.values() if name in m.series), None):
            assert {k for k, _ in labels} - {"le"} == {"task", *one.labels}


def test_paths_but_metrics_and_healthz_are_not_found(running: Task, port: int) -> None:
    with served(running, f"127.0.0.1:{port}", "capture", "pipeline"):
        assert scrape(port)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            assert answer.read() == b"ok\n"
        for path in ("/", "/metric", "/metrics/x", "/favicon.ico"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30)


def test_what_they_say(running: Task, counted: Counts, port: int) -> None:
    began = dt.datetime.now(dt.timezone.utc)
    with served(running, f"127.0.0.1:{port}", "capture", "pipeline") as watched:
        watched.counted = counted.as_dict
        found = scrape(port)
    said = {
        "tailrace_source_lag_bytes": 77, "tailrace_source_lag_seconds": 0.5,
        "tailrace_source_retained_bytes": 16 << 20, "tailrace_source_headroom_bytes": 1 << 30,
        "tailrace_source_position_bytes": 0x1A0, "tailrace_capture_records_total": 10,
        "tailrace_state_readable": 1,
    }  # fmt: skip
    assert {name: value(found, name) for name in said} == said
    assert [value(found, "tailrace_freshness_seconds", table=t) for t in ("*", "s.t")] == [4.0, 15.0]
    assert value(found, "tailrace_disk_bytes", kind="past") == 5
    started = [
        value(found, "tailrace_process_start_time_seconds", process=p) for p in ("capture", "pipeline")
    ]
    assert all(began.timestamp() - 1 <= at <= time.time() for at in started)
    table = {
        "tailrace_table_behind_rows": 4, "tailrace_table_baseline_rows": 100,
        "tailrace_table_stored_rows_total": 13, "tailrace_flagged_changes_total": 4,
        "tailrace_table_position_bytes": 3,
    }  # fmt: skip
    assert {name: value(found, name, table="s.t") for name in table} == table
    assert value(found, "tailrace_table_lag_seconds", table="s.t") >= (began - AT).total_seconds()
    rows = [
        value(found, "tailrace_table_applied_rows_total", table="s.t", operation=o)
        for o in ("insert", "update", "delete")
    ]
    assert rows == [7, 2, 1]
    assert value(found, "tailrace_conflicts_total", table="s.t", kind="update_missing") == 4
    assert value(found, "tailrace_process_up", process="pipeline") == 1
    assert value(found, "tailrace_process_state", process="capture", state="running") == 1
    assert value(found, "tailrace_table_state", table="s.new", state="baseline") == 1
    assert value(found, "tailrace_baseline_parts_done", table="s.new") == 3
    assert value(found, "tailrace_apply_seconds_sum", plan="merge") == 4.3
    steps = [
        value(found, "tailrace_apply_seconds_bucket", plan="merge", le=le) for le in ("0.25", "0.5", "+Inf")
    ]
    assert steps == [0, 1, 2]
    assert value(found, "tailrace_stage_last_success_timestamp_seconds", stage="capture") == AT.timestamp()


def test_a_task_that_nobody_runs_has_no_lag_and_its_halves_are_down(task: Task, port: int) -> None:
    with served(task, f"127.0.0.1:{port}", "capture", "pipeline"):
        found = scrape(port)
    assert [value(found, "tailrace_process_up", process=p) for p in ("capture", "pipeline")] == [0, 0]
    names = {name for name, _ in found}
    assert not names & {"tailrace_source_lag_seconds", "tailrace_stage_seconds_count"}
    assert value(found, "tailrace_table_state", table="s.t", state="stopped") == 1


def test_a_pipeline_that_has_lost_its_target_reconnects(running: Task, port: int) -> None:
    json_files.write(running.run_path, "pipeline", {"state": "reconnecting"})
    with served(running, f"127.0.0.1:{port}", "pipeline"):
        found = scrape(port)
    assert value(found, "tailrace_process_state", process="pipeline", state="reconnecting") == 1
    assert "or the pipeline its target" in METRICS["tailrace_process_state"].help


def test_each_half_serves_its_own(running: Task, counted: Counts, port: int) -> None:
    for half in ("capture", "pipeline"):
        with served(running, f"127.0.0.1:{port}", half) as watched:
            watched.counted = counted.as_dict if half == "pipeline" else None
            names = {name for name, _ in scrape(port) if name.startswith("tailrace_")}
        other = {"capture": "pipeline", "pipeline": "capture"}[half]
        assert {n for n in names if any(n in m.series for m in METRICS.values() if m.half == other)} == set()
        mine = {n for m in METRICS.values() if m.half == half for n in m.series}
        assert mine <= names


@pytest.mark.parametrize("error", [OSError, DeltaError])
def test_state_that_cannot_be_read_is_a_value_too(
    running: Task, counted: Counts, port: int, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def broken(task: Task) -> None:
        raise error("Stale file handle")

    monkeypatch.setattr(collect, "status", broken)
    with served(running, f"127.0.0.1:{port}", "pipeline") as watched:
        watched.counted = counted.as_dict
        found = scrape(port)
    assert value(found, "tailrace_state_readable") == 0
    assert value(found, "tailrace_apply_seconds_count", plan="merge") == 2


def test_two_scrapes_at_once_read_the_state_once(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Task] = []
    found = collect.status(task)
    monkeypatch.setattr(collect, "status", lambda one: reads.append(one) or found)
    monkeypatch.setattr(collect, "FRESH_S", 3600.0)
    collector = TaskCollector(task, frozenset({"pipeline"}), lambda: None)
    first, second = (sorted(f.name for f in collector.collect()) for _ in range(2))
    assert first == second
    assert len(reads) == 1


def test_a_scrape_opens_no_table_but_control_tables(
    running: Task, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets' and change tables' commits may be looked at, as `status` does; their rows are not."""
    read: list[str] = []
    kept: Callable[..., Any] = lake.read
    monkeypatch.setattr(lake, "read", lambda path, *more: read.append(path) or kept(path, *more))
    with served(running, f"127.0.0.1:{port}", "capture", "pipeline"):
        scrape(port)
    assert [p for p in read if not p.startswith(f"{running.home}/control/")] == []


@pytest.mark.parametrize("at", ["9187", "localhost", "localhost:0", "localhost:99999", "::1:80", "a b:80"])
def test_an_address_that_is_none(task: Task, at: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"), served(task, at, "capture"):
        pass


@pytest.mark.parametrize("command", ["run", "capture", "pipeline"])
def test_a_port_that_is_taken_ends_a_command_before_anything_is_started(
    task: Task, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a JVM is started")

    monkeypatch.setattr("tailrace.runtime.session.session", started)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        at = f"127.0.0.1:{other.getsockname()[1]}"
        ran = CliRunner().invoke(app, [command, f"{task.folder}/shop.yaml", "--metrics", at])
    assert isinstance(ran.exception, ConfigError)
    assert re.match(rf"metrics cannot be served at {at}: Address already in use", ran.exception.what)
    assert not (Path(task.run_path) / "capture.log").exists()


def test_the_port_of_a_task_that_runs_already_is_not_to_blame(task: Task, port: int) -> None:
    at = f"127.0.0.1:{port}"
    with live.lock(task.run_path, "pipeline"), served(task, at, "capture", "pipeline"):
        with pytest.raises(ConfigError) as told, served(task, at, "capture", "pipeline"):
            pass
        assert re.match(r"pipeline of this task is already running, as .*; metrics cannot", told.value.what)
        assert told.value.where == task.run_path and "stop that process first" in (told.value.hint or "")
    with served(task, at, "pipeline"), pytest.raises(ConfigError) as told, served(task, at, "pipeline"):
        pass
    assert told.value.what.startswith("metrics cannot be served")
    assert "give --metrics a host of this machine and a port" in (told.value.hint or "")
