"""Open windows: baselines that are read while their table is written to.

The window opens at a position of the log, and the table is read while it changes. Then a *token* (task,
table, number of the baseline) is written into the source's log. Changes between the two may be in the rows
already, so they are applied tolerantly. From the token on, the table's own rules apply. If the source's log
takes no messages, the log's end replaces the token.

Each step is durable before the next one, so that a later process can continue:

| the process dies | then |
| --- | --- |
| before or while the table is read | the table is read again, under the same number |
| after the rows are committed | the table is read again, under the same number |
| after that is recorded (`baselines`, `closes` is NULL) | another token is written, with the same number |
| after the token is recorded (`control/tokens`) | the baseline is recorded as closed |

Apply writes to the table only then. A token of another number is *stale*: its baseline was begun again. It is
recorded, and closes nothing.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config.task import Task
from ..errors import UnsupportedError
from ..lake import log
from ..lake.failpoints import reach
from ..model.positions import ChangeNumber, ChangeSeq, Position
from ..sources.base import LogSource
from ..state.baselines import Baseline, read_open, write_baseline
from ..state.declarations import TOKENS
from ..state.state_table import StateTable
from ..wire import pgmessages

logger = logging.getLogger("tailrace.capture")
PREFIX = "tailrace"


@dataclass(frozen=True)
class WindowToken:
    """The contents of a token.

    >>> WindowToken.of(WindowToken("shop", "s.t", 2).text().encode())
    WindowToken(task='shop', table='s.t', baseline=2)
    >>> WindowToken.of(b"validate") is None
    True
    """

    task: str
    table: str
    baseline: int

    def text(self) -> str:
        """Returns the message's content."""
        return json.dumps({"task": self.task, "table": self.table, "baseline": self.baseline})

    @staticmethod
    def of(content: bytes) -> WindowToken | None:
        """Returns the token in a message's content; None for other messages."""
        try:
            found = json.loads(content)
            return WindowToken(str(found["task"]), str(found["table"]), int(found["baseline"]))
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class LoggedToken:
    """A token of this task and its position in LOG."""

    table: str
    baseline: int
    number: ChangeNumber
    change_seq: ChangeSeq
    position: Position
    stale: bool


class Windows:
    """The open windows of a task. Any thread may open one; the capture loop closes them."""

    def __init__(self, task: Task, source: LogSource) -> None:
        self._task, self._source = task, source
        self._record, self._tokens = task.control_path("baselines"), task.control_path("tokens")
        self._lock = threading.Lock()
        self._ends: dict[str, bytes] = {}  # for sources without messages: where a window closes
        self._open = read_open(self._record)

    @property
    def tables(self) -> set[str]:
        """Tables whose window is open: their rows are committed, and their changes wait."""
        with self._lock:
            return set(self._open)

    @property
    def ends(self) -> bool:
        """Whether a window closes at a position, because there is no token."""
        return bool(self._ends)

    def resume(self) -> None:
        """Continues the windows of the previous process."""
        for one in list(self._open.values()):
            closing = [s for s in read_tokens(self._tokens) if not s.stale]
            mine = [s for s in closing if (s.table, s.baseline) == (one.table, one.number)]
            if mine:
                self._close(one, mine[0].number)
            else:
                self._mark(one)

    def opened(self, landed: Sequence[Baseline]) -> None:
        """Records that the rows of baselines are committed, and writes their tokens."""
        reach("windows.opened")
        opened = [replace(one, window="open") for one in landed]
        write_baseline(self._record, *opened)
        with self._lock:
            self._open |= {one.table: one for one in opened}
        for one in opened:
            self._mark(one)

    def _mark(self, one: Baseline) -> None:
        reach("windows.mark")
        try:
            self._source.mark(WindowToken(self._task.name, one.table, one.number).text())
        except UnsupportedError:
            end = self._source.end_position()
            with self._lock:
                self._ends[one.table] = end

    def logged(self, messages: Sequence[log.Message]) -> None:
        """Handles the messages of a commit of LOG: this task's tokens close their windows, or are stale."""
        found: list[LoggedToken] = []
        for record in messages:
            message = pgmessages.message(record.data)
            token = WindowToken.of(message.content) if message.prefix == PREFIX else None
            if token is None or token.task != self._task.name:
                continue
            mine = self._open.get(token.table)
            done = any((f.table, f.baseline) == (token.table, token.baseline) for f in found)
            stale = mine is None or mine.number != token.baseline or done
            position = Position(record.position.hex().upper())
            logged = LoggedToken(
                token.table, token.baseline, record.number, record.change_seq, position, stale
            )
            found.append(logged)
        if not found:
            return
        _table(self._tokens).append(vars(one) | {"change_number": one.number} for one in found)
        reach("windows.close")
        for one in found:
            if one.stale:
                logger.warning(
                    "a stale token of baseline %d of %s: ignored",
                    one.baseline,
                    one.table,
                    extra={"table": one.table},
                )
            else:
                self._close(self._open[one.table], one.number)

    def passed(self, position: bytes | None, number: ChangeNumber) -> None:
        """Closes windows without a token whose position LOG has reached, at a change number."""
        with self._lock:
            over = [t for t, end in self._ends.items() if position is not None and position >= end]
            for table in over:
                del self._ends[table]
        for table in over:
            self._close(self._open[table], number)

    def _close(self, one: Baseline, number: ChangeNumber) -> None:
        now = dt.datetime.now(dt.timezone.utc)
        write_baseline(self._record, replace(one, closes=number, finished_at=now))
        with self._lock:
            del self._open[one.table]


def read_tokens(path: str) -> list[LoggedToken]:
    """Returns the tokens of a task in its log, in order; a key log records each (`C`, stale: `#`)."""
    return _table(path).rows()


def _parse(row: Mapping[str, Any]) -> LoggedToken:
    baseline = (row["table"], row["baseline"])
    return LoggedToken(*baseline, row["change_number"], row["change_seq"], row["position"], row["stale"])


def _table(path: str) -> StateTable[LoggedToken]:
    return StateTable(path, TOKENS, _parse)
