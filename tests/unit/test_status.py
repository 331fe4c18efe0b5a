"""`status` says what is, not what somebody last wrote down."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace import lake, screen
from tailrace.change import Column, Relation
from tailrace.control import ledger, live, rolling
from tailrace.control.ledger import AppliedTable, Baseline, Stored
from tailrace.control.task import Task, load
from tailrace.sequence import make
from tailrace.status import Status, status
from tailrace.status_views import status_row

pytestmark = pytest.mark.unit
AT = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)
RELATION = Relation(7, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
TASK = "name: shop\nhome: home\nsource: {url: 'postgresql://db/shop'}\npolicies: {s.low: 1}\n"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "shop.yaml").write_text(TASK)
    made = load(tmp_path / "shop.yaml")
    taken = Baseline("s.t", RELATION, "0" * 40, 100, 0, AT, 2.0, after=3)
    ledger.write_baseline(made.control_path("baselines"), taken)
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


def words(found: Status) -> str:
    return str(screen.table(found).caption)


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
    rolling.fold(task.control_path("stored"), ledger.STORED)
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
    assert words(status(task)) == "capture never ran; pipeline never ran; lag unknown"
    held.enter_context(live.lock(task.run_path, "capture"))
    live.write(
        task.run_path, "capture", {"state": "running", "lag_bytes": 0, "lag_seconds": 0.0, "rate": 2.0}
    )
    assert of(status(task))[0] == "not applied"
    held.enter_context(live.lock(task.run_path, "pipeline"))
    live.write(task.run_path, "pipeline", {"state": "running"})
    assert of(status(task))[0] == "running"
    assert words(status(task)) == "capture running; pipeline running; 2 records/s, lag 0 bytes, 0.0 s"


def test_the_lag_is_unknown_while_nobody_captures(task: Task, held: ExitStack) -> None:
    with live.lock(task.run_path, "capture"):
        live.write(task.run_path, "capture", {"state": "running", "lag_bytes": 0, "lag_seconds": 0.0})
    held.enter_context(live.lock(task.run_path, "pipeline"))
    live.write(task.run_path, "pipeline", {"state": "running"})
    found = status(task)
    assert found.capture is not None
    assert of(found)[0] == "not captured"
    assert (found.capture["running"], found.capture["lag_bytes"], found.capture["lag_seconds"]) == (
        False, None, None,
    )  # fmt: skip
    since = found.capture["at"]
    assert words(found) == (
        f"capture is not running since {since}: it did not end by itself; pipeline running; lag unknown"
    )
    assert status_row(task)["source_current_timestamp"] is None


def test_a_source_that_cannot_be_reached_is_said_with_its_reason(task: Task, held: ExitStack) -> None:
    for name in ("capture", "pipeline"):
        held.enter_context(live.lock(task.run_path, name))
    live.write(task.run_path, "pipeline", {"state": "running"})
    last = {"state": "reconnecting", "message": "connection refused", "lag_bytes": 0, "lag_seconds": 0.0}
    live.write(task.run_path, "capture", last)
    found = status(task)
    assert found.capture is not None
    assert of(found)[0] == "source unreachable" and found.capture["lag_seconds"] is None
    assert words(found) == (
        f"capture: the source is unreachable (last tried at {found.capture['at']}); pipeline running; lag unknown; "
        "connection refused"
    )
    live.write(task.run_path, "capture", last | {"unreachable_since": "9 o'clock"})
    assert words(status(task)).startswith("capture: the source is unreachable since 9 o'clock; ")
