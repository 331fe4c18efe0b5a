"""A task in memory, for tests of the applier: what is durable, and the parts that read and write it.

Targets and the key log hold every batch against its counts. `point` is called before and after each durable
write: tests make it fail there.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.apply import table_progress
from tailrace.apply.applier import Applier
from tailrace.apply.apply_result import ApplyResult
from tailrace.apply.reading import ApplyPaths
from tailrace.errors import PositionError, TailraceError
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model.change import Column, Relation
from tailrace.model.positions import order_key
from tailrace.model.sequence import make
from tailrace.state import ledger, totals
from tailrace.state.baselines import Baseline
from tailrace.state.ledger import AppliedTable, Stored
from tailrace.targets.base import Constraints
from tailrace.targets.capabilities import Capabilities
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.merge_result import ApplyOutcome, MergeResult
from tailrace.targets.plans import SPECIAL

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
COLUMNS = (Column("id", 1, "integer", "int4", "int", key=True), Column("v", 2, "text", "text", "string"))
Row = dict[str, Any]


class BrokenError(BaseException):
    """A contract is broken; the scheduler does not take it for an error of a table."""


@dataclass(frozen=True)
class Change:
    """One change of a table: `old` is the key before it, `values` lack what was not sent."""

    number: int
    table: str
    oper: str
    old: int
    values: Row

    def kinds(self) -> Counter[str]:
        """What occurs in it, as the store counts it."""
        moved = self.oper == "U" and self.values["id"] != self.old
        return Counter(
            {self.oper: 1, "key_changes": moved, "absent": self.oper == "U" and len(self.values) < 2}
        )

    def on(self, rows: dict[int, Row]) -> None:
        """Does it, as one statement."""
        if self.oper == "T":
            rows.clear()
        elif self.oper == "D":
            rows.pop(self.old, None)
        else:
            before = rows.pop(self.old, {}) if self.oper == "U" else {}
            rows[self.values["id"]] = {"v": None} | before | self.values


def position(number: int) -> str:
    return f"{number:040X}"


@dataclass
class World:
    """What is durable of a task, and its operator. Tables of `groups` are tried again when they fail."""

    tables: Collection[str]
    groups: Collection[str] = ()
    keylog: bool = False
    point: Callable[[str, str], None] = lambda _what, _table: None
    changes: list[Change] = field(default_factory=list)
    source: dict[str, dict[int, Row]] = field(default_factory=dict)
    stored: list[Stored] = field(default_factory=list)
    rows: dict[str, dict[int, Row]] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    logged: dict[str, int] = field(default_factory=dict)
    log: dict[str, list[int]] = field(default_factory=dict)
    applied: list[AppliedTable] = field(default_factory=list)
    recorded: int = -1
    baselines: dict[str, Baseline] = field(default_factory=dict)
    version: int = 0
    paused: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    gone: dict[str, int] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    reading: Counter[str] = field(default_factory=Counter)
    kept: int = 0  # changes up to that number are gone from change tables
    read: int = 0  # rows of `stored` that were read at a time, at most

    def change(self, table: str, oper: str, old: int = 0, **values: Any) -> None:
        """The source changes."""
        one = Change(len(self.changes) + 1, table, oper, old, values)
        self.changes.append(one)
        one.on(self.source.setdefault(table, {}))

    def store(self, upto: int | None = None) -> Stored | None:
        """The store takes what the source has done since (or up to a number)."""
        last = self.stored[-1].upto if self.stored else 0
        upto = len(self.changes) if upto is None else upto
        if upto <= last:
            return None
        counts: dict[str, Counter[str]] = {}
        for c in self.changes[last:upto]:
            counts.setdefault(c.table, Counter()).update({**c.kinds(), "rows": 1})
        batch = Stored(upto, make(0, upto), position(upto), NOW, {t: dict(c) for t, c in counts.items()})
        self.stored.append(batch)
        return batch

    def baseline(self, table: str, after: int | None = None) -> Callable[[], None]:
        """A baseline is read; gives what makes it land."""
        self.reading[table] += 1
        number, kept = len(self.changes), {k: dict(r) for k, r in self.source.get(table, {}).items()}
        after = number if after is None else after

        def land() -> None:
            self.reading[table] -= 1
            self.since[table] = len(self.applied)
            self.rows[table], self.reached[table] = {k: dict(r) for k, r in kept.items()}, after
            self.version += 1
            before = self.baselines.get(table)
            which, at = before.number + 1 if before else 1, position(number + 1)
            self.baselines[table] = Baseline(table, relation(table), at, 0, 0, NOW, 0, which, 0, after)

        return land

    def applier(self, spark: Any = None, **more: Any) -> Applier:
        """A new process."""
        paths = ApplyPaths("relations", "stored", "applied", "baselines", lambda t: t)
        self.rules = KeyLog(self) if self.keylog else None
        limits: dict[str, Any] = {"max_changes": 4, "parallel": 1, "need_baseline": True} | more
        parts: dict[str, Any] = {"scheduler": Scheduler(self), "rules": self.rules}
        return Applier(spark, paths, Target(self), **parts, **limits)  # type: ignore[arg-type]

    def read_changes(self, one: ChangeBatch) -> list[Change]:
        """The changes of a batch in the change table."""
        start = one.range.start or 0
        if start < self.kept:
            raise PositionError(
                f"{one.table}: changes after {start} are asked for, they are gone up to {self.kept}"
            )
        found = [c for c in self.changes[start : one.range.end] if c.table == one.table]
        return [c for c in found if position(c.number) >= one.position]

    # The control tables, as `installed` puts them in place.
    def read_waiting(
        self, _: str, after: int, upto: int | None = None, tables: Collection[str] | None = None, *, most: int
    ) -> tuple[list[Stored], bool]:
        found, many = [], 0
        for b in self.stored:
            mine = {t: c for t, c in b.tables.items() if tables is None or t in tables}
            if b.upto <= after or (upto is not None and b.upto > upto) or (tables is not None and not mine):
                continue
            many += len(mine) + (tables is None)
            if found and many > most:
                return found, True
            found.append(Stored(b.upto, b.change_seq, b.position, NOW, mine))
            self.read = max(self.read, many)
        return found, False

    def newest_stored(self, _: str, upto: int) -> dict[str, int]:
        return {t: b.upto for b in self.stored if b.upto <= upto for t in b.tables}

    def newest_applied(self, _: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for one in self.applied:
            found[one.table] = max(one.upto, found.get(one.table, -1))
        return found

    def told(self) -> dict[str, int]:
        """How far targets are by the record, since their newest baselines."""
        found = {t: one.after for t, one in self.baselines.items()}
        for k, one in enumerate(self.applied):
            if k >= self.since.get(one.table, 0):
                found[one.table] = max(one.upto, found.get(one.table, -1))
        return found

    def trim(self) -> None:
        """Parts of batches that are applied go, but for each table's newest, and while baselines are read."""
        told, newest = self.told(), self.newest_stored("", len(self.changes))
        for b in self.stored:
            for table in [t for t in b.tables if b.upto <= told.get(t, -1) and b.upto < newest[t]]:
                if not self.reading[table]:
                    del b.tables[table]  # type: ignore[attr-defined]
                    self.gone[table] = b.upto

    def write_applied(
        self, _: str, upto: Stored, tables: Iterable[AppliedTable], app: str | None = None
    ) -> None:
        self.point("before the record", "")
        self.applied += list(tables)
        self.recorded = upto.upto if app else self.recorded
        self.point("after the record", "")

    def installed(self, patch: pytest.MonkeyPatch) -> World:
        """Puts its control tables in the place of the real ones."""
        for name in ("read_waiting", "newest_stored", "newest_applied", "write_applied"):
            patch.setattr(ledger, name, getattr(self, name))
        history = {t: [log.Layout(relation(t), b"", make(0, 0))] for t in self.tables}
        patch.setattr(totals, "parts_gone", lambda _: dict(self.gone))
        patch.setattr(totals, "Totals", lambda *_: SimpleNamespace(reached=lambda *_: self.told()))
        patch.setattr(table_progress, "read_baselines", lambda _: dict(self.baselines))
        patch.setattr(lake, "version", lambda _: self.version)
        patch.setattr(lake, "progress", lambda *_: self.recorded)
        patch.setattr(log, "history", lambda _: history)
        return self


def relation(table: str) -> Relation:
    return Relation(1, "s", table, "d", COLUMNS)


@dataclass
class Target:
    """Targets that take a batch only when its counts bound it."""

    world: World

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def path(self, table: str) -> str:
        return table

    def exists(self, table: str) -> bool:
        return table in self.world.reached

    def progress(self, table: str) -> int | None:
        self.world.point("progress", table)
        return self.world.reached.get(table)

    def version_at(self, table: str, number: int) -> int | None:
        assert self.world.reached[table] == number
        return None

    def constraints(self, table: str) -> Constraints:
        return Constraints()

    def merge(self, batches: Sequence[ChangeBatch]) -> list[MergeResult | TailraceError]:
        return [self._tried(one) for one in batches]

    def _tried(self, one: ChangeBatch) -> MergeResult | TailraceError:
        try:
            return self._merged(one)
        except TailraceError as error:
            return error

    def _merged(self, one: ChangeBatch) -> MergeResult:
        world, table = self.world, one.table
        reached = world.reached[table]
        mine = [c for c in world.read_changes(one) if c.number > reached]
        if reached > one.range.lower and self.world.keylog:  # only the key log needs these
            return MergeResult(ApplyOutcome(), min(reached, one.range.end))
        for k, many in occurs(mine).items():
            if many > one.counts.get(k, 0):
                raise BrokenError(f"{table}: {many} {k} up to {one.range.end}, counted {one.counts}")
        world.point("before the target", table)
        for c in mine:
            c.on(world.rows.setdefault(table, {}))
        world.reached[table] = max(reached, one.range.end)
        world.point("after the target", table)
        return MergeResult(ApplyOutcome(version=one.range.end, plan="merge"), one.range.end)


def occurs(changes: Iterable[Change]) -> Counter[str]:
    found = sum((c.kinds() for c in changes), Counter())
    return Counter({k: found[k] for k in SPECIAL})


class Scheduler:
    """Tables that are paused, and groups whose errors are kept."""

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self, waited: float = 0.0) -> None:
        pass

    def refresh(self, baselines: Mapping[str, Baseline]) -> None:
        pass

    def is_due(self, table: str) -> bool:
        return table not in self.world.paused

    def applied(self, table: str) -> None:
        self.world.failing.discard(table)

    def failed(self, table: str, error: TailraceError) -> None:
        self.world.errors.append(table)
        self.world.failing.add(table)
        if table not in self.world.groups:
            raise error


class KeyLog:
    """The rules of tables that are logged, and nothing else: in memory until `flush`."""

    adds_columns = False

    def __init__(self, world: World) -> None:
        self.world, self.target = world, Target(world)
        self.waits: dict[str, list[int]] = {}
        self.moved: dict[str, int] = {}
        self.past = False

    def logged(self, table: str) -> int | None:
        return self.moved.get(table, self.world.logged.get(table))

    def begin(self, progress: Mapping[str, int | None]) -> None:
        for table, number in progress.items():
            self.world.logged.setdefault(table, order_key(number))

    def flush(self) -> None:
        try:
            self.world.point("before the key log", "")
            for table, numbers in self.waits.items():
                self.world.log.setdefault(table, []).extend(numbers)
            self.world.logged |= self.moved
            self.world.point("after the key log", "")
        finally:
            self.waits, self.moved = {}, {}

    def passed(self, table: str, upto: int) -> None:
        if self.logged(table) is not None:
            self.moved[table] = upto

    def forget(self, *, key_log: bool = False) -> None: ...
    def alter(self, *_: object) -> None: ...
    def applied(self, *_: object) -> None: ...
    def found(self, *_: object) -> None: ...

    def transactional(self, _: str) -> bool:
        return False

    def archives(self, _: str) -> bool:
        return False

    def of(self, *_: object, window: bool, logged: bool) -> KeyLog:
        self.past = logged
        return self

    def prepared(self, one: ChangeBatch, baseline: int) -> ChangeBatch:
        return one

    def finished(self, one: ChangeBatch, done: MergeResult) -> ApplyResult:
        logged, end = self.logged(one.table), done.end
        assert logged is not None and end is not None
        if one.logged:
            if end > logged:
                raise BrokenError(f"{one.table}: is logged up to {logged}, not to {end}")
            return ApplyResult(end, outcome=done.outcome)
        start = one.range.lower
        if start < logged < end:
            raise BrokenError(f"{one.table}: is logged up to {logged}, and {start} to {end} come")
        changes = [c.number for c in self.world.read_changes(one) if c.number <= end]
        self.waits.setdefault(one.table, []).extend(n for n in changes if start >= logged)
        self.moved[one.table] = max(logged, end)
        return ApplyResult(end, outcome=done.outcome)
