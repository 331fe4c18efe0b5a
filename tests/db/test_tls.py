"""TLS: capture over verified connections, with a client certificate; every refusal ends it at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.errors import SourceError
from tailrace.lake import delta as lake
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres
from tailrace.state.baselines import read_baselines

from .test_connections import server, task
from .tls_front import Authority, tls_front

__all__ = ["server"]
pytestmark = pytest.mark.db


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two authorities, a certificate of the server and one of a client."""
    folder = tmp_path_factory.mktemp("tls")
    ours = Authority(folder, "ours")
    Authority(folder, "others")
    ours.issue("server", "localhost")
    ours.issue("me")
    return folder


@pytest.fixture(scope="module")
def port(server: EmbeddedPostgres, files: Path) -> Iterator[int]:
    """Where the server is reached over TLS, by clients with a certificate of ours."""
    assert server.port is not None
    with tls_front(server.port, (files / "server.crt", files / "server.key"), files / "ours.pem") as made:
        yield made


def url(
    port: int | None, files: Path, host: str = "localhost", root: str = "ours.pem", me: str = "me"
) -> str:
    """The address of the database, with all that `verify-full` needs."""
    mine = f"&sslcert={files}/{me}.crt&sslkey={files}/{me}.key" if me else "&sslcertmode=disable"
    return (
        f"postgresql://postgres@{host}:{port}/postgres?sslmode=verify-full&sslrootcert={files}/{root}{mine}"
    )


def test_every_connection_is_verified_and_shows_its_certificate(
    server: EmbeddedPostgres, port: int, files: Path, tmp_path: Path
) -> None:
    """Checks, slot, snapshot, the workers of the baseline, the stream: the front lets nobody else in."""
    made = task(tmp_path, url(port, files))
    try:
        Capture(made, once=True).run()
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("update a set id = id")
        Capture(made, once=True).run()
        assert read_baselines(made.control_path("baselines"))["public.a"].rows == 1
        assert lake.read(made.log_path).sort_by("CHANGE_SEQ")["RECID"].to_pylist() == [7, 3, 12]
    finally:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
            admin.execute("drop publication if exists tailrace_shop")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"root": "others.pem"}, "certificate verify failed"),
        ({"root": "nosuch.pem"}, "root certificate file .* does not exist"),
        ({"host": "127.0.0.1"}, 'certificate for "localhost".* does not match host name "127.0.0.1"'),
        ({"me": ""}, "certificate required"),
        ({"me": "nosuch"}, "certificate required"),  # libpq shows none when the file is not there
    ],
)
def test_a_refusal_ends_capture_at_once(
    port: int, files: Path, tmp_path: Path, given: dict[str, str], says: str
) -> None:
    with pytest.raises(SourceError, match=says) as caught:
        Capture(task(tmp_path, url(port, files, **given)), once=True).run()
    assert "sslrootcert" in (caught.value.hint or "")


def test_a_server_without_tls_is_refused(server: EmbeddedPostgres, files: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not support SSL") as caught:
        Capture(task(tmp_path, url(server.port, files)), once=True).run()
    assert "weaker `sslmode` than `require`" in (caught.value.hint or "")
