"""Retention: removes old changes of a task that are no longer needed.

The `retention` of the task, or the arguments of a purge, define old changes. These stay if one of these needs
them:

| reader | needs |
| --- | --- |
| a target, its key log | the changes that it does not have yet (`apply.required_changes`) |
| a baseline that is being read | all changes of its table |
| the tables in OpenEdge's layout | the changes that they do not have yet |
| a registered consumer (`operate.consumers`), a validation | the changes that it has not acknowledged |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..apply.required_changes import Need, Needs
from ..apply.vendor.openedge_tables import APP as OPENEDGE_APP
from ..apply.vendor.openedge_tables import TRACKING_TABLE
from ..config.quantities import FOREVER
from ..config.task import Task
from ..errors import ConfigError
from ..formats.openedge.metadata import change_table
from ..lake import delta as lake
from ..lake import log
from ..lake.opened import open_table
from ..model import sequence
from ..model.patterns import fits
from ..model.positions import BEFORE_ALL, ChangeNumber, order_key
from ..query.positions import PositionRange
from ..state import ledger
from ..state.ledger import STORE_APP
from ..state.progress import Progress
from ..store import trimming
from ..store.kept import Span, kept, spans
from ..store.tables import SEQ
from ..store.trimming import LAST, Bound, Trimmed, Which, planned, trim
from .consumers import Consumer, consumers_of

SLACK = 1.25
"""A file with old and newer changes is rewritten once its oldest change is this many times as old as
allowed."""
WORTH = 0.25
"""If part of its old changes is still needed, a file is rewritten only if at least this share of its change
numbers can be removed."""
TRACKING, LOG = "TRACKING", "LOG"
APPLIED_APP = "tailrace/applied"
_NUMBER, _ALL, _TRIES = "_Change-Sequence", 1 << 62, 20


@dataclass(frozen=True)
class PurgeOrder:
    """The arguments of a purge, which replace those of the task file.

    Attributes:
        older_than: changes older than this number of seconds are removed.
        upto: changes up to this change number are removed.
        tables: patterns of the tables to purge; empty for all tables.
    """

    older_than: float | None = None
    upto: ChangeNumber | None = None
    tables: tuple[str, ...] = ()

    def of(self, table: str) -> bool:
        """Returns whether it includes a table."""
        return not self.tables or fits(table, *self.tables)

    @property
    def given(self) -> bool:
        """Whether it defines which changes are old."""
        return self.older_than is not None or self.upto is not None


@dataclass(frozen=True)
class Line:
    """One table of a purge: the changes that are (or would be) removed, and the readers that need old
    ones."""

    table: str
    path: str
    column: str
    bound: Bound
    goes: Trimmed
    held: list[Need] = field(default_factory=list)
    partly: Which = trimming.nothing
    old: Which = trimming.everything

    def as_dict(self) -> dict[str, Any]:
        """Returns it for `--json`."""
        goes = {"files": self.goes.files, "rewritten": self.goes.rewritten, "rows": self.goes.rows}
        held = [{"who": n.who, "after": n.after} for n in self.held]
        kept_after = None if self.goes.kept < 0 else self.goes.kept
        return {"table": self.table} | goes | {"kept_after": kept_after, "held": held}

    @property
    def any(self) -> bool:
        """Whether files are removed or rewritten."""
        return bool(self.goes.files or self.goes.rewritten)

    def done(self, *, dry_run: bool) -> Line:
        """Removes the changes. Returns the line with the actual numbers; a dry run removes nothing."""
        if not self.any:
            return self
        goes = trim(self.path, self.column, self.bound, self.partly, self.old, dry_run=dry_run)
        return replace(self, goes=goes)


def number_at(task: Task, text: str) -> ChangeNumber:
    """Returns the change number for a change sequence (35 digits), a stream position (40 hex digits, or
    `0/291F3590`) or a change number.

    For a stream position, it is the number of the last whole store batch up to it; 0 for an earlier position.

    Raises:
        ConfigError: the text has another form, or is beyond the stored changes.
    """
    stored, place = Progress.read(task.tracking_path, STORE_APP), PositionRange.of(text)
    if place.column == "stream_position":
        batches = ledger.read_stored(task.control_path("stored"))
        if place.low > max((b.position for b in batches), default=""):
            raise _beyond(task, text, stored)
        return max((b.upto for b in batches if b.position <= place.high), default=BEFORE_ALL)
    if (number := place.number) is None:
        hint = "write a change_seq (35 digits), a stream position (0/291F3590) or a change number"
        raise ConfigError(f"{text!r} is a time, not a position", hint=hint)
    if not stored.includes(number):
        raise _beyond(task, text, stored)
    return number


def _beyond(task: Task, text: str, stored: Progress) -> ConfigError:
    return ConfigError(
        f"{text} is beyond what is stored: change number {stored.number or 0}",
        where=task.name,
        hint="`tailrace status` shows how far the store is",
    )


def purge_task(
    task: Task, order: PurgeOrder | None = None, *, dry_run: bool = False, now: float | None = None
) -> list[Line]:
    """Removes old changes that are no longer needed from the change tables, TRACKING, LOG and the tables in
    OpenEdge's layout. Returns a line for each table with old changes.

    The task may run or not. After an interruption, some tables are purged and the others are not.

    Args:
        task: the task.
        order: the arguments of the purge; None for those of the task file.
        dry_run: removes nothing, and returns the same lines.
        now: the time in seconds since 1970; by default the clock's.

    Raises:
        ConfigError: other processes change the consumers all the time.
    """
    readers = consumers_of(task)
    for _ in range(_TRIES):
        version, found = readers.read()
        lines = _Plan(task, order or PurgeOrder(), found, time.time() if now is None else now).lines()
        todo = [one for one in lines if one.any]
        most = max((one.goes.most for one in todo if one.table != LOG), default=None)
        gone = max((one.goes.most for one in todo if one.table == LOG), default=None)
        if dry_run or not todo or readers.promise(most, version, log=gone):
            break
    else:
        raise ConfigError("the consumers are constantly being written by other processes", where=readers.path)
    done = [one.done(dry_run=dry_run) for one in lines]
    joined = _openedge(task, {one.table: one.goes.kept for one in done})
    return [*done, *(one.done(dry_run=dry_run) for one in joined)]


class _Plan:
    """Finds the old changes in the tables of a task, and which of them are no longer needed."""

    def __init__(self, task: Task, order: PurgeOrder, consumers: list[Consumer], now: float) -> None:
        self._task, self._order, self._consumers = task, order, consumers
        self._now, self._needs = now, Needs(task)

    def lines(self) -> list[Line]:
        """Returns a line for each table with old changes."""
        task, order = self._task, self._order
        names = [t for t in sorted(log.history(task.relations_path)) if order.of(t)]
        found = [
            self._line(t, task.changes_path(t), SEQ, task.retention.of(t), lambda t=t: self._of(t))  # type: ignore[misc]
            for t in names
        ]
        if not order.tables:
            keep = task.retention.keep if task.retention.tracking is None else task.retention.tracking
            found.append(self._line(TRACKING, task.tracking_path, "change_seq", keep, self._of_all))
            found.append(None if order.given else self._log())
        return [one for one in found if one is not None]

    def _line(
        self, name: str, path: str, column: str, keep: float, needs: Callable[[], list[Need]]
    ) -> Line | None:
        order = self._order
        if order.given:
            keep = FOREVER if order.older_than is None else order.older_than
        asked = _ALL if order.upto is None else order.upto
        if (keep == FOREVER and asked == _ALL) or not lake.exists(path):
            return None
        cut = LAST if keep == FOREVER else _before(self._now - keep)
        slack = cut if order.given else _before(self._now - keep * SLACK)
        delta = open_table(path)
        old = [s for s in spans(delta, column) if s.known and s.low_seq <= cut and s.low <= asked]
        if not old:
            return None
        due = max(min(s.high, asked) if s.high_seq <= cut else s.low for s in old)
        found = needs()
        floor = min((order_key(n.after) for n in found), default=_ALL)

        def partly(s: Span) -> bool:
            wholly = s.high_seq <= cut and s.high <= asked  # except what is still needed
            worth = not wholly or min(floor, s.high) - s.low + 1 >= WORTH * (s.high - s.low + 1)
            return worth and s.low_seq <= slack

        bound, held = Bound(min(floor, asked), cut), [n for n in found if order_key(n.after) < due]
        return Line(name, path, column, bound, planned(delta, column, bound, partly), held, partly)

    def _log(self) -> Line | None:
        """Returns the line of LOG, whose files are removed `maintenance.keep_log` after they were written.

        The newest file stays: by its transactions capture detects whether the source's log is still the same
        (`stream_identity`).
        """
        path, limit = self._task.log_path, (self._now - self._task.maintenance.keep_log) * 1000
        if not lake.exists(path):
            return None
        applied = lake.progress(self._task.control_path("applied"), APPLIED_APP)
        found = [self._stored(), Need("apply", applied)]
        found += _needs_of(c for c in self._consumers if c.log)
        bound = Bound(min(order_key(n.after) for n in found))

        delta = open_table(path)
        files = spans(delta, "CHANGE_SEQ")
        newest = max((s.high for s in files), default=0)

        def old(s: Span) -> bool:
            return s.modified <= limit and s.high < newest

        due = max((s.high for s in files if old(s)), default=None)
        if due is None:
            return None
        held = [n for n in found if order_key(n.after) < due]
        goes = planned(delta, "CHANGE_SEQ", bound, old=old)
        return Line(LOG, path, "CHANGE_SEQ", bound, goes, held, old=old)

    def _of(self, table: str) -> list[Need]:
        mine = [c for c in self._consumers if c.reads(table)]
        return [*self._needs.of(table), *self._common(mine)]

    def _of_all(self) -> list[Need]:
        return self._common(self._consumers)

    def _common(self, consumers: list[Consumer]) -> list[Need]:
        found = [self._stored()]
        if self._task.store.openedge:
            reached = lake.progress(f"{self._task.openedge_path}/{TRACKING_TABLE}", OPENEDGE_APP)
            found.append(Need("its tables in OpenEdge's layout", reached))
        return [*found, *_needs_of(consumers)]

    def _stored(self) -> Need:
        return Need("the store", lake.progress(self._task.tracking_path, STORE_APP))


def _needs_of(consumers: Iterable[Consumer]) -> list[Need]:
    acknowledged = ((c.name, c.acknowledged) for c in consumers)
    return [Need(f"the consumer {name}", None if n is None else ChangeNumber(n)) for name, n in acknowledged]


def _before(at: float) -> str:
    """Returns a text that is greater than the change sequences of commits before a time, and less than
    others."""
    return f"{int(sequence.time_parts(np.array([int(at * 1e6)]))[0]):0{sequence.TIME_DIGITS}d}"


def _openedge(task: Task, done: Mapping[str, int]) -> list[Line]:
    """Returns lines for the tables in OpenEdge's layout: whole files of changes that the task's own tables no
    longer have."""
    root, lines = task.openedge_path, []
    names = {t: (change_table(t), task.changes_path(t)) for t in log.history(task.relations_path)}
    names[TRACKING] = (TRACKING_TABLE, task.tracking_path)
    for table, (name, own) in sorted(names.items()):
        if lake.exists(path := f"{root}/{name}") and lake.exists(own):
            bound = Bound(done.get(table, order_key(kept(own))))
            goes = planned(open_table(path), _NUMBER, bound)
            lines += [Line(name, path, _NUMBER, bound, goes)] if goes.files else []
    return lines
