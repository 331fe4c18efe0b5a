"""An S3 server (moto) in its own process, and a proxy in front of it that counts requests and makes faults."""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_CONTROL = "/_tests"
_ROOT = Path(__file__).parents[1]
KEYS = {"access_key": "tests", "secret_key": "no secret"}


@dataclass
class Faults:
    """Shares of requests with a fault, and seconds that every request takes longer."""

    busy: float = 0.0
    """503 SlowDown, without effect."""
    reset: float = 0.0
    """The connection ends before the server got the request."""
    lost: float = 0.0
    """The server has done it, and its answer is lost."""
    latency: float = 0.0
    denied: str = ""
    """A method that the keys have no right to, with what its address has after the `?`: `POST delete`."""
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def next(self) -> str:
        """The fault of the next request; empty: none."""
        drawn = self.random.random()
        for name in ("busy", "reset", "lost"):
            if (drawn := drawn - getattr(self, name)) < 0:
                return name
        return ""


@dataclass
class Store:
    """A bucket behind the proxy."""

    endpoint: str
    bucket: str

    @property
    def storage(self) -> str:
        """The section of a task file, in one line."""
        keys = ", ".join(f"{name}: {value}" for name, value in KEYS.items())
        return f"{{endpoint: '{self.endpoint}', {keys}}}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that finds the store without a task file."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEYS["access_key"],
            "AWS_SECRET_ACCESS_KEY": KEYS["secret_key"],
        }

    def counts(self) -> Counter[str]:
        """How many requests the proxy got so far, by method and folder."""
        with urllib.request.urlopen(f"{self.endpoint}{_CONTROL}", timeout=10) as answer:
            return Counter(json.load(answer))

    @contextmanager
    def faulty(self, **faults: float | str) -> Iterator[None]:
        """Makes faults within the block."""
        self._set(faults)
        try:
            yield
        finally:
            self._set({})

    def _set(self, faults: Mapping[str, float | str]) -> None:
        request = urllib.request.Request(
            f"{self.endpoint}{_CONTROL}", json.dumps(faults).encode(), method="PUT"
        )
        urllib.request.urlopen(request, timeout=10).close()


@contextmanager
def object_store(bucket: str = "lake") -> Iterator[Store]:
    """A server with an empty bucket. It is a process of its own: delta-rs holds Python's lock while it waits."""
    command = [sys.executable, "-m", "tests.object_store"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=_ROOT) as server:
        try:
            assert server.stdout is not None
            store = Store(server.stdout.readline().decode().strip(), bucket)
            request = urllib.request.Request(f"{store.endpoint}/{bucket}", method="PUT")
            urllib.request.urlopen(request, timeout=10).close()
            yield store
        finally:
            server.kill()


def _serve() -> None:
    proxy = _Proxy(("127.0.0.1", 0), _Handler)
    proxy.port = _moto()
    print(f"http://127.0.0.1:{proxy.server_address[1]}", flush=True)
    proxy.serve_forever()


def _moto() -> int:
    """Starts moto, and returns its port."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    return int(moto.get_host_and_port()[1])


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    port: int
    counts: Counter[str]
    faults: Faults

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.counts, self.faults = Counter(), Faults()

    def handle_error(self, *_: Any) -> None:
        """Connections that end are not worth a word."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Proxy

    def _forward(self) -> None:
        body, proxy = self._body(), self.server
        if self.path == _CONTROL:
            if self.command == "PUT":
                proxy.faults = Faults(**json.loads(body))
            self._said(200, json.dumps(proxy.counts).encode())
            return
        proxy.counts[self._kind()] += 1
        time.sleep(proxy.faults.latency)
        if proxy.faults.denied and self._is(*proxy.faults.denied.split()):
            self._said(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
            return
        fault = proxy.faults.next()
        if fault == "busy":
            self._busy()
            return
        if fault != "reset":
            with suppress(http.client.HTTPException):
                self._answer(*self._asked(body), lost=fault == "lost")
        if fault in ("reset", "lost"):
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815 - the names of http.server

    def _is(self, method: str, query: str = "") -> bool:
        return self.command == method and query in self.path.partition("?")[2]

    def _kind(self) -> str:
        path, _, query = self.path.partition("?")
        if "list-type=" not in query:
            return f"{self.command} {path.rpartition('/')[0]}"
        return f"LIST {path}{dict(urllib.parse.parse_qsl(query)).get('prefix', '')}"

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        made = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            made += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return made

    def _asked(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        there = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        skipped = {"transfer-encoding", "content-length", "expect", "connection"}
        headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
        there.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
        answer = there.getresponse()
        contents = answer.read()
        there.close()
        return answer, contents

    def _answer(self, answer: http.client.HTTPResponse, contents: bytes, *, lost: bool) -> None:
        if lost:
            return
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", size or str(len(contents)))
        self.end_headers()
        self.wfile.write(contents)

    def _busy(self) -> None:
        self._said(
            503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
        )

    def _said(self, status: int, contents: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(contents)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(contents)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


if __name__ == "__main__":  # with a command: runs it with the environment of a store
    if not sys.argv[1:]:
        _serve()
    with object_store() as store:
        sys.exit(subprocess.run(sys.argv[1:], env=os.environ | store.environment, check=False).returncode)
