"""Log lines on standard error: text, or one JSON object a line (`tailrace --log-format json`).

An object has `time` (UTC, ISO 8601), `level`, `logger`, `message`, and where they are known `command`,
`task`, `table`, `position` (hex), `batch` (the last change number of it), and of an error `where`, `hint`,
`exception`. Who logs gives them by `extra=`: `logger.info("applied", extra={"table": "shop.item"})`.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

TEXT, JSON = "text", "json"
FORMAT = "TAILRACE_LOG_FORMAT"
"""Environment variable with the same meaning as `--log-format`; inherited by child processes."""
FIELDS = ("task", "table", "position", "batch", "where", "hint")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_RAISED = (
    "executor.Executor", "scheduler.TaskSetManager", "scheduler.DAGScheduler", "util.Utils",
    "sql.execution.datasources.FileFormatWriter", "sql.execution.datasources.v2",
)  # fmt: skip
"""Spark's loggers of errors that are raised as well."""
EVENT = 25
"""Level of what an operator sees with and without `-v`: between INFO and WARNING."""
_SHOWN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)? (?!DEBUG |INFO )")
_about: dict[str, str] = {}
logging.addLevelName(EVENT, "EVENT")
_events = logging.getLogger("tailrace")


class JsonLines(logging.Formatter):
    """A record as one line of JSON.

    >>> of = {"name": "tailrace.apply", "levelname": "INFO", "created": 0.5, "table": "shop.item"}
    >>> line = JsonLines().format(logging.makeLogRecord({"msg": "applied %d", "args": (3,), **of}))
    >>> line.partition(', "message"')[0]
    '{"time": "1970-01-01T00:00:00.500Z", "level": "INFO", "logger": "tailrace.apply"'
    >>> json.loads(line)["message"], json.loads(line)["table"]
    ('applied 3', 'shop.item')
    """

    def format(self, record: logging.LogRecord) -> str:
        said = {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        said |= _about | {n: getattr(record, n) for n in FIELDS if getattr(record, n, None) is not None}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return _line(record.created, said)


class TextLines(logging.Formatter):
    """A record as text; an event is a time and a sentence.

    >>> of = {"name": "tailrace", "levelno": EVENT, "levelname": "EVENT", "created": 0.0}
    >>> TextLines().format(logging.makeLogRecord({"msg": "task %s stops", "args": ("shop",), **of}))[20:]
    'task shop stops'
    """

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno != EVENT:
            return super().format(record)
        return f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')} {record.getMessage()}"


class _StandardError(logging.StreamHandler[Any]):
    """Writes to what standard error is at the moment: a screen takes it over while it is drawn."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, _: Any) -> None:
        pass


def event(message: str, *args: object, **fields: object) -> None:
    """Logs an event for the operator: one line on standard error, with and without `-v`."""
    _events.log(EVENT, message, *args, extra=fields)


def is_shown(said: str) -> bool:
    """Whether a text line of another process is one that an operator sees without `-v`.

    >>> [is_shown(f"2026-11-29 03:01:02{rest}") for rest in (" read", ",123 INFO a: b", ",123 WARNING a: b")]
    [True, False, True]
    """
    return _SHOWN.match(said) is not None


def begin(kind: str, level: int) -> None:
    """Sets up logging of this process; with `JSON` also for tracebacks and warnings."""
    os.environ[FORMAT] = kind
    handler = _StandardError()
    handler.setFormatter(JsonLines() if kind == JSON else TextLines())
    logging.basicConfig(level=level, handlers=[handler], force=kind == JSON)
    logging.getLogger("py4j").setLevel(max(level, logging.WARNING))  # it tells of every call
    if kind == JSON:
        logging.captureWarnings(True)
        sys.excepthook = _uncaught
        threading.excepthook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def verbose() -> bool:
    """Whether more than warnings is logged."""
    return logging.getLogger().isEnabledFor(logging.INFO)


def in_json() -> bool:
    """Whether log lines are JSON."""
    return os.environ.get(FORMAT) == JSON


def about(**fields: str) -> None:
    """Context of all later log lines: `task`, `command`."""
    _about.update(fields)


def line(level: str, message: str, **fields: Any) -> str:
    """A line as it would be logged, with its newline; for signal handlers, where logging cannot be used."""
    if not in_json():
        return f"{message}\n"
    now = dt.datetime.now(dt.timezone.utc).timestamp()
    return _line(now, {"level": level, "logger": "tailrace", "message": message, **_about, **fields}) + "\n"


def text(said: str) -> str:
    """A line of another process for people to read: the text of a JSON line, any other line unchanged.

    >>> text('{"level": "ERROR", "message": "no slot", "where": "db", "hint": "make one"}'), text("killed")
    ('no slot\\n  where: db\\n  hint: make one', 'killed')
    """
    try:
        found = json.loads(said)
        parts = [found["message"], *(f"  {n}: {found[n]}" for n in ("where", "hint") if found.get(n))]
        return "\n".join([*parts, *([found["exception"]] if found.get("exception") else [])])
    except (ValueError, KeyError, TypeError):
        return said


def error_in(lines: Sequence[str]) -> tuple[str, str | None, str | None] | None:
    """The error that ended a command, from its lines: what, where, hint; None if the lines have no error.

    >>> error_in(["12:00 WARNING s.t: gone", "error: no slot", "  where: db", "  hint: make one"])
    ('no slot', 'db', 'make one')
    >>> error_in(['{"level": "ERROR", "message": "no slot", "hint": "make one"}'])
    ('no slot', None, 'make one')
    >>> error_in(["Killed"])
    """
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].startswith("error: "):
            said, _, hint = "\n".join(lines[at:]).removeprefix("error: ").partition("\n  hint: ")
            what, _, where = said.partition("\n  where: ")
            return what, where or None, hint or None
        if lines[at].startswith("{") and '"level": "ERROR"' in lines[at]:
            with suppress(ValueError, KeyError):
                found = json.loads(lines[at])
                return found["message"], found.get("where"), found.get("hint")
    return None


def log4j() -> str:
    """Properties of log4j for Spark's JVM: its log lines have the form of those of this process.

    An error that ends a job is raised as well. It is logged, with Java's stack trace, only under `-v`.
    """
    more = verbose()
    off = enumerate(() if more else _RAISED)
    quiet = "".join(f"logger.t{n}.name = org.apache.spark.{t}\nlogger.t{n}.level = off\n" for n, t in off)
    if not in_json():
        return quiet + (
            "appender.stderr.layout.type = PatternLayout\n"
            f"appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex{'' if more else '{none}'}\n"
        )
    stamp = {"format": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "timeZone": "UTC"}
    template: dict[str, Any] = {
        "time": {"$resolver": "timestamp", "pattern": stamp},
        "level": {"$resolver": "level", "field": "name"},
        "logger": {"$resolver": "logger", "field": "name"},
        "message": {"$resolver": "message", "stringified": True},
        **_about,
    }
    if more:
        stack = {"field": "stackTrace", "stackTrace": {"stringified": True}}
        template["exception"] = {"$resolver": "exception", **stack}
    return quiet + (
        "appender.stderr.layout.type = JsonTemplateLayout\n"
        f"appender.stderr.layout.eventTemplate = {json.dumps(template)}\n"
    )


def _line(created: float, said: dict[str, Any]) -> str:
    at = dt.datetime.fromtimestamp(created, dt.timezone.utc).isoformat(timespec="milliseconds")
    return json.dumps({"time": at.replace("+00:00", "Z"), **said}, default=str, ensure_ascii=False)


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    info = (kind, error or kind(), trace)
    logging.getLogger("tailrace").critical("%s: %s", kind.__name__, error, exc_info=info)
