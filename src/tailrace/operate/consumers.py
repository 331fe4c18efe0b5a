"""Registered readers of the rows that retention may remove, and their progress: a small Delta table.

| column | type | meaning |
| --- | --- | --- |
| `name` | string | the consumer |
| `acknowledged` | bigint | the greatest number that it no longer needs; NULL: it needs everything |
| `since` | timestamp | when it was registered |
| `at` | timestamp | when it last acknowledged |
| `tables` | string | its tables, with `*` and `?`, as a JSON list; NULL: all |
| `log` | boolean | whether it also reads LOG |
| `until` | timestamp | when it expires, in case its process dies; NULL: never |

Numbers are a task's change numbers, or those by which a key log orders its rows (`keylog_sort`).

Before retention removes rows, it records here up to which number. It commits that on the version of this
table that it has read. So if a consumer registers at the same time, either retention reads it, or the
consumer reads the number: none is missed.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import platform
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from deltalake.exceptions import DeltaError

from ..config.task import Task
from ..errors import ConfigError, TailraceError
from ..lake import delta as lake
from ..model.patterns import fits
from ..model.positions import ChangeNumber, order_key
from ..state.declarations import CONSUMERS
from ..state.ledger import STORE_APP
from ..state.open_warnings import VALIDATE, OpenWarnings
from ..state.state_table import KeyedTable, Row

logger = logging.getLogger("tailrace.retention")
HELD_S = 86_400.0
_RENEWALS = 4
"""The number of times that `held` renews its entry before it would expire."""
PROMISED, _PROMISED_LOG = "tailrace/kept", "tailrace/kept-log"
"""App ids of the numbers up to which changes, and records of LOG, are removed."""


@dataclass(frozen=True)
class Consumer:
    """A row of the table; see the module."""

    name: str
    acknowledged: int | None
    since: dt.datetime
    at: dt.datetime
    tables: tuple[str, ...] | None = None
    log: bool = False
    until: dt.datetime | None = None

    def reads(self, table: str) -> bool:
        """Returns whether it reads a table.

        >>> at = dt.datetime(2026, 1, 1)
        >>> one = Consumer("lake", 7, at, at, ("shop.item", "log.*"))
        >>> one.reads("shop.item"), one.reads("log.a"), one.reads("shop.items")
        (True, True, False)
        """
        return self.tables is None or fits(table, *self.tables)


@dataclass(frozen=True)
class Consumers:
    """The consumers in a table; `hint` explains how to register one."""

    path: str
    hint: str = "`consumer add NAME` registers one"

    def read(self) -> tuple[int | None, list[Consumer]]:
        """Returns the version of the table (None if there is no table) and the consumers, sorted by name."""
        version, rows = self._table.read()
        return version, _live(rows)

    def all(self) -> list[Consumer]:
        """Returns the consumers, sorted by name."""
        return self.read()[1]

    @property
    def promised(self) -> ChangeNumber | None:
        """The number up to which retention has removed changes, or is about to; None: it has removed none."""
        return lake.progress(self.path, PROMISED)

    @property
    def promised_log(self) -> ChangeNumber | None:
        """The number up to which retention has removed records of LOG, or is about to; None: it has removed
        none."""
        return lake.progress(self.path, _PROMISED_LOG)

    def promise(self, upto: int | None, version: int | None, *, log: int | None = None) -> bool:
        """Records that retention is about to remove changes up to a number, and records of LOG up to another.

        Args:
            upto, log: the numbers; None: nothing is removed.
            version: the version of the table that the consumers were read from.

        Returns:
            Whether the table still has that version; if not, the consumers have to be read again.
        """
        if version is None:
            lake.create(self.path, CONSUMERS)
            return False
        progress = {PROMISED: max(upto or 0, self.promised or 0)}
        if log is not None:
            progress[_PROMISED_LOG] = max(log, self.promised_log or 0)
        return lake.commit(self.path, [], progress=progress, begin=True, only_after=version) is not None

    def add(
        self,
        name: str,
        *,
        tables: Sequence[str] | None = None,
        log: bool = False,
    ) -> None:
        """Registers a consumer. It needs all rows that exist now.

        Args:
            name: its name.
            tables: patterns of the tables that it reads; None for all tables.
            log: whether it also reads LOG.

        Raises:
            ConfigError: it is registered already.
        """

        def added(have: list[Consumer]) -> list[Consumer]:
            if any(c.name == name for c in have):
                raise ConfigError(
                    f"the consumer {name!r} is already registered",
                    where=self.path,
                    hint="`ack` acknowledges what it has read",
                )
            now = dt.datetime.now(dt.timezone.utc)
            mine = None if tables is None else tuple(tables)
            return [*have, Consumer(name, None, now, now, mine, log)]

        self._change(added)

    def acknowledge(self, name: str, number: int) -> None:
        """Records that a consumer no longer needs rows up to a number.

        Raises:
            ConfigError: it is not registered, or has acknowledged more already.
        """

        def moved(have: list[Consumer]) -> list[Consumer]:
            mine = self._known(have, name)
            if number < order_key(mine.acknowledged):
                raise ConfigError(
                    f"{name!r} has already acknowledged {mine.acknowledged}",
                    where=self.path,
                    hint="earlier changes may have been removed; to read again from the start, remove it "
                    "and add it",
                )
            now = dt.datetime.now(dt.timezone.utc)
            new = replace(mine, acknowledged=number, at=now)
            return [new if c is mine else c for c in have]

        self._change(moved)

    def remove(self, name: str) -> None:
        """Removes a consumer.

        Raises:
            ConfigError: it is not registered.
        """

        def left(have: list[Consumer]) -> list[Consumer]:
            mine = self._known(have, name)
            return [c for c in have if c is not mine]

        self._change(left)

    @contextmanager
    def held(
        self, who: str, failing: Callable[[Mapping[str, str]], None], *, most_s: float = HELD_S
    ) -> Iterator[None]:
        """Keeps all rows, except those of LOG, until the block ends.

        A temporary consumer is registered, and renewed by a thread.

        Args:
            who: the reader, as part of the name of the consumer.
            failing: called with the reason if the consumer cannot be renewed, and with nothing otherwise.
            most_s: the seconds after which the consumer expires if the process dies.
        """
        name = f"{who} ({platform.node()}, process {os.getpid()}, {uuid.uuid4().hex[:6]})"
        self._hold(name, most_s)
        failing({})  # perhaps one that died has left something
        over = threading.Event()
        args = (name, most_s, failing, over)
        thread = threading.Thread(target=self._holding, args=args, daemon=True, name=name)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._change(lambda have: [c for c in have if c.name != name])
            failing({})

    def _hold(self, name: str, most_s: float) -> None:
        """Registers a consumer that expires, or renews it."""
        now = dt.datetime.now(dt.timezone.utc)
        mine = Consumer(name, None, now, now, until=now + dt.timedelta(seconds=most_s))
        self._change(lambda have: [*(c for c in have if c.name != name), mine])

    def _holding(
        self,
        name: str,
        most_s: float,
        failing: Callable[[Mapping[str, str]], None],
        over: threading.Event,
    ) -> None:
        wait = most_s / _RENEWALS
        while not over.wait(wait):
            try:
                self._hold(name, most_s)
                wait = most_s / _RENEWALS
                failing({})
            except (OSError, DeltaError, TailraceError) as error:  # there is time to try again
                wait, what = most_s / _RENEWALS / 10, f"{name} cannot be registered again: {error}"
                try:
                    failing({"": what})
                except OSError:  # nothing can be written there
                    logger.warning("%s", what)

    def _known(self, have: list[Consumer], name: str) -> Consumer:
        for one in have:
            if one.name == name:
                return one
        names = ", ".join(c.name for c in have)
        hint = f"registered: {names}" if names else self.hint
        raise ConfigError(f"no consumer {name!r} is registered", where=self.path, hint=hint)

    def _change(self, work: Callable[[list[Consumer]], list[Consumer]]) -> None:
        """Replaces the consumers by the result of `work`, which is called again after a concurrent commit."""
        self._table.change(lambda rows: [_row(one) for one in work(_live(rows))])

    @property
    def _table(self) -> KeyedTable:
        return KeyedTable(self.path, CONSUMERS, "control.consumers")


def _live(rows: Iterable[Row]) -> list[Consumer]:
    """Returns the consumers in rows that have not expired, sorted by name."""
    now = dt.datetime.now(dt.timezone.utc)
    found = [
        Consumer(**{**row, "tables": None if row["tables"] is None else tuple(json.loads(row["tables"]))})
        for row in rows
        if row["until"] is None or row["until"] > now
    ]
    return sorted(found, key=lambda one: one.name)


def _row(one: Consumer) -> Row:
    tables = None if one.tables is None else json.dumps(list(one.tables), ensure_ascii=False)
    return asdict(one) | {"tables": tables}


def failing_in(task: Task) -> Callable[[Mapping[str, str]], None]:
    """Returns a function for `Consumers.held` that keeps its warning with a task while it is true."""
    held = OpenWarnings(task, VALIDATE)
    return lambda why: held.hold("consumer", why, "it is tried again")


def consumers_of(task: Task) -> Consumers:
    """Returns the registered consumers of the change tables, TRACKING and LOG of a task."""
    return Consumers(task.control_path("consumers"), "`tailrace consumer add TASK NAME` registers one")


def stalled(
    found: Iterable[Consumer],
    stored: ChangeNumber | None,
    kept: ChangeNumber | None,
    now: dt.datetime,
    log: ChangeNumber | None = None,
) -> dict[str, str]:
    """Returns warnings about consumers, by name.

    A warning is about a consumer that has acknowledged nothing for a day although there are later changes, or
    that misses changes.

    Args:
        found: the consumers.
        stored: the change number up to which changes are stored.
        kept: the change number up to which changes have been removed.
        now: the current time.
        log: the change number up to which records of LOG have been removed.

    >>> from dataclasses import replace
    >>> at = dt.datetime(2026, 1, 1)
    >>> one = Consumer("lake", 7, at, at)
    >>> stalled([one], 8, None, at + dt.timedelta(hours=9))
    {}
    >>> stalled([one], 8, None, at + dt.timedelta(days=9))
    {'lake': 'it has acknowledged 7 of 8, and nothing for 9 days: old changes are kept for it'}
    >>> stalled([one], 12, 9, at)
    {'lake': 'it has acknowledged 7, but changes up to 9 have been removed: it may miss some'}
    >>> stalled([replace(one, log=True)], 12, None, at, log=10)
    {'lake': 'it has acknowledged 7, but records of LOG up to 10 have been removed: it misses some'}
    """
    said = {}
    for one in found:
        days = (now - one.at).days
        if one.acknowledged is not None and one.acknowledged < order_key(kept):
            said[one.name] = (
                f"it has acknowledged {one.acknowledged}, but changes up to {kept} have been removed: it "
                "may miss some"
            )
        elif one.log and one.acknowledged is not None and one.acknowledged < order_key(log):
            said[one.name] = (
                f"it has acknowledged {one.acknowledged}, but records of LOG up to {log} have been removed: "
                "it misses some"
            )
        elif days >= 1 and order_key(one.acknowledged) < order_key(stored) and one.until is None:
            moved = f"it has acknowledged {one.acknowledged or 0} of {stored}, and nothing for {days} days"
            said[one.name] = f"{moved}: old changes are kept for it"
    return said


def consumer_warnings(task: Task) -> dict[str, str]:
    """Returns warnings about the consumers of a task, by name; see `stalled`."""
    found = consumers_of(task).all()
    if not found:
        return {}
    stored, kept = (lake.progress(task.tracking_path, app) for app in (STORE_APP, PROMISED))
    return stalled(found, stored, kept, dt.datetime.now(dt.timezone.utc), log_removed(task))


def log_removed(task: Task) -> ChangeNumber | None:
    """Returns the number up to which records of LOG have been, or are about to be, removed; None if none
    are."""
    return max(lake.progress(task.log_path, PROMISED), consumers_of(task).promised_log, key=order_key)


def acknowledge(task: Task, name: str, number: ChangeNumber) -> None:
    """Records that a consumer of a task no longer needs changes up to a number.

    Raises:
        ConfigError: it is not registered, has acknowledged more already, or reads LOG and later records have
            been removed.
    """
    readers = consumers_of(task)
    mine, gone = next((c for c in readers.all() if c.name == name), None), log_removed(task)
    if mine is not None and mine.log and order_key(mine.acknowledged) <= number < order_key(gone):
        raise ConfigError(
            f"{name!r} has read up to {number}, but records of LOG up to {gone} have been removed, or are "
            "about to be: it misses those in between",
            where=task.log_path,
            hint="let it start again from the current rows of the tables, then acknowledge their position; "
            "`maintenance.keep_log` sets how long LOG is kept without registered consumers",
        )
    readers.acknowledge(name, number)
