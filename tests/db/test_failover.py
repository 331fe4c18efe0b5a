"""A failover: for a while the address reaches a standby that is not promoted yet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import PositionError, SourceError
from tailrace.lake import delta as lake
from tailrace.lake import json_files, log
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres
from tailrace.state import capture_state

from .conftest import SETTINGS, OwnServer
from .test_running import meanwhile, wait_for

pytestmark = [pytest.mark.db, pytest.mark.slow]


@pytest.fixture
def server(own_server: OwnServer) -> Iterator[EmbeddedPostgres]:
    """A server of the test's own with one table, and a limit for the log that slots keep."""
    with own_server(settings=SETTINGS | {"max_slot_wal_keep_size": "1GB"}) as made:
        do(made, "create table a (id int primary key); insert into a values (1)")
        yield made


@pytest.fixture
def shop(server: EmbeddedPostgres, tmp_path: Path) -> Task:
    path = tmp_path / "shop.yaml"
    path.write_text(
        f"name: shop\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{server.tcp_url()}', tables: [public.a]}}\n"
        "freshness: 50ms\nbaseline: {workers: 1}\n"
    )
    return load(path)


def do(server: EmbeddedPostgres, sql: str) -> None:
    with psycopg.connect(server.tcp_url(), autocommit=True) as session:
        session.execute(sql)  # type: ignore[arg-type]


def become_standby(server: EmbeddedPostgres) -> None:
    server.stop()
    (server.folder / "standby.signal").touch()
    server.start()


def told(task: Task) -> dict[str, Any]:
    return json_files.read(task.run_path, "capture") or {}


def test_capture_waits_for_the_promotion_and_goes_on(
    server: EmbeddedPostgres, shop: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_state, "RETRY_S", (0.1,))
    Capture(shop, once=True).run()
    become_standby(server)
    stop = threading.Event()
    with meanwhile(Capture(shop, stop=stop).run, stop=stop):
        wait_for(lambda: told(shop).get("state") == "reconnecting" and told(shop)["attempts"] >= 2, 20)
        assert "standby" in told(shop)["message"]
        do(server, "select pg_promote()")
        wait_for(lambda: told(shop)["state"] == "running", 20)
        do(server, "insert into a values (2)")
        wait_for(lambda: log.INSERT in lake.read(shop.log_path, ["RECID"])["RECID"].to_pylist(), 20)


def test_a_new_task_at_a_standby_ends_at_once(server: EmbeddedPostgres, shop: Task) -> None:
    become_standby(server)
    with pytest.raises(SourceError, match="the server is a standby") as caught:
        Capture(shop, once=True).run()
    assert not isinstance(caught.value, PositionError) and "use the primary" in (caught.value.hint or "")
