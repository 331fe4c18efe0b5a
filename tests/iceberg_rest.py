"""A small Iceberg REST catalog over an SQL catalog, with faults: it fails before or after it commits."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest

_STATUS = {
    NoSuchTableError: 404, NoSuchNamespaceError: 404, TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409, CommitFailedException: 409,
}  # fmt: skip
_OPTIONAL = dict.fromkeys(("location", "partition-spec", "write-order"))


class Server(ThreadingHTTPServer):
    """`faults` has what the next commits do: "" nothing, "before" 503, "after" 504, "lost" no answer, "twice" the
    answer to a request that was repeated after it succeeded."""

    daemon_threads = True

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.catalog, self.faults, self.lock = catalog, deque[str](), threading.Lock()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def _do(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        try:
            with self.server.lock:
                status, said = self._answer(self.path.partition("?")[0].split("/")[2:], body)
        except Exception as error:  # noqa: BLE001 - an answer
            status = _STATUS.get(type(error), 500)
            said = {"error": {"message": str(error), "type": type(error).__name__, "code": status}}
        if status == 0:
            self.close_connection = True
            self.connection.close()
            return
        text = b"" if said is None else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_POST = do_HEAD = do_DELETE = _do  # noqa: N815

    def _answer(self, parts: list[str], body: bytes) -> tuple[int, Any]:  # noqa: PLR0911 - one for each path
        catalog, method = self.server.catalog, self.command
        match parts:
            case ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case ["namespaces"]:
                given = json.loads(body)
                catalog.create_namespace(tuple(given["namespace"]))
                return 200, {"namespace": given["namespace"], "properties": {}}
            case ["namespaces", namespace]:
                catalog.load_namespace_properties(namespace)
                return (
                    (204, None) if method == "HEAD" else (200, {"namespace": [namespace], "properties": {}})
                )
            case ["namespaces", namespace, "tables"]:
                asked = CreateTableRequest.model_validate(_OPTIONAL | json.loads(body))
                made = catalog.create_table(
                    (namespace, asked.name), asked.table_schema, asked.location, properties=asked.properties
                )
                return 200, _table(made)
            case ["namespaces", namespace, "tables", name] if method == "POST":
                return self._commit((namespace, name), body)
            case ["namespaces", namespace, "tables", name] if method == "DELETE":
                catalog.drop_table((namespace, name))
                return 204, None
            case ["namespaces", namespace, "tables", name]:
                found = catalog.load_table((namespace, name))
                return (204, None) if method == "HEAD" else (200, _table(found))
            case ["tables", "rename"]:
                given = json.loads(body)
                old, new = ((*given[k]["namespace"], given[k]["name"]) for k in ("source", "destination"))
                catalog.rename_table(old, new)
                return 204, None
        return 404, {"error": {"message": self.path, "type": "NotFound", "code": 404}}

    def _commit(self, identifier: tuple[str, str], body: bytes) -> tuple[int, Any]:
        fault = self.server.faults.popleft() if self.server.faults else ""
        if fault == "before":
            return 503, {"error": {"message": "busy", "type": "Busy", "code": 503}}
        asked = CommitTableRequest.model_validate_json(body)
        table = self.server.catalog.load_table(identifier)
        done = self.server.catalog.commit_table(table, asked.requirements, asked.updates)
        if fault == "after":
            return 504, {"error": {"message": "gateway", "type": "Timeout", "code": 504}}
        if fault == "lost":
            return 0, None
        if fault == "twice":
            raise CommitFailedException("the snapshot has changed")
        said = json.loads(done.metadata.model_dump_json())
        return 200, {"metadata-location": done.metadata_location, "metadata": said}


def _table(found: Any) -> dict[str, Any]:
    said = json.loads(found.metadata.model_dump_json())
    return {"metadata-location": found.metadata_location, "metadata": said, "config": {}}


@contextmanager
def rest_catalog(catalog: Catalog) -> Iterator[Server]:
    """Serves a catalog."""
    server = Server(catalog)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
