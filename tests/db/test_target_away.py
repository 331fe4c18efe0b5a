"""A target database that goes away for a while: the pipeline waits for it, and says so."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import TargetLostError
from tailrace.execution import BackgroundSession
from tailrace.lake import json_files
from tailrace.model.change import Relation
from tailrace.operate.checks import before_run, check
from tailrace.operate.status import status
from tailrace.runtime.pipeline import Pipeline
from tailrace.sources.postgresql.embedded_server import free_port
from tailrace.state import capture_state, commands
from tailrace.state.baselines import read_baselines
from tailrace.targets.postgresql import connection
from tailrace.targets.postgresql.load import PostgresLanding

from .conftest import OwnServer
from .test_running import meanwhile, wait_for

pytestmark = pytest.mark.db


def never() -> None:
    raise AssertionError("Spark was asked for")


def shop(folder: Path, source: str, target: str, more: str = "") -> Task:
    """A task into a database."""
    file = folder / "shop.yaml"
    file.write_text(
        f"name: shop\nsource: {{url: '{source}', tables: ['public.*']}}\ntarget: '{target}?schema=copies'\n{more}"
    )
    return load(file)


@pytest.mark.slow
def test_a_target_that_comes_back_gets_its_changes(
    tmp_path: Path,
    database: str,
    db: psycopg.Connection,
    own_server: OwnServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table in a group that suspends after two errors, and one in none, with a key log."""
    monkeypatch.setattr(capture_state, "RETRY_S", (0.1, 0.2))
    db.execute("create table t (id int primary key); create table u (id int primary key)")
    with own_server() as server:
        more = "keylog: {mode: all}\nfreshness: 100ms\ngroups: {some: {tables: [public.t], retries: 2}}\n"
        task, stop = shop(tmp_path, database, server.tcp_url(), more), threading.Event()
        Capture(task, once=True).run()
        db.execute("insert into t values (1); insert into u values (1)")
        Capture(task, once=True).run()
        made = Pipeline(task, BackgroundSession(never).as_session, stop=stop)  # type: ignore[arg-type]

        def told() -> dict[str, Any]:
            return json_files.read(task.run_path, "pipeline") or {}

        def rows() -> list[Any]:
            with psycopg.connect(server.tcp_url()) as target:
                found = "select 't', id from copies.t union all select 'u', id from copies.u order by 1, 2"
                return target.execute(found).fetchall()

        with meanwhile(made.run, stop=stop):
            wait_for(lambda: told().get("state") == "running" and rows() == [("t", 1), ("u", 1)], 30)
            server.stop()
            db.execute("insert into t values (2); insert into u values (2); delete from t where id = 1")
            Capture(task, once=True).run()
            wait_for(lambda: told().get("attempts", 0) >= 3, 30)
            assert told()["state"] == "reconnecting" and "refused" in told()["message"]
            assert status(task).pipeline["unreachable_since"] == told()["since"]  # type: ignore[index]
            server.start()
            wait_for(lambda: told().get("state") == "running", 30)
            wait_for(lambda: rows() == [("t", 2), ("u", 1), ("u", 2)], 30)
        assert [(t.state, t.behind, t.errors) for t in status(task).tables] == [("stopped", 0, 0)] * 2


@pytest.mark.slow
def test_a_baseline_waits_for_a_target_that_comes_back(
    tmp_path: Path,
    database: str,
    db: psycopg.Connection,
    own_server: OwnServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Capture goes on meanwhile."""
    monkeypatch.setattr(capture_state, "RETRY_S", (0.1, 0.2))
    db.execute("create table t (id int primary key); insert into t values (1)")
    with own_server() as server:
        task, stop = shop(tmp_path, database, server.tcp_url()), threading.Event()
        Capture(task, once=True).run()
        server.stop()
        db.execute("update t set id = 2")
        commands.resync(task.commands_path, "public.t", "")

        def told() -> dict[str, Any]:
            return json_files.read(task.run_path, "capture") or {}

        with meanwhile(Capture(task, stop=stop).run, stop=stop):
            wait_for(lambda: [t.state for t in status(task).tables] == ["target unreachable"], 30)
            db.execute("update t set id = 3")
            wait_for(lambda: told().get("records", 0) >= 3 and told()["state"] == "running", 30)
            server.start()
            wait_for(lambda: read_baselines(task.control_path("baselines"))["public.t"].number > 1, 30)
        with psycopg.connect(server.tcp_url()) as target:
            assert target.execute("select id from copies.t").fetchall() == [(3,)]


@pytest.mark.slow
def test_a_target_that_only_baselines_have_reached_is_waited_for(
    tmp_path: Path, database: str, db: psycopg.Connection, own_server: OwnServer
) -> None:
    db.execute("create table t (id int primary key); insert into t values (1)")
    with own_server() as server:
        task, stop = shop(tmp_path, database, server.tcp_url()), threading.Event()
        Capture(task, once=True).run()
        server.stop()
        assert [one.level for one in check(task, never) if one.level != "note"] == ["warning"]
        before_run(task, never)
        db.execute("insert into t values (2)")
        Capture(task, once=True).run()
        made = Pipeline(task, BackgroundSession(never).as_session, stop=stop)  # type: ignore[arg-type]
        with meanwhile(made.run, stop=stop):
            for state, then in (("reconnecting", server.start), ("running", stop.set)):
                wait_for(lambda: (json_files.read(task.run_path, "pipeline") or {}).get("state") == state, 30)  # noqa: B023
                then()
        Pipeline(task, BackgroundSession(never).as_session).drain()  # type: ignore[arg-type]
        with psycopg.connect(server.tcp_url()) as target:
            assert target.execute("select id from copies.t order by 1").fetchall() == [(1,), (2,)]


def test_a_target_that_was_never_there_is_an_error(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create table t (id int primary key)")
    nowhere = f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"
    task = shop(tmp_path, database, nowhere, "baseline: {enabled: false}\n")
    Capture(task, once=True).run()
    db.execute("insert into t values (1)")
    Capture(task, once=True).run()
    with pytest.raises(TargetLostError, match="the target does not answer") as caught:
        Pipeline(task, BackgroundSession(never).as_session).run()  # type: ignore[arg-type]
    assert "`target.database`" in str(caught.value.hint)


@pytest.mark.slow
def test_a_target_that_goes_away_after_the_first_baseline_is_waited_for(
    tmp_path: Path,
    database: str,
    db: psycopg.Connection,
    own_server: OwnServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pipeline began before there was a baseline, and has applied nothing; as in a first `run`."""
    monkeypatch.setattr(connection, "_answered", set())
    monkeypatch.setattr(capture_state, "RETRY_S", (0.1, 0.2))
    db.execute("create table t (id int primary key); insert into t values (1)")
    with own_server() as server:
        task, stop = shop(tmp_path, database, server.tcp_url()), threading.Event()
        made = Pipeline(task, BackgroundSession(never).as_session, stop=stop)  # type: ignore[arg-type]

        def told(state: str) -> bool:
            return (json_files.read(task.run_path, "pipeline") or {}).get("state") == state

        with meanwhile(made.run, stop=stop):
            wait_for(lambda: told("running"), 30)
            Capture(task, once=True).run()
            server.stop()
            connection._answered.clear()  # capture is another process
            db.execute("insert into t values (2)")
            Capture(task, once=True).run()
            wait_for(lambda: told("reconnecting"), 30)
            server.start()
            wait_for(lambda: told("running") and status(task).tables[0].behind == 0, 30)
        with psycopg.connect(server.tcp_url()) as target:
            assert target.execute("select id from copies.t order by 1").fetchall() == [(1,), (2,)]


def test_a_target_that_goes_away_during_the_first_baseline_is_waited_for(
    tmp_path: Path,
    database: str,
    db: psycopg.Connection,
    own_server: OwnServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capture_state, "RETRY_S", (0.1, 0.2))
    db.execute("create table t (id int primary key); insert into t values (1)")
    with own_server() as server:
        task, stop = shop(tmp_path, database, server.tcp_url()), threading.Event()
        begin, begun = PostgresLanding.begin, list[int]()

        def begin_and_stop(self: PostgresLanding, relation: Relation, number: int) -> PostgresLanding:
            done = begin(self, relation, number)
            if not begun:
                begun.append(1)
                server.stop()
            return done

        monkeypatch.setattr(PostgresLanding, "begin", begin_and_stop)
        pipeline = Pipeline(task, BackgroundSession(never).as_session, stop=stop)  # type: ignore[arg-type]
        with meanwhile(Capture(task, stop=stop).run, stop=stop), meanwhile(pipeline.run, stop=stop):
            wait_for(lambda: [t.state for t in status(task).tables] == ["target unreachable"], 30)
            db.execute("insert into t values (2)")
            server.start()
            wait_for(lambda: "public.t" in read_baselines(task.control_path("baselines")), 30)
            wait_for(lambda: status(task).tables[0].behind == 0, 30)
        with psycopg.connect(server.tcp_url()) as target:
            assert target.execute("select id from copies.t order by 1").fetchall() == [(1,), (2,)]


@pytest.mark.slow
def test_what_a_target_has_outlives_its_crash(
    tmp_path: Path, database: str, db: psycopg.Connection, own_server: OwnServer
) -> None:
    """The server is set to say that a commit is there before it is on its disk: the pipeline, which is not told
    of a crash between two batches, would go on behind changes that are gone."""
    db.execute("create table t (id int primary key)")
    with own_server(settings={"synchronous_commit": "off", "wal_writer_delay": "10s"}) as server:
        task = shop(tmp_path, database, server.tcp_url())
        Capture(task, once=True).run()
        made = Pipeline(task, BackgroundSession(never).as_session)  # type: ignore[arg-type]
        for number in (1, 2, 3):
            db.execute("insert into t values (%s)", (number,))
            Capture(task, once=True).run()
            made.drain()
            server.stop("immediate")
            server.start()
        with psycopg.connect(server.tcp_url()) as target:
            assert target.execute("select id from copies.t order by 1").fetchall() == [(1,), (2,), (3,)]
