"""Connections that fail: what a retry may cure is tried again and said, everything else ends at once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import SourceError
from tailrace.lake import json_files
from tailrace.sources.postgresql.connect import connect
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres, free_port
from tailrace.state import capture_state
from tailrace.state.baselines import read_baselines

from .conftest import OwnServer
from .test_running import meanwhile, wait_for

pytestmark = pytest.mark.db

PASSWORD = "geh/eim@%1"
ESCAPED = "geh%2Feim%40%251"


@pytest.fixture(scope="module")
def server(own_server: OwnServer) -> Iterator[EmbeddedPostgres]:
    """A server with a TCP port, where `guest` needs a password and `stranger` is let in nowhere."""
    with own_server() as made:
        rules = "local all all trust\nhost all guest all scram-sha-256\nhost all postgres all trust\n"
        (made.folder / "pg_hba.conf").write_text(rules)
        with psycopg.connect(made.url(), autocommit=True) as admin:
            admin.execute(
                f"create role guest login superuser password '{PASSWORD}'; create role stranger login"
            )
            admin.execute("create table a (id int primary key); insert into a values (1)")
            admin.execute("select pg_reload_conf()")
        yield made


@pytest.fixture(autouse=True)
def nothing_left(server: EmbeddedPostgres) -> Iterator[None]:
    """Slot and publication go with their test: the next one makes a task of the same name."""
    yield
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
        admin.execute("drop publication if exists tailrace_shop")


def task(folder: Path, url: str) -> Task:
    path = folder / "shop.yaml"
    path.write_text(
        f"name: shop\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: [public.a]}}\n"
        "freshness: 50ms\nbaseline: {workers: 1}\n"
    )
    return load(path)


REFUSED = {
    "postgresql://guest:wr0ng@127.0.0.1:{port}/postgres": ("password authentication failed", "passfile"),
    "postgresql://guest@127.0.0.1:{port}/postgres": ("no password supplied", "passfile"),
    "postgresql://stranger@127.0.0.1:{port}/postgres": ("no pg_hba.conf entry", "pg_hba.conf"),
    "postgresql://nobody@/postgres?host={host}&port={port}": (
        'role "nobody" does not exist',
        "create the role",
    ),
    "postgresql://postgres@127.0.0.1:{port}/nosuch": ('database "nosuch" does not exist', "database's name"),
    "postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=require": ("does not support SSL", "sslmode"),
    "postgresql://postgres@127.0.0.1:{free}/postgres": ("Connection refused", "host and port"),
    "postgresql://postgres@/postgres?host=/nosuch": ("No such file", "host and port"),
    "postgresql://postgres@nohost.invalid/postgres": ("failed to resolve host", "host and port"),
}


@pytest.mark.parametrize("url", REFUSED)
def test_a_start_that_cannot_work_ends_at_once(server: EmbeddedPostgres, tmp_path: Path, url: str) -> None:
    """Where, what and what to do; the password is nowhere."""
    what, hint = REFUSED[url]
    given = url.format(port=server.port, free=free_port(), host=server._sockets)
    with pytest.raises(SourceError, match=what) as caught:
        Capture(task(tmp_path, given), once=True).run()
    assert caught.value.where and hint in (caught.value.hint or "")
    assert "wr0ng" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_password_in_the_address_works_in_every_process(server: EmbeddedPostgres, tmp_path: Path) -> None:
    made = task(tmp_path, f"postgresql://guest:{ESCAPED}@127.0.0.1:{server.port}/postgres")
    Capture(made, once=True).run()
    assert read_baselines(made.control_path("baselines"))["public.a"].rows == 1


@pytest.mark.parametrize("more", [{}, {"replication": "database"}], ids=["SQL", "stream"])
def test_what_a_database_sets_for_its_sessions_is_not_for_ours(
    db: psycopg.Connection, database: str, more: dict[str, str]
) -> None:
    theirs = {
        "statement_timeout": "1h",
        "lock_timeout": "1h",
        "idle_in_transaction_session_timeout": "1h",
        "idle_session_timeout": "1h",
        "transaction_timeout": "1h",
        "default_transaction_read_only": "on",
    }
    if db.info.server_version < 170000:
        del theirs["transaction_timeout"]
    for name, value in theirs.items():
        db.execute(f"alter database {db.info.dbname} set {name} = '{value}'")  # type: ignore[arg-type]
    with closing(psycopg.connect(database, **more)) as other:  # type: ignore[arg-type]
        assert _settings(other, theirs) == theirs
    with closing(connect(database, **more)) as ours:
        off = dict.fromkeys(theirs, "0") | {"default_transaction_read_only": "off"}
        assert _settings(ours, theirs) == off
        ours.execute("create table public.made (id int)")


def _settings(session: psycopg.Connection, names: Iterable[str]) -> dict[str, str]:
    return {name: session.execute(f"show {name}").fetchone()[0] for name in names}  # type: ignore


@pytest.mark.slow
def test_a_server_that_was_reached_before_is_tried_again_and_status_says_so(
    server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down in the middle, and down at the start of the next process."""
    monkeypatch.setattr(capture_state, "RETRY_S", (0.1, 0.2, 0.3))
    made, stop = task(tmp_path, server.tcp_url()), threading.Event()

    def told() -> dict[str, Any]:
        return json_files.read(made.run_path, "capture") or {}

    first = Capture(made, stop=stop)
    with meanwhile(first.run, stop=stop):
        wait_for(lambda: told().get("state") == "running", 20)
        server.stop()
        wait_for(lambda: told()["state"] == "reconnecting" and told()["attempts"] >= 3, 20)
        assert "Connection refused" in told()["message"] and told()["lag_seconds"] is None
        since = told()["since"]
        wait_for(lambda: told()["attempts"] >= 4, 20)
        assert told()["since"] == since
    again = threading.Event()
    with meanwhile(Capture(made, stop=again).run, stop=again):
        wait_for(lambda: told()["state"] == "reconnecting", 20)
        server.start()
        wait_for(lambda: told()["state"] == "running", 20)
        assert (told()["attempts"], told()["since"], told()["message"]) == (0, None, None)
