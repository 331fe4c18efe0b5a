"""Registered readers of what retention may remove, and their progress: a small Delta table.

| column | type | meaning |
| --- | --- | --- |
| `name` | string | the consumer |
| `acknowledged` | bigint | the greatest number that it no longer needs; -1: it needs everything |
| `since` | timestamp | when it was registered |
| `at` | timestamp | when it last acknowledged |
| `tables` | string | its tables, with `*` and `?`, separated by commas or as a JSON list; NULL: all |
| `log` | boolean | whether it also reads LOG |
| `until` | timestamp | when it expires, in case its process dies; NULL: never |

Numbers are a key log's `keylog_sort`, or a task's change numbers.

Before retention removes anything, it records here how far it may go, on the version of this table that it
has read. So either it sees a consumer that registers at the same time, or the consumer sees how far it goes:
none is missed.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import platform
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

import pyarrow as pa
from deltalake.exceptions import DeltaError

from ..config.task import Task
from ..errors import ConfigError, TailraceError
from ..lake import delta as lake
from ..lake import log_retention
from ..lake.failpoints import reach
from ..model.patterns import fits
from ..state.open_warnings import VALIDATE, OpenWarnings

logger = logging.getLogger("tailrace.retention")
SCHEMA = pa.schema(
    [
        ("name", pa.string()), ("acknowledged", pa.int64()), ("since", pa.timestamp("us", "UTC")),
        ("at", pa.timestamp("us", "UTC")), ("tables", pa.string()), ("log", pa.bool_()),
        ("until", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
NOTHING_YET = -1
HELD_S = 86_400.0
_RENEWALS = 4
"""How often who holds everything says so again, while that lasts."""
PROMISED, _PROMISED_LOG = "tailrace/kept", "tailrace/kept-log"
"""The app id used in the tables that changes are removed from; that of LOG, whose records go sooner."""
_TRIES, _TIDY_EVERY = 20, 50


@dataclass(frozen=True)
class Consumer:
    """One consumer; see the module."""

    name: str
    acknowledged: int
    since: dt.datetime
    at: dt.datetime
    tables: tuple[str, ...] | None = None
    log: bool = False
    until: dt.datetime | None = None

    def reads(self, table: str) -> bool:
        """Whether it reads a table.

        >>> at = dt.datetime(2026, 1, 1)
        >>> one = Consumer("lake", 7, at, at, ("shop.item", "log.*"))
        >>> one.reads("shop.item"), one.reads("log.a"), one.reads("shop.items")
        (True, True, False)
        """
        return self.tables is None or fits(table, *self.tables)


def as_text(names: Sequence[str]) -> str:
    """Names of tables as they are stored: separated by commas, which older releases read, too, or as a JSON
    list if that would give other names.

    >>> as_text(["shop.item", "log.*"]), as_text(["shop.a,b"])
    ('shop.item,log.*', '["shop.a,b"]')
    """
    plain = ",".join(names)
    return plain if names_of(plain) == tuple(names) else json.dumps(list(names), ensure_ascii=False)


def names_of(text: str) -> tuple[str, ...]:
    """The names of tables in a text of `as_text`.

    >>> names_of("shop.item, log.*"), names_of('["shop.a,b"]'), names_of("[ab].x")
    (('shop.item', 'log.*'), ('shop.a,b',), ('[ab].x',))
    """
    with suppress(ValueError):
        if isinstance(found := json.loads(text), list):
            return tuple(found)
    return tuple(name.strip() for name in text.split(","))


@dataclass(frozen=True)
class Consumers:
    """The consumers in a table; `hint` says how one is registered."""

    path: str
    hint: str = "`consumer add NAME` registers one"

    def look(self) -> tuple[int, list[Consumer]]:
        """The table's version (-1: there is none) and its consumers, by name."""
        if not lake.exists(self.path):
            return -1, []
        version, rows = lake.read_at(self.path)
        now = dt.datetime.now(dt.timezone.utc)
        given = [{k: r[k] for k in SCHEMA.names if r.get(k) is not None} for r in rows.to_pylist()]
        found = [Consumer(**one | _named(one.get("tables"))) for one in given]
        live = [c for c in found if c.until is None or c.until > now]
        return version, sorted(live, key=lambda c: c.name)

    def all(self) -> list[Consumer]:
        """The consumers."""
        return self.look()[1]

    @property
    def promised(self) -> int:
        """The number up to which retention has removed changes, or is about to; -1: none."""
        return lake.progress(self.path, PROMISED)

    @property
    def promised_log(self) -> int:
        """The same of LOG's records."""
        return lake.progress(self.path, _PROMISED_LOG)

    def promise(self, upto: int, version: int, *, log: int = NOTHING_YET) -> bool:
        """Records that retention is about to remove changes up to a number, records of LOG up to another;
        False if the consumers are no longer those of that version: read them again."""
        if version < 0:
            lake.create(self.path, SCHEMA)
            return False
        progress = {PROMISED: max(upto, self.promised, 0)}
        if log != NOTHING_YET:
            progress[_PROMISED_LOG] = max(log, self.promised_log)
        return lake.commit(self.path, [], progress=progress, begin=True, only_after=version) is not None

    def add(
        self,
        name: str,
        *,
        tables: Sequence[str] | None = None,
        log: bool = False,
    ) -> None:
        """Registers a consumer: it needs everything that exists now, of all tables or of those with names
        like these.

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
            return [*have, Consumer(name, NOTHING_YET, now, now, mine, log)]

        self._change(added)

    def acknowledge(self, name: str, number: int) -> None:
        """Records that a consumer needs nothing up to a number.

        Raises:
            ConfigError: it is not registered, or has acknowledged more already.
        """

        def moved(have: list[Consumer]) -> list[Consumer]:
            mine = self._known(have, name)
            if number < mine.acknowledged:
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
        """Keeps everything but LOG until the block ends, which a thread says again from time to time; at most
        that many seconds if the process dies within it. `failing` gets why that cannot be said at the moment,
        or nothing."""
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
        """Registers a consumer that expires, or registers it again."""
        now = dt.datetime.now(dt.timezone.utc)
        mine = Consumer(name, NOTHING_YET, now, now, until=now + dt.timedelta(seconds=most_s))
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
        """Replaces the consumers by the result of `work`; starts over if another writer was faster."""
        for _ in range(_TRIES):
            version, have = self.look()
            made = [
                asdict(c) | {"tables": None if c.tables is None else as_text(c.tables)} for c in work(have)
            ]
            lake.create(self.path, SCHEMA)
            files = lake.write_part(self.path, pa.Table.from_pylist(made, schema=SCHEMA))
            reach("control.consumers")
            now = max(version, 0)
            done = lake.overwrite(self.path, files, schema=SCHEMA, progress={}, only_after=now)
            if done is not None:
                if done % _TIDY_EVERY == 0:  # each commit leaves the file of the previous one
                    log_retention.tidy(self.path)
                return
        raise ConfigError("the consumers are constantly being written by other processes", where=self.path)


def _named(text: str | None) -> dict[str, tuple[str, ...]]:
    return {} if text is None else {"tables": names_of(text)}


def failing_in(task: Task) -> Callable[[Mapping[str, str]], None]:
    """Keeps a warning of `Consumers.held` with a task, as long as it holds."""
    held = OpenWarnings(task, VALIDATE)
    return lambda why: held.hold("consumer", why, "it is tried again")


def consumers_of(task: Task) -> Consumers:
    """The registered consumers of a task's change tables, TRACKING and LOG."""
    return Consumers(task.control_path("consumers"), "`tailrace consumer TASK add NAME` registers one")
