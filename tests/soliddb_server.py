"""A server that speaks of its log as the fact sheet says solidDB does (spec/soliddb.md §7), over a socket: one
line of JSON a request, one a reply. And the DB-API client of it.

`Database` is the data; a `Server` shows it on one port, two servers of one database are a pair of nodes.
"""

from __future__ import annotations

import json
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

LOG_COLUMNS = ("RECID", "RECNAME", "TRXID", "STMTTRXID", "RELID", "FLAGS", "LOGADDR", "DATA", "TEXTDATA")
Row = tuple[Any, ...]


class Database:
    """Tables, their log, and who has locked what."""

    def __init__(self, *, bytes_28: bool = False, idle_s: float = 0.05) -> None:
        self.changed = threading.Condition()
        self.log: list[dict[str, Any]] = []
        self.system: dict[str, list[dict[str, Any]]] = {"SYS_TABLES": [], "SYS_COLUMNS": []}
        self.rows: dict[str, list[Row]] = {}
        self.partitions: dict[str, set[int]] = {}
        self.locked: dict[str, int] = {}
        self.lost = b""
        """Positions up to here are no longer in the log."""
        self.idle_s, self.position, self.wide = idle_s, 0, bytes_28

    def address(self, place: int, trx: int) -> bytes:
        return struct.pack(">QIQQ" if self.wide else ">QIII", self.position, place, trx, trx)

    def table(
        self, relid: int, name: str, columns: Sequence[tuple[str, str, int, int]], rows: Sequence[Row] = ()
    ) -> None:
        """A table with columns (name, type, ODBC number, engine's number); again: its columns are others now."""
        schema, _, table = name.partition(".")
        system = self.system
        system["SYS_TABLES"] = [r for r in system["SYS_TABLES"] if r["ID"] != relid]
        system["SYS_COLUMNS"] = [r for r in system["SYS_COLUMNS"] if r["REL_ID"] != relid]
        system["SYS_TABLES"].append(
            {"ID": relid, "TABLE_NAME": table, "TABLE_TYPE": "BASE TABLE", "TABLE_SCHEMA": schema}
        )
        for place, (column, kind, sql, family) in enumerate(columns, 1):
            system["SYS_COLUMNS"].append({
                "ID": relid * 100 + place, "REL_ID": relid, "COLUMN_NAME": column, "COLUMN_NUMBER": place,
                "DATA_TYPE": kind, "SQL_DATA_TYPE_NUM": sql, "DATA_TYPE_NUMBER": family, "ATTR_TYPE": 0,
                "NUMERIC_PRECISION": 10, "NUMERIC_SCALE": 2,
            })  # fmt: skip
        self.rows.setdefault(name, list(rows))

    def commit(
        self, *records: tuple[int, int | None, bytes | None], flags: int = 1, table: str = ""
    ) -> bytes:
        """One transaction of (RECID, RELID, DATA); all its events come at its commit. Its COMMIT's address."""
        with self.changed:
            while self.locked.get(table):
                self.changed.wait(5)
            self.position += 1
            trx = 600 + self.position
            made = [(7, None, None), *records, (12, None, None)]
            for place, (recid, relid, data) in enumerate(made):
                at = self.address(0xFFFFFFFF if recid == 12 else place, trx)
                self.log.append({
                    "RECID": recid, "RECNAME": None, "TRXID": trx, "STMTTRXID": trx, "RELID": relid,
                    "FLAGS": flags if recid == 7 else 1, "LOGADDR": at, "DATA": data, "TEXTDATA": None,
                })  # fmt: skip
            self.changed.notify_all()
            return bytes(self.log[-1]["LOGADDR"])

    def end(self) -> bytes:
        return bytes(self.log[-1]["LOGADDR"]) if self.log else self.address(0, 0)


class _Session(socketserver.StreamRequestHandler):
    """One connection: at most one open query."""

    server: _Tcp

    def handle(self) -> None:
        self.partition: set[int] | None = None
        self.locks: list[str] = []
        self.open: Iterator[Row] = iter(())
        self.server.sessions.append(self.connection)
        with suppress(OSError):
            while line := self.rfile.readline():
                asked = json.loads(line)
                try:
                    said = self.answer(asked)
                except ValueError as error:
                    said = {"error": str(error)}
                self.wfile.write(json.dumps(said).encode() + b"\n")
        self.unlock()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == "execute":
            self.open = self.execute(asked["sql"], [_in(v) for v in asked["values"]])
            return {}
        if asked["do"] == "rollback":
            self.unlock()
            return {}
        rows = []
        for _ in range(asked["count"]):
            row = next(self.open, None)
            if row is None:
                break
            rows.append([_out(v) for v in row])
            if row[-1] == "idle" or not asked.get("wait", True):
                break
        return {"rows": [r[:-1] if r[-1] == "idle" else r for r in rows]}

    def execute(self, sql: str, values: list[Any]) -> Iterator[Row]:
        data = self.server.data
        if found := re.fullmatch(r"SELECT (.*) FROM SYS_LOG WHERE LOGADDR > \?", sql):
            if values[0] < data.lost:
                raise ValueError("SOLID Database Error 10090: Log overflow")
            return self.log(found[1].split(", "), values[0])
        if sql == "SELECT LOGADDR FROM SYS_LOG LIMIT 1":
            return iter([(data.end(),)])
        if "SYS_LOG" in sql:
            raise ValueError("only LOGADDR may be constrained, and only with >")
        if found := re.fullmatch(r"SELECT (.*) FROM _SYSTEM\.(\w+)(?: WHERE REL_ID = \?)?", sql):
            rows = [r for r in data.system[found[2]] if not values or r["REL_ID"] == values[0]]
            return iter([tuple(r.get(c) for c in found[1].split(", ")) for r in rows])
        if found := re.fullmatch(r'LOCK TABLE "(\w+)"\."(\w+)" IN SHARED MODE', sql):
            self.locks.append(f"{found[1]}.{found[2]}")
            with data.changed:
                data.locked[self.locks[-1]] = data.locked.get(self.locks[-1], 0) + 1
            return iter(())
        if found := re.fullmatch(r'SELECT .* FROM "(\w+)"\."(\w+)"', sql):
            return iter(data.rows[f"{found[1]}.{found[2]}"])
        if found := re.fullmatch(r"USE PARTITION (\w+)", sql):
            self.partition = data.partitions[found[1]]
            return iter(())
        raise ValueError(f"syntax error: {sql}")

    def log(self, columns: list[str], after: bytes) -> Iterator[Row]:
        """The cursor that does not end: whole transactions, and an empty row when there is nothing."""
        data, place = self.server.data, 0
        while True:
            with data.changed:
                if place >= len(data.log):
                    data.changed.wait(data.idle_s)
                new, place = data.log[place:], len(data.log)
            for record in new:
                hidden = self.partition is not None and record["RELID"] not in {None, *self.partition}
                if record["LOGADDR"] > after and not hidden:
                    yield tuple(record[c] for c in columns)
            if not new:
                yield (*(0 if c == "FLAGS" else None for c in columns), "idle")

    def unlock(self) -> None:
        data = self.server.data
        with data.changed:
            for table in self.locks:
                data.locked[table] -= 1
            data.changed.notify_all()
        self.locks = []


class _Tcp(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, data: Database) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.data = data
        self.sessions: list[socket.socket] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients come and go."""


class Server:
    """A node: a database on a port of this machine."""

    def __init__(self, data: Database) -> None:
        self._tcp = _Tcp(data)
        self.port = int(self._tcp.server_address[1])
        self._thread = threading.Thread(target=self._tcp.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def drop_connections(self) -> None:
        """As when the network fails."""
        for one in self._tcp.sessions:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._tcp.sessions.clear()

    def stop(self) -> None:
        """As when the node fails: nobody answers on its port."""
        self._tcp.shutdown()
        self._tcp.server_close()
        self.drop_connections()
        self._thread.join()


@contextmanager
def serving(data: Database, nodes: int = 1) -> Iterator[list[Server]]:
    """Servers of one database."""
    made = [Server(data) for _ in range(nodes)]
    try:
        yield made
    finally:
        for one in made:
            with suppress(OSError):
                one.stop()


def _out(value: Any) -> Any:
    return {"x": value.hex()} if isinstance(value, bytes) else value


def _in(value: Any) -> Any:
    return bytes.fromhex(value["x"]) if isinstance(value, dict) else value


# -- the client: DB-API, parameters as `?`

paramstyle = "qmark"


class Error(Exception):
    """What the server says."""


class DatabaseError(Error):
    """The server refused."""


class OperationalError(DatabaseError):
    """The connection is gone."""


class Connection:
    """One connection; one query at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 5)
        self.file = self.socket.makefile("rwb")
        self.lock = threading.Lock()

    def ask(self, **asked: Any) -> dict[str, Any]:
        with self.lock:
            try:
                self.file.write(json.dumps(asked).encode() + b"\n")
                self.file.flush()
                line = self.file.readline()
            except (OSError, ValueError) as error:
                raise OperationalError(str(error)) from error
        if not line:
            raise OperationalError("the server closed the connection")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise DatabaseError(said["error"])
        return said

    def cursor(self) -> Cursor:
        return Cursor(self)

    def rollback(self) -> None:
        self.ask(do="rollback")

    def close(self) -> None:
        with suppress(OSError):
            self.file.close()
        self.socket.close()


class Cursor:
    """Fetches from the connection's query."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        self.connection.ask(do="execute", sql=sql, values=[_out(v) for v in values])

    def fetchmany(self, size: int = 1) -> list[Row]:
        return [tuple(_in(v) for v in row) for row in self.connection.ask(do="fetch", count=size)["rows"]]

    def fetchone(self) -> Row | None:
        return next(iter(self.fetchmany(1)), None)

    def fetchall(self) -> list[Row]:
        made: list[Row] = []
        while rows := self.fetchmany(1000):
            made += rows
        return made

    def close(self) -> None:
        pass


def connect(port: int, password: str = "") -> Connection:
    """A connection to a node."""
    return Connection(port)
