"""A role, a database or a server that allows fewer connections than a baseline would use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.config.task import load
from tailrace.operate.checks import check
from tailrace.state.baselines import read_baselines

pytestmark = [pytest.mark.db, pytest.mark.slow]


@pytest.fixture
def limited(db: psycopg.Connection) -> Iterator[str]:
    """A role that may have five connections, and owns a table of many parts."""
    name = f"r_{db.info.dbname}"
    db.execute(f"create role {name} login replication connection limit 5")
    db.execute(f"grant create on database {db.info.dbname} to {name}; create schema s authorization {name}")
    db.execute("create table s.a (id int primary key, v text) with (fillfactor = 10)")
    db.execute("insert into s.a select i, repeat('x', 200) from generate_series(1, 40000) i")
    db.execute(f"alter table s.a owner to {name}; analyze s.a")
    yield name
    db.execute(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = 'tailrace_t'"
    )
    db.execute(f"drop owned by {name} cascade; drop role {name}")


def test_a_baseline_uses_the_connections_that_are_allowed_and_says_so(
    limited: str, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.yaml"
    url = database.replace("postgres@", f"{limited}@")
    path.write_text(
        f"name: t\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: [s.*]}}\n"
        "freshness: 50ms\nbaseline: {workers: 12, rows_per_part: 1000}\n"
    )
    task = load(path)
    found = [one for one in check(task, lambda: None) if "connections" in one.what]  # type: ignore[arg-type, return-value]
    assert [one.level for one in found] == ["warning"]
    assert f"role {limited} may have 5 connections" in found[0].what and "12" in found[0].what
    Capture(task, once=True).run()
    assert read_baselines(task.control_path("baselines"))["s.a"].rows == 40000
    warned = [one.message for one in caplog.records if "readers" in one.message]
    assert len(warned) == 1 and f"role {limited} may have 5 connections" in warned[0]
    assert not [one for one in caplog.records if "connection lost" in one.message]


def test_readers_wait_for_connections_that_others_use(
    limited: str,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was free when it began is not any more: fewer read at once, and nothing begins again."""
    from tailrace.sources.postgresql.source import PostgresSource

    monkeypatch.setattr(PostgresSource, "readers", lambda self, wanted: (wanted, ""))
    path = tmp_path / "t.yaml"
    url = database.replace("postgres@", f"{limited}@")
    path.write_text(
        f"name: t\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{url}', tables: [s.*]}}\n"
        "freshness: 50ms\nbaseline: {workers: 12, rows_per_part: 1000}\n"
    )
    task = load(path)
    Capture(task, once=True).run()
    assert read_baselines(task.control_path("baselines"))["s.a"].rows == 40000
    assert not [one for one in caplog.records if "connection lost" in one.message]
