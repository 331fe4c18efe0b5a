"""Connections to solidDB through the task's DB-API driver, and the meaning of driver errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from ...errors import (
    ConfigError,
    ConnectionLostError,
    PositionError,
    SourceError,
    TailraceError,
    UnreachableError,
)

_LOST = {"OperationalError", "InterfaceError", "OSError", "EOFError"}
"""Names of errors of DB-API and Python after which a new connection may help."""
OVERFLOW = "Log overflow"
"""The server's message if a position is no longer in its log (spec/soliddb.md §7)."""


class Cursor(Protocol):
    """The methods used of a DB-API cursor."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Any: ...
    def fetchone(self) -> Sequence[Any] | None: ...
    def fetchmany(self, size: int = ..., /) -> Sequence[Sequence[Any]]: ...
    def fetchall(self) -> Sequence[Sequence[Any]]: ...
    def close(self) -> Any: ...


class Connection(Protocol):
    """The methods used of a DB-API connection; parameters are written `?`."""

    def cursor(self) -> Cursor: ...
    def rollback(self) -> Any: ...
    def close(self) -> Any: ...


@dataclass(frozen=True)
class Server:
    """Access to a server or a pair of servers. Picklable, for worker processes.

    Attributes:
        connect: import path of a function that opens a DB-API connection, `package.module:function`.
        where: its name in messages.
        arguments: its keyword arguments.
        nodes: arguments that differ between the nodes of a pair, tried in order; empty for one server.
        statements: SQL that every new connection runs first (e.g. to choose a replication partition).
    """

    connect: str
    where: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    nodes: Sequence[Mapping[str, Any]] = ()
    statements: Sequence[str] = ()

    def open(self) -> Connection:
        """Returns a new connection to the first node that answers.

        Raises:
            ConfigError: the connect function cannot be imported.
            UnreachableError: no node answers; the error has each node's message.
        """
        module, _, name = self.connect.partition(":")
        try:
            function = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"no connect function {self.connect!r}: {error}", where="source.connect",
                hint="name a function that opens a DB-API connection: package.module:function",
            ) from error  # fmt: skip
        said = []
        for node in self.nodes or [{}]:
            try:
                made: Connection = function(**{**self.arguments, **node})
                for sql in self.statements:
                    with closing(made.cursor()) as cursor:
                        cursor.execute(sql)
                return made
            except Exception as error:  # noqa: BLE001 - drivers have their own errors
                said.append(str(error))
        raise UnreachableError(f"no node answers: {'; '.join(said)}", where=self.where)


@contextmanager
def asking(where: str) -> Iterator[None]:
    """Converts a driver's errors to tailrace's."""
    try:
        yield
    except TailraceError:
        raise
    except Exception as error:
        raise meaning(error, where) from error


def meaning(error: BaseException, where: str) -> SourceError:
    """Returns the SourceError for a driver's error."""
    text = str(error).strip() or type(error).__name__
    if OVERFLOW.lower() in text.lower():
        return PositionError(
            f"the server no longer has the log at this position: {text}", where=where,
            hint="`tailrace resync TASK --new-stream` continues at the log's end, with new baselines of all "
            "tables; a larger LogReader.MaxLogSize keeps more log",
        )  # fmt: skip
    if {kind.__name__ for kind in type(error).__mro__} & _LOST:
        return ConnectionLostError(f"the connection was lost: {text}", where=where)
    return SourceError(text, where=where)


def rows(connection: Connection, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns all rows of a (small) query."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql, values) if values else cursor.execute(sql)
        return [tuple(r) for r in cursor.fetchall()]


def let_go(connection: Connection | None) -> None:
    """Closes a connection in any state."""
    if connection is not None:
        with suppress(Exception):
            connection.close()
