"""Warnings that stay in `status` and `check` until what they say is over.

`<home>/control/warnings_<process>.json` is written by the process that noticed them. Some hold until the
table has a later baseline (`happened`), the others as long as the process says so (`hold`).
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ..config.task import Task
from ..lake import json_files
from .ledger import Baseline, read_baselines

CAPTURE, PIPELINE, VALIDATE = "capture", "pipeline", "validate"
_LOGGERS = {
    CAPTURE: logging.getLogger("tailrace.capture"),
    PIPELINE: logging.getLogger("tailrace.apply"),
    VALIDATE: logging.getLogger("tailrace.validate"),
}
_writing = threading.Lock()


@dataclass(frozen=True)
class OpenWarning:
    """A warning: its kind, the table (empty: the task), what is the matter, what helps, since when (ISO
    8601), and whether a later baseline settles it."""

    kind: str
    table: str
    what: str
    cure: str
    at: str
    until_baseline: bool

    @property
    def said(self) -> str:
        """The warning with what helps."""
        return f"{self.what}; {self.cure}" if self.cure else self.what

    def over(self, baselines: Mapping[str, Baseline]) -> bool:
        """Whether a baseline that began later has settled it."""
        taken = baselines.get(self.table)
        if not self.until_baseline or taken is None:
            return False
        return taken.finished_at - dt.timedelta(seconds=taken.seconds) > dt.datetime.fromisoformat(self.at)


class OpenWarnings:
    """The open warnings of one process of a task (`CAPTURE`, `PIPELINE`), or of its validations."""

    def __init__(self, task: Task, process: str) -> None:
        self._task, self._process = task, process
        self._folder, self._name = _file(task, process)

    def happened(self, kind: str, table: str, what: str, cure: str = "") -> None:
        """Logs a warning, and keeps it until the table has a later baseline."""
        with _writing:
            there = self._read()
            baselines = read_baselines(self._task.control_path("baselines"))
            same = (kind, table, what)
            others = [x for x in there if (x.kind, x.table, x.what) != same and not x.over(baselines)]
            new = OpenWarning(kind, table, what, cure, _now(), until_baseline=True)
            self._write([*others, new])
        self._log(new)

    def hold(self, kind: str, now: Mapping[str, str], cure: str = "") -> None:
        """Replaces the warnings of a kind, by table; logs those that are new. `cure`: what helps, with `{}`
        for the table."""
        with _writing:
            there = self._read()
            before = {(x.table, x.what): x for x in there if x.kind == kind}
            after = [
                before.get((t, what))
                or OpenWarning(kind, t, what, cure.format(t), _now(), until_baseline=False)
                for t, what in now.items()
            ]
            if after == [*before.values()]:
                return
            self._write([*(x for x in there if x.kind != kind), *after])
        for one in after:
            if (one.table, one.what) not in before:
                self._log(one)

    def _log(self, one: OpenWarning) -> None:
        subject = f"{one.table}: " if one.table else ""
        _LOGGERS[self._process].warning("%s%s", subject, one.said, extra={"table": one.table or None})

    def _read(self) -> list[OpenWarning]:
        return [OpenWarning(**x) for x in (json_files.read(self._folder, self._name) or {}).get("open", [])]

    def _write(self, now: list[OpenWarning]) -> None:
        json_files.write(self._folder, self._name, {"open": [asdict(x) for x in now]})


def log_only(kind: str, table: str, what: str, cure: str = "") -> None:
    """`OpenWarnings.happened` for a call that belongs to no task: nothing is kept."""
    said = f"{what}; {cure}" if cure else what
    _LOGGERS[PIPELINE].warning("%s: %s", table, said, extra={"table": table})


def open_warnings(task: Task, baselines: Mapping[str, Baseline]) -> list[OpenWarning]:
    """The open warnings of all processes."""
    found = [json_files.read(*_file(task, process)) or {} for process in _LOGGERS]
    every = [OpenWarning(**x) for one in found for x in one.get("open", [])]
    return [x for x in every if not x.over(baselines)]


def _file(task: Task, process: str) -> tuple[str, str]:
    return f"{task.home}/control", f"warnings_{process}"


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat()
