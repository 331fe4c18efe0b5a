"""What a failed connection means, and addresses that cannot be read: told without a word of them."""

from __future__ import annotations

import socket
import threading

import psycopg
import pytest

from tailrace.config.task import Task, read
from tailrace.errors import (
    ConfigError,
    ConnectionLostError,
    PositionError,
    SourceError,
    TailraceError,
    UnreachableError,
)
from tailrace.sources import opener
from tailrace.sources.postgresql import connect
from tailrace.sources.postgresql.address import address
from tailrace.sources.postgresql.source import PostgresSource

pytestmark = pytest.mark.unit

AT = 'connection to server at "127.0.0.1", port 5432 failed: '


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("FATAL:  the database system is starting up", ConnectionLostError),
        ("FATAL:  the database system is in recovery mode", ConnectionLostError),
        ("FATAL:  sorry, too many clients already", ConnectionLostError),
        (
            'FATAL:  number of requested standby connections exceeds "max_wal_senders" (currently 2)',
            ConnectionLostError,
        ),
        ("FATAL:  remaining connection slots are reserved for roles with", ConnectionLostError),
        ('FATAL:  role "me" is not permitted to log in', SourceError),
        ("fe_sendauth: no password supplied", SourceError),
        ("server does not support SSL, but SSL was required", SourceError),
        ("SSL error: certificate verify failed", SourceError),
        ('server certificate for "a" does not match host name "b"', SourceError),
        ('root certificate file "/x" does not exist', SourceError),
        ("SSL error: tlsv13 alert certificate required", SourceError),
        ("SSL error: unexpected eof while reading", UnreachableError),
        ("SSL SYSCALL error: Connection reset by peer", UnreachableError),
        ("Connection refused", UnreachableError),
        ("No route to host", UnreachableError),
        ("timeout expired", UnreachableError),
    ],
)
def test_what_another_try_may_cure(said: str, kind: type[TailraceError]) -> None:
    assert connect._why(AT + said)[0] is kind


@pytest.mark.parametrize("parameter", ["options", "replication", "in options: datestyle"])
def test_a_poolers_refusal_says_to_connect_to_the_server(parameter: str) -> None:
    said = f"SFATAL\0C08P01\0Munsupported startup parameter: {parameter}\0\0".encode()
    with socket.create_server(("127.0.0.1", 0)) as pooler:

        def refuse() -> None:  # as PgBouncer does
            client, _ = pooler.accept()
            with client:
                client.recv(4096)
                client.sendall(b"E" + (len(said) + 4).to_bytes(4, "big") + said)

        thread = threading.Thread(target=refuse)
        thread.start()
        port = pooler.getsockname()[1]
        with pytest.raises(SourceError, match="unsupported startup parameter") as refused:
            connect.connect(f"postgresql://me@127.0.0.1:{port}/shop?sslmode=disable&gssencmode=disable")
        thread.join()
    assert not isinstance(refused.value, ConnectionLostError)
    assert "use the server's host and port" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.OperationalError("the connection is closed"), ConnectionLostError),
        (psycopg.errors.AdminShutdown("terminating connection"), ConnectionLostError),
        (psycopg.errors.UndefinedObject("no such slot"), PositionError),
        (psycopg.errors.DivisionByZero("division by zero"), SourceError),
        (psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), SourceError),
    ],
)
def test_only_an_error_that_ends_the_connection_is_tried_again(
    error: psycopg.Error, kind: type[TailraceError]
) -> None:
    """What psycopg itself refuses has no SQLSTATE either."""
    with pytest.raises(SourceError) as caught, connect.asking("here"):
        raise error
    assert type(caught.value) is kind


def test_only_the_start_of_a_stream_tells_that_the_log_is_gone() -> None:
    """A standby has the same error for questions about the end of its log."""
    error = psycopg.errors.ObjectNotInPrerequisiteState("recovery is in progress")
    asked, begun = connect.refused(error, "here"), connect.refused(error, "here", begins=True)
    assert type(asked) is SourceError and "--new-stream" not in (asked.hint or "")
    assert type(begun) is PositionError and "--new-stream" in (begun.hint or "")


MALFORMED = [
    "postgresql://me:geheim@db:54x2/shop",
    "postgresql://me:geheim@db:99999/shop",
    "postgresql://me:geh%zzeim@db/shop",
    "postgresql://me:50%geheim@db/shop",
    "postgresql://me:ein@geheim@db/shop",
    "postgresql://me:ein/geheim@db/shop",
    "postgresql://me:1/geheim@db/shop",
    "postgresql://me:ein/geheim?@db/shop",
    "postgresql://me:geheim@[::1/shop",
    "postgresql://me@db/shop?geheim",
    "postgresql://me@db/shop?geheim=1",
    "host=db password='geheim",
    "me:geheim@db://shop",
]


@pytest.mark.parametrize("url", MALFORMED)
def test_a_malformed_address_is_refused_without_a_word_of_it(url: str) -> None:
    for asked in (address, opener, lambda u: PostgresSource(u, "t"), connect.connect):
        if asked is opener and url.startswith("postgresql://"):
            continue
        with pytest.raises(ConfigError) as caught:
            asked(url)
        assert "geheim" not in str(caught.value)
        assert caught.value.__cause__ is None
    found = read(f"name: t\nsource: {{url: {url!r}}}\ntarget: {{database: {url!r}}}\n", folder=None)  # type: ignore[arg-type]
    if not isinstance(found, Task):
        assert not any("geheim" in str(one) for one in found)
