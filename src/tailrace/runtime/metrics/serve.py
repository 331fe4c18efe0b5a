"""Serves a task's metrics over HTTP, from a thread of the process that runs it."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...config.task import Task
from ...errors import ConfigError
from ...state import live

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>\d{1,5})")
_WHERE = "--metrics"
Counted = Callable[[], Mapping[str, Any]]


class Served:
    """The metrics to serve. `counted`: returns the counters of this process's pipeline, once there is one."""

    def __init__(self) -> None:
        self.counted: Counted | None = None

    def now(self) -> Mapping[str, Any] | None:
        """Returns the counters of the pipeline; None before the process has one."""
        return None if self.counted is None else self.counted()


def address(text: str) -> tuple[str, int]:
    """Returns host and port of `HOST:PORT`.

    >>> address("127.0.0.1:9187"), address("[::1]:9187")
    (('127.0.0.1', 9187), ('::1', 9187))
    >>> address("9187")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: '9187' is not HOST:PORT
      where: --metrics
      hint: write 127.0.0.1:9187, or 0.0.0.0:9187 for all hosts that can reach this machine
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 1 << 16:
        raise ConfigError(
            f"{text!r} is not HOST:PORT",
            where=_WHERE,
            hint="write 127.0.0.1:9187, or 0.0.0.0:9187 for all hosts that can reach this machine",
        )
    return found["v6"] or found["host"], int(found["port"])


@contextmanager
def served(task: Task, at: str | None, *halves: str) -> Iterator[Served]:
    """Serves the metrics of a task's processes at an address until the block ends; None: serves nothing.

    Raises:
        ConfigError: the address cannot be used.
    """
    watched = Served()
    if at is None:
        yield watched
        return
    host, port = address(at)
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

    from .collect import TaskCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(TaskCollector(task, frozenset(halves), watched.now))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise _not_served(task, at, halves, error) from error
    server.set_app(_routed(server.get_app()))
    try:
        yield watched
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _routed(metrics: Callable[..., Any] | None) -> Callable[..., Any]:
    """Returns a WSGI application with the metrics at `/metrics`, and with `/healthz`, which answers while the
    process runs."""

    def answer(environ: dict[str, Any], respond: Callable[..., Any]) -> Any:
        path = environ["PATH_INFO"]
        if path == "/metrics" and metrics is not None:
            return metrics(environ, respond)
        healthy = path == "/healthz"
        respond("200 OK" if healthy else "404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"ok\n" if healthy else b"not found: use /metrics or /healthz\n"]

    return answer


def _not_served(task: Task, at: str, halves: tuple[str, ...], error: OSError) -> ConfigError:
    """Returns the error of an address that cannot be used, perhaps because the task already runs."""
    what = f"metrics cannot be served at {at}: {error.strerror or error}"
    if error.errno == errno.EADDRINUSE and (other := live.running(task.run_path, halves)) is not None:
        return ConfigError(f"{other.what}; {what}", where=other.where, hint=other.hint)
    hint = f"give {_WHERE} a host of this machine and a port that no other process listens on"
    return ConfigError(what, where=_WHERE, hint=hint)
