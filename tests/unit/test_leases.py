"""One process has a half of a task, whichever host it is on; one that slept does nothing more."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tailrace.cli import main as cli
from tailrace.cli import screen
from tailrace.config.task import load
from tailrace.errors import ConfigError, LeaseLostError, StorageFullError
from tailrace.lake import delta as lake
from tailrace.lake import guards
from tailrace.lake.objects import Objects
from tailrace.operate.status import process, status
from tailrace.state import lease_files, leases, live
from tailrace.state.capture_state import CaptureState
from tailrace.state.lease_files import Holder, newest

from ..object_store import Store, object_store
from ..processes import copies

pytestmark = pytest.mark.unit

PERIOD = 1.0
LONG = 300.0
"""The period where nobody is to wait for its end."""
ROW = pa.table({"n": pa.array([1], pa.int64())})


def host(name: str) -> None:
    """From here on this process is on another host: of that name, of a kernel of its own, with locks that the
    operating systems of others do not see."""
    leases.PERIOD_S = PERIOD  # type: ignore[attr-defined]
    lease_files.kernel = leases.kernel = lambda: f"kernel of {name}"  # type: ignore[attr-defined,assignment]
    leases.platform.node = lambda: name  # type: ignore[attr-defined]
    live._take = lambda file: None


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The same for the test's own process, until the test ends."""

    def move(name: str) -> None:
        monkeypatch.setattr(leases, "PERIOD_S", PERIOD)
        for module in (leases, lease_files):
            monkeypatch.setattr(module, "kernel", lambda: f"kernel of {name}")
        monkeypatch.setattr(leases.platform, "node", lambda: name)  # type: ignore[attr-defined]
        monkeypatch.setattr(live, "_take", lambda file: None)
        monkeypatch.setattr(leases, "_watched", {})

    return move


def _hold(folder: str, where: str | None, env: dict[str, str], ready: Event, go: Event, told: Any) -> None:
    os.environ |= env
    if where:
        host(where)
    with live.lock(folder, "pipeline") as lease:
        ready.set()
        go.wait(60)
        try:
            lake.append(f"{folder}/table", ROW)
            told.put("committed")
        except LeaseLostError as error:
            told.put(str(error))
        told.put(lease.term)


class Other:
    """Another process, which has the half `pipeline` of a task."""

    def __init__(self, folder: str, where: str | None = None) -> None:
        self.go, self.told = copies.Event(), copies.Queue()
        ready = copies.Event()
        keys = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        self.process = copies.Process(target=_hold, args=(folder, where, keys, ready, self.go, self.told))
        self.process.start()
        assert ready.wait(60)

    def signal(self, number: int) -> None:
        assert self.process.pid
        os.kill(self.process.pid, number)

    def end(self) -> str:
        """Lets it commit, and end; gives what became of that."""
        self.go.set()
        found = str(self.told.get(timeout=30))
        self.process.join(30)
        return found


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with object_store(f"leases-{uuid.uuid4().hex[:8]}") as there:  # another test may know the bucket `lake`
        yield there


@pytest.fixture(params=["local", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder that processes of several hosts share: a local one, or one in a bucket."""
    if request.param == "local":
        yield str(tmp_path)
        return
    there = request.getfixturevalue("store")
    for name, value in there.environment.items():
        monkeypatch.setenv(name, value)
    yield f"s3://{there.bucket}/{uuid.uuid4().hex}"


@pytest.fixture
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Other]]:
    made: list[Other] = []
    shared = request.getfixturevalue("folder") if "folder" in request.fixturenames else str(tmp_path)

    def make(where: str | None = None) -> Other:
        made.append(Other(shared, where))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.join()


def test_after_a_kill_on_this_machine_the_next_one_has_it_at_once(
    folder: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = other()
    with pytest.raises(ConfigError, match=f"as process {first.process.pid} on .*, since 20"):
        live.refuse(folder, "pipeline")
    first.signal(signal.SIGKILL)
    first.process.join()
    monkeypatch.setattr(leases, "PERIOD_S", LONG)
    began = time.monotonic()
    assert not live.locked(folder, "pipeline")
    live.refuse(folder, "pipeline")
    with live.lock(folder, "pipeline") as lease:
        assert lease.term == 2 and time.monotonic() - began < LONG


def test_a_second_process_says_who_has_the_task_before_it_starts_a_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shop.yaml"
    source = "{url: 'postgresql://me@127.0.0.1:1/shop', tables: ['s.*']}"
    file.write_text(f"name: shop\nhome: home\nsource: {source}\ntarget: {{path: lake}}\n")
    first = Other(load(file).run_path)
    try:
        monkeypatch.setattr(
            "tailrace.runtime.session.session", lambda *a, **k: pytest.fail("a JVM is started")
        )
        monkeypatch.setattr(
            "tailrace.runtime.processes.CaptureChild.start", lambda self: pytest.fail("capture is started")
        )
        for command in ("pipeline", "run"):
            done = CliRunner().invoke(cli.app, [command, str(file)])
            assert isinstance(done.exception, ConfigError), done.output
            assert f"already running, as process {first.process.pid} on " in done.exception.what
    finally:
        first.process.kill()
        first.process.join()


def test_one_that_lives_on_another_host_is_named(
    folder: str, other: Any, on_host: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = other("east")
    on_host("west")
    assert live.locked(folder, "pipeline") and not live.locked(folder, "capture")
    for take in (live.refuse, lambda *a: live.lock(*a).__enter__()):
        with pytest.raises(ConfigError, match=f"as process {first.process.pid} on east, since 20"):
            take(folder, "pipeline")
    assert first.end() == "committed"
    assert not live.locked(folder, "pipeline", sure=True)  # it gave it back: nobody waits
    monkeypatch.setattr(leases, "PERIOD_S", LONG)
    began = time.monotonic()
    with live.lock(folder, "pipeline", patient=False) as lease:
        assert lease.term == 2 and time.monotonic() - began < LONG


def test_one_that_was_killed_on_another_host_is_waited_for_a_period(
    folder: str, other: Any, on_host: Callable[[str], None]
) -> None:
    other("east").signal(signal.SIGKILL)
    on_host("west")
    with pytest.raises(ConfigError, match="on east"), live.lock(folder, "pipeline", patient=False):
        pass
    leases._watched.clear()
    began = time.monotonic()
    live.refuse(folder, "pipeline")
    assert time.monotonic() - began >= PERIOD
    with live.lock(folder, "pipeline") as lease:
        assert lease.term == 2
    assert not live.locked(folder, "pipeline")


@pytest.mark.parametrize("set_back", [-86_400, 86_400])
def test_nobody_trusts_a_clock_that_can_be_set(
    tmp_path: Path, on_host: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, set_back: int
) -> None:
    on_host("east")
    time_now = time.time
    with live.lock(tmp_path, "pipeline") as lease:
        on_host("west")  # who asks is elsewhere
        monkeypatch.setattr(time, "time", lambda: time_now() + set_back)
        file = tmp_path / "pipeline.lease.1"
        os.utime(file, (time_now() + set_back, time_now() + set_back))
        assert leases.alive(tmp_path, "pipeline", wait=True)
        time.sleep(1.5 * PERIOD)  # renewed meanwhile
        guards.check()
        assert lease.term == 1 and live.locked(tmp_path, "pipeline", sure=True)


def test_a_process_that_slept_commits_nothing_once_another_has_taken_over(
    folder: str, other: Any, on_host: Callable[[str], None]
) -> None:
    first = other("east")
    first.signal(signal.SIGSTOP)
    on_host("west")
    with live.lock(folder, "pipeline"):
        lake.append(f"{folder}/table", ROW)
        first.signal(signal.SIGCONT)
        assert first.end().startswith(
            f"pipeline of this task has been taken over by process {os.getpid()} on west"
        )
        guards.check()
    assert lake.read(f"{folder}/table").num_rows == 1
    assert newest(folder, "pipeline").released  # type: ignore[union-attr]


def test_a_process_that_slept_goes_on_when_nobody_took_over(folder: str, other: Any) -> None:
    first = other("east")
    first.signal(signal.SIGSTOP)
    time.sleep(1.5 * PERIOD)
    first.signal(signal.SIGCONT)
    assert first.end() == "committed"
    assert first.told.get(timeout=30) == 2  # it took its own lease again


def test_a_commit_that_was_allowed_before_the_takeover_does_not_land_on_what_came_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps between the question and the commit."""
    table = str(tmp_path / "table")
    lake.append(table, ROW)
    asked: list[int] = []

    def sleeps() -> None:
        asked.append(1)
        if len(asked) > 2:
            raise LeaseLostError("taken over")
        if len(asked) == 2:  # the first is asked before the table is looked at
            monkeypatch.setattr(guards, "now", lambda: ())
            lake.append(table, ROW, progress={"other": 1})
            monkeypatch.setattr(guards, "now", lambda: (sleeps,))

    monkeypatch.setattr(guards, "now", lambda: (sleeps,))
    with pytest.raises(LeaseLostError):
        lake.append(table, ROW, progress={"mine": 1})
    assert lake.read(table).num_rows == 2 and lake.progress(table, "mine") is None


def test_of_many_that_want_it_at_once_one_gets_it(folder: str, on_host: Callable[[str], None]) -> None:
    on_host("east")
    mine = [Holder(1, "east", "kernel", n, str(n)) for n in range(8)]
    assert [lease_files.make(folder, "capture", one) for one in mine] == [True] + [False] * 7
    assert newest(folder, "capture").pid == 0  # type: ignore[union-attr]
    for term in range(2, 100):
        assert lease_files.make(folder, "capture", Holder(term))
    assert len(Objects(folder).names()) == 32
    # The file of term 1 is gone; who makes it once more has nothing.
    assert not lease_files.make(folder, "capture", Holder(1))
    assert len(Objects(folder).names()) == 32


def test_a_lease_that_is_being_made_belongs_to_somebody(tmp_path: Path) -> None:
    (tmp_path / "capture.lease.3").touch()
    found = newest(str(tmp_path), "capture")
    assert found is not None and (found.term, found.released, found.here) == (3, False, False)
    assert live.locked(tmp_path, "capture")


def test_a_lease_is_renewed_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Holder(1, "east", "kernel", 7, "id")
    assert lease_files.make(str(tmp_path), "capture", mine)
    file = tmp_path / "capture.lease.1"
    os.utime(file, (0, 0))

    def full(*_: object) -> None:
        raise StorageFullError("no space left on the device")

    monkeypatch.setattr(Objects, "write", full)
    lease_files.write(str(tmp_path), "capture", mine)
    assert file.stat().st_mtime > 0 and json.loads(file.read_text())["pid"] == 7


def test_status_says_since_when_a_process_on_another_host_was_not_heard_of(
    tmp_path: Path, on_host: Callable[[str], None]
) -> None:
    (tmp_path / "t.yaml").write_text("name: t\nsource: {url: 'postgresql://db/shop'}\n")
    task = load(tmp_path / "t.yaml")
    folder = Path(task.run_path)
    folder.mkdir(parents=True)
    CaptureState("running").tell(task.run_path)
    assert lease_files.make(folder, "capture", Holder(1, "east", "kernel of east", 7, "id"))
    on_host("west")
    assert "unheard_since" not in (process(task, "capture") or {})
    then = time.time() - 60  # it was killed: its lease ran out, and is not too old yet
    os.utime(folder / lease_files.file_of("capture", 1), (then, then))
    said = process(task, "capture")
    assert said is not None and said["running"]
    assert abs(datetime.fromisoformat(said["unheard_since"]).timestamp() - then) < 5
    assert "without a report since" in "\n".join(
        screen.reasons(status(task)) + screen._processes(status(task))
    )
