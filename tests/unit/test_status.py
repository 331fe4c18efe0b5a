"""`status` says what is, not what somebody last wrote down."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tailrace.capture.column_doubts import identity_findings
from tailrace.cli import screen
from tailrace.cli.main import app
from tailrace.config.task import Task, load
from tailrace.errors import TailraceError
from tailrace.lake import delta as lake
from tailrace.lake import json_files, log, log_retention
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import make
from tailrace.operate import control_tables
from tailrace.operate.status import Status, TableStatus, late, status
from tailrace.operate.vendor_status import status_row
from tailrace.state import commands, declarations, ledger, live, rolling
from tailrace.state.baselines import Baseline, read_baselines, write_baseline
from tailrace.state.capture_state import CaptureState
from tailrace.state.ledger import AppliedTable, Stored

pytestmark = pytest.mark.unit
AT = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
RELATION = Relation(7, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
TASK = "name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\npolicies: {s.low: 1}\n"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "shop.yaml").write_text(TASK)
    made = load(tmp_path / "shop.yaml")
    taken = Baseline("s.t", RELATION, "0" * 40, 100, 0, AT, 2.0, after=3)
    write_baseline(made.control_path("baselines"), taken)
    for upto, rows in ((3, 9), (5, 3), (9, 7)):
        one = Stored(upto, make(0, upto), f"{upto:040X}", AT, {"s.t": {"rows": rows}, "s.low": {"rows": 1}})
        ledger.write_stored(made.control_path("stored"), one, {"s.t": 7, "s.low": 8})
    return made


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as locks:
        yield locks


def apply(task: Task, upto: int, *, record: bool) -> None:
    path = task.target_path("s.t")
    version = lake.append(path, pa.table({"id": [upto]}), progress={task.apply_app: upto})
    if record:
        done = AppliedTable("s.t", version or 0, 1, 0, 0, 0, "append", 0.1)
        at = next(b for b in ledger.read_stored(task.control_path("stored")) if b.upto == upto)
        ledger.write_applied(task.control_path("applied"), at, [done], "tailrace/applied")


def of(found: Status, table: str = "s.t") -> tuple[str, int]:
    return next((t.state, t.behind) for t in found.tables if t.table == table)


def words(found: Status, width: int = 500) -> str:
    there = Console(file=io.StringIO(), width=width)
    there.print(screen.status(found))
    assert isinstance(there.file, io.StringIO)
    return there.file.getvalue()


def test_what_a_baseline_has_is_not_behind(task: Task) -> None:
    assert of(status(task))[1] == 3 + 7


def test_the_age_of_the_oldest_change_that_waits(task: Task) -> None:
    def age() -> dt.timedelta:
        found = next(t for t in status(task).tables if t.table == "s.t")
        return dt.timedelta(seconds=found.seconds_behind)

    for upto, days in ((11, 1), (12, 2)):
        at = AT + dt.timedelta(days=days)
        one = Stored(upto, make(0, upto), f"{upto:040X}", at, {"s.t": {"rows": 1}})
        ledger.write_stored(task.control_path("stored"), one, {"s.t": 7})
    began = dt.datetime.now(dt.timezone.utc)
    assert age() >= began - AT
    apply(task, 9, record=True)
    assert began - AT - dt.timedelta(days=1) <= age() < began - AT
    rolling.fold(task.control_path("stored"), declarations.STORED)
    assert began - AT - dt.timedelta(days=1) <= age() < began - AT
    apply(task, 12, record=True)
    assert age() == dt.timedelta(0)


def test_a_target_that_went_on_without_a_record_is_not_behind(task: Task) -> None:
    apply(task, 5, record=True)
    assert of(status(task))[1] == 7
    apply(task, 9, record=False)
    assert of(status(task))[1] == 0
    assert status_row(task)["pending_changes"] == 0


def test_a_table_that_is_tracked_only_waits_for_nothing(task: Task) -> None:
    assert of(status(task), "s.low") == ("tracked only", 0)


def test_a_table_is_running_only_while_both_processes_are(task: Task, held: ExitStack) -> None:
    assert of(status(task))[0] == "stopped"
    assert "capture never ran; lag unknown\npipeline never ran; 10 rows wait to be" in words(status(task))
    held.enter_context(live.lock(task.run_path, "capture"))
    json_files.write(
        task.run_path, "capture", {"state": "running", "lag_bytes": 0, "lag_seconds": 0.0, "rate": 2.0}
    )
    assert of(status(task))[0] == "not applied"
    held.enter_context(live.lock(task.run_path, "pipeline"))
    json_files.write(task.run_path, "pipeline", {"state": "running"})
    assert of(status(task))[0] == "running"
    said = words(status(task))
    assert "capture running: 2 records/s, lag 0 bytes, 0 s\n" in said
    assert "pipeline running; 10 rows wait to be applied\n" in said


def test_what_ended_a_task_is_why_its_tables_stand(task: Task) -> None:
    why = "s.t: the table was dropped at the source, and its policy is `stop`"

    def ends(error: str | None, name: str = "capture") -> tuple[str, str | None]:
        json_files.write(task.run_path, name, {"state": "stopped", "ended": error})
        found = next(t for t in status(task).tables if t.table == "s.t")
        return found.state, found.why

    assert ends(None) == ("stopped", None)
    assert ends(why) == ("stopped", why)
    assert any(why in line and "normally" not in line for line in screen._processes(status(task)))
    assert ends("target: it is full", "pipeline") == ("stopped", "target: it is full")
    assert ends(None, "pipeline") == ("stopped", why)
    assert ends(None) == ("stopped", None)


@pytest.mark.parametrize(
    "error", [TailraceError("no slot", where="db", hint="make one"), OSError("db: no slot")]
)
def test_an_error_is_told_before_a_half_ends(error: Exception) -> None:
    told = list[str]()
    with pytest.raises(type(error)), live.ending(told.append):
        raise error
    assert told == ["db: no slot"]


def test_the_lag_is_unknown_while_nobody_captures(task: Task, held: ExitStack) -> None:
    with live.lock(task.run_path, "capture"):
        json_files.write(task.run_path, "capture", {"state": "running", "lag_bytes": 0, "lag_seconds": 0.0})
    held.enter_context(live.lock(task.run_path, "pipeline"))
    json_files.write(task.run_path, "pipeline", {"state": "running"})
    found = status(task)
    assert found.capture is not None
    assert of(found)[0] == "not captured"
    assert (found.capture["running"], found.capture["lag_bytes"], found.capture["lag_seconds"]) == (
        False, None, None,
    )  # fmt: skip
    since = f"{found.capture['at'][:19].replace('T', ' ')} UTC"
    said = f"capture has not run since {since}: it did not end normally; lag unknown\npipeline running"
    assert said in words(found)
    assert status_row(task)["source_current_timestamp"] is None


def test_what_an_earlier_process_has_said_is_over(task: Task, held: ExitStack) -> None:
    """Of a capture that hangs, the lag is not known; of one that does not run, no baseline is read."""
    reading = {"baselines": {"s.t": {"state": "running", "parts": 8, "parts_done": 3}}}
    said = {"state": "running", "lag_bytes": 0, "lag_seconds": 0.0, **reading}
    json_files.write(task.run_path, "capture", said)
    commands.resync(task.commands_path, "s.t", "")
    assert of(status(task))[0] == "waits for a new baseline"
    held.enter_context(live.lock(task.run_path, "capture"))
    found = status(task)
    assert of(found)[0] == "baseline 3/8" and found.capture and found.capture["lag_bytes"] == 0
    path = Path(task.run_path) / "capture.json"
    old = (dt.datetime.now(dt.timezone.utc) - dt.timedelta(minutes=2)).isoformat()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"at": old}))
    hangs = status(task).capture
    assert hangs is not None and hangs["running"] and hangs["lag_bytes"] is None


def test_a_table_that_was_removed_waits_for_nothing(task: Task) -> None:
    assert of(status(task))[1] == 10
    commands.give(task.commands_path, commands.REMOVE, ["s.t"], why="", who="me")
    (mine,) = (t for t in status(task).tables if t.table == "s.t")
    assert (mine.state, mine.behind, mine.seconds_behind) == ("removed", 0, 0.0)


def test_a_source_that_cannot_be_reached_is_said_with_its_reason(task: Task, held: ExitStack) -> None:
    for name in ("capture", "pipeline"):
        held.enter_context(live.lock(task.run_path, name))
    json_files.write(task.run_path, "pipeline", {"state": "running"})
    lost = CaptureState()
    lost.lost("no route")
    lost.lost("connection refused\n  hint: check the host and port of the address")
    lost.tell(task.run_path)
    found = status(task)
    assert found.capture is not None
    assert of(found)[0] == "source unreachable" and found.capture["lag_seconds"] is None
    assert found.capture["unreachable_since"] == lost.since
    since = f"{str(lost.since)[:19].replace('T', ' ')} UTC"
    said = f"capture reconnecting: the source is unreachable since {since} (2 attempts); lag unknown; "
    assert f"{said}connection refused\n" in words(found)


def test_the_transactions_for_which_capture_waits_are_said(task: Task) -> None:
    there = "process 7 (shop, psql), since 2026-03-01 10:00:00+00"
    with live.lock(task.run_path, "capture"):
        for state, waiting in (("starting", "the stream"), ("running", "the baseline")):
            CaptureState(state, waits=there).tell(task.run_path)
            assert (status(task).capture or {})["waits"] == there
            assert f"{waiting} waits for open transactions: {there}\n" in words(status(task))
    assert (status(task).capture or {})["waits"] is None  # it was killed


def test_a_target_that_cannot_be_reached_is_said_with_its_reason(task: Task, held: ExitStack) -> None:
    for name in ("capture", "pipeline"):
        held.enter_context(live.lock(task.run_path, name))
    CaptureState("running").tell(task.run_path)
    lost = {"state": "reconnecting", "since": ago(minutes=1), "attempts": 4, "message": "refused\n  more"}
    json_files.write(task.run_path, "pipeline", lost)
    found = status(task)
    assert of(found)[0] == "target unreachable"
    said = "pipeline reconnecting: the target is unreachable since 2026-"
    assert said in words(found) and "(4 attempts); 10 rows wait to be applied; refused\n" in words(found)
    CaptureState("running", baselines={"s.t": {"state": "target unreachable"}}).tell(task.run_path)
    json_files.write(task.run_path, "pipeline", {"state": "running"})
    commands.resync(task.commands_path, "s.t", "")
    assert of(status(task))[0] == "target unreachable"


def test_what_a_source_keeps_is_said_when_it_is_much_or_near_its_end(task: Task, held: ExitStack) -> None:
    held.enter_context(live.lock(task.run_path, "capture"))
    for kept, left, expected in ((1 << 20, None, False), (3 << 30, None, True), (60 << 20, 40 << 20, True)):
        state = CaptureState("running", retained_bytes=kept, left_bytes=left)
        state.tell(task.run_path)
        assert ("of log for this task" in words(status(task))) == expected
    said = "the source keeps 60.0 MiB of log for this task, and will discard it after 40.0 MiB more"
    assert said in words(status(task))


def test_flagged_rows_and_columns_of_unknown_identity(task: Task) -> None:
    flags = {"subscription_id": "s.t", "group_id": "shop", "flagged_count": 3}
    control_tables.put(task.keylog_path, "ir_subscription", [flags])
    told = replace(RELATION, columns=(*RELATION.columns, Column("note", -7, "text", "text", "string")))
    log.record_layouts(task.relations_path, [log.Layout(told, bytes(20), make(0, 3))])
    found = next(t for t in status(task).tables if t.table == "s.t")
    assert (found.flagged, found.unknown_columns) == (3, [])  # the baseline was read after the layout came
    log.record_layouts(task.relations_path, [log.Layout(told, bytes(20), make(0, 4))])
    found = next(t for t in status(task).tables if t.table == "s.t")
    assert found.unknown_columns == ["note"]
    assert "s.t: the identity of columns note is not proved" in words(status(task))
    (warning,) = identity_findings(task, ["s.t"], read_baselines(task.control_path("baselines")))
    assert (warning.level, warning.where) == ("warning", "s.t") and "resync" in warning.cure


@pytest.mark.parametrize("width", [80, 40])
def test_nothing_is_cut_on_a_narrow_terminal(task: Task, width: int) -> None:
    said = words(status(task), width)
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said and "tracked only" in said and "s.low" in said


def behind(**more: Any) -> Status:
    there = {"running": True, "state": "running", "since": None, "lag_seconds": 0.0}
    given = {"capture": there, "pipeline": there, "tables": [], **more}
    return Status("shop", captured=9, stored=9, applied=9, position=None, **given)


def ago(**span: float) -> str:
    return (AT - dt.timedelta(**span)).isoformat()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, []),
        ({"tables": [TableStatus("s.t", "running", seconds_behind=299)]}, []),
        ({"tables": [TableStatus("s.t", "paused", seconds_behind=301)]}, ["s.t is 5 min behind (paused)"]),
        ({"tables": [TableStatus("s.t", "removed", seconds_behind=900)]}, []),
        ({"capture": None}, ["capture never ran"]),
        ({"pipeline": {"running": False, "since": ago(minutes=6)}}, ["pipeline has not run for 6 min"]),
        ({"pipeline": {"running": False, "since": ago(minutes=4)}}, []),
        (
            {"capture": {"running": True, "state": "reconnecting", "unreachable_since": ago(hours=3)}},
            ["capture has not reached the source for 3 h"],
        ),
        (
            {"pipeline": {"running": True, "state": "reconnecting", "unreachable_since": ago(hours=2)}},
            ["pipeline has not reached the target for 2 h"],
        ),
        ({"capture": {"running": True, "lag_seconds": 400.0}}, ["capture is 6 min behind the source"]),
        ({"capture": {"running": True, "at": ago(minutes=4)}}, []),
        ({"capture": {"running": True, "at": ago(minutes=6)}}, ["capture has reported nothing for 6 min"]),
        ({"pipeline": {"running": True, "at": ago(minutes=6)}}, []),  # its tables tell
        ({"seconds_unstored": 301.0}, ["captured changes have waited 5 min for the store"]),
    ],
)
def test_what_is_too_far_behind(more: dict[str, Any], said: list[str]) -> None:
    assert late(behind(**more), 300.0, AT) == said


@pytest.mark.parametrize(
    ("capture", "is_late"),
    [
        ({"at": ago(seconds=1.9)}, False), ({"at": ago(seconds=3.1)}, True),
        ({"lag_seconds": 1.9}, False), ({"lag_seconds": 3.1}, True),
    ],
)  # fmt: skip
def test_a_capture_that_reports_each_second_is_not_behind_between_two_reports(
    capture: dict[str, Any], is_late: bool
) -> None:
    assert bool(late(behind(capture={"running": True, "state": "running", **capture}), 1.0, AT)) == is_late


def test_what_is_captured_and_not_stored_waits_since_its_commit(task: Task) -> None:
    assert status(task).seconds_unstored == 0.0
    (three,) = (pa.table({"RECID": [7]}),)
    words = {f"tailrace/position/{n}": 1 for n in range(3)}
    for number in (9, 12):
        lake.append(task.log_path, three, progress={**words, "tailrace/number": number, "tailrace/time": 1})
    assert 0.0 < status(task).seconds_unstored < 600.0


def test_commits_of_log_that_had_no_change_have_not_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new.yaml").write_text(TASK)
    task, looked = load(tmp_path / "new.yaml"), []
    words = {f"tailrace/position/{n}": 1 for n in range(3)}
    for number in (0, 0, 5):
        progress = {**words, "tailrace/number": number, "tailrace/time": 1}
        lake.append(task.log_path, pa.table({"RECID": [7]}), progress=progress)
    monkeypatch.setattr(log_retention, "committed_at", lambda path, version: looked.append(version) or AT)
    assert status(task).seconds_unstored > 0.0 and looked == [2]


def test_a_monitor_gets_code_3_with_the_reasons(task: Task) -> None:
    file = str(Path(task.folder) / "shop.yaml")
    done = CliRunner().invoke(app, ["status", file, "--max-lag", "5m", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["late"][0]) == (3, "capture never ran")
    assert CliRunner().invoke(app, ["status", file]).exit_code == 0
    assert CliRunner().invoke(app, ["status", file, "--max-lag", "soon"]).exit_code == 2


def test_before_the_first_run_nothing_is_captured_stored_or_applied(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(TASK)
    text, as_json = (
        CliRunner().invoke(app, ["status", str(tmp_path / "shop.yaml"), *words]).stdout
        for words in ([], ["--json"])
    )
    assert "captured 0, stored 0, applied 0 (change numbers)" in text
    found = json.loads(as_json)
    assert (found["captured"], found["stored"], found["applied"]) == (None, None, None)
