"""The capture process in steps: LOG's writer, windows, the following of orders and the choice of baselines are
tailrace's own; reading the source and landing rows are done here, as `process.py` and `baseline_reader.py` do them.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

from tailrace.capture.baseline_reader import BaselineAttempt
from tailrace.capture.baselines import Baselines
from tailrace.capture.followed_tables import FollowedTables
from tailrace.capture.incremental_snapshot import Windows
from tailrace.capture.process import Capture
from tailrace.lake import log
from tailrace.model.change import Relation
from tailrace.model.positions import ChangeNumber
from tailrace.sources.base import LeftOut, Renamed
from tailrace.state import commands, lifecycle
from tailrace.state.baselines import Baseline, read_baselines, write_baseline
from tailrace.state.capture_state import CaptureState

from .ram import RamLake
from .source import Row, Source, Table, position_at
from .target import Held

Heard = Callable[[int], bool]


@dataclass
class Reading:
    """A baseline on its way."""

    table: str
    attempt: BaselineAttempt
    position: bytes
    early: Table
    rows: dict[int, Row]
    open: bool
    order: int = -1


class Asked:
    """What capture asks of its source, answered by the model: its tables keep their names, and stay."""

    exact, slot_is_new = True, False
    unpublished: dict[str, str] = {}  # noqa: RUF012 - nothing is locked

    def __init__(self, source: Source) -> None:
        self._source, self.unidentified = source, dict[str, str]()

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        return sorted(t for t in self._source.now if any(fnmatchcase(t, p) for p in patterns))

    def names(self, relids: Sequence[int]) -> None:
        """It cannot tell."""

    def called(self, renamed: Sequence[Renamed]) -> None:
        assert not renamed

    def prepare(self, source: Asked, tables: Sequence[str]) -> bool:
        self._source.published |= set(tables)
        return False

    def withdraw(self, tables: Sequence[str]) -> bool:
        self._source.published -= set(tables)
        return True

    def locked(self, tables: Sequence[str]) -> dict[str, str]:
        return {}

    def lost(self, source: Asked, tables: Sequence[str], *, now: bool = True) -> dict[str, str]:
        return {}

    def left_out(self) -> dict[str, LeftOut]:
        return {}

    def attached(self, tables: Sequence[str]) -> dict[str, str]:
        return {}

    def relation(self, table: str) -> Relation:
        return self._source.now[table].relation

    def acknowledge(self, position: bytes) -> None:
        """The model's log stays."""

    def mark(self, text: str) -> None:
        self._source.mark(text)


class Work(Baselines):
    """Baselines that are read by the steps of a schedule."""

    def __init__(
        self,
        task: Any,
        source: Any,
        windows: Windows,
        writer: log.LogWriter,
        read: Callable[[Sequence[str]], None],
    ) -> None:
        super().__init__(task, source, windows, threading.Event(), writer)
        self._read, self.begun, self.reading = read, 0, list[Reading]()

    @property
    def busy(self) -> set[str]:
        return {one.table for one in self.reading} | self._windows.tables

    def begin(self, due: Sequence[str], task: Any) -> None:
        self._read(due)
        self.begun += len(due)


class Capturing:
    """One life of the capture process."""

    def __init__(
        self, task: Any, source: Source, ram: RamLake, held: dict[str, Held], heard: Heard, window: int
    ) -> None:
        self.task, self.source, self._ram, self._held, self._heard = task, source, ram, held, heard
        self.writer = log.LogWriter(task.log_path, task.relations_path)
        self._process: Any = SimpleNamespace(_state=CaptureState())
        self._source: Any = Asked(source)
        self._windows = Windows(task, self._source)
        self._work = Work(task, self._source, self._windows, self.writer, self._begin)
        self._followed = FollowedTables(task, lambda source, names: [])
        self._windows_to_open = window
        if source.slot is None:
            source.slot = source.lsn
        self._followed.begin(self._source)
        self._followed.follow(self._source, self._work, self._source)
        self._announced: dict[int, Relation] = {}
        self._windows.resume()
        reached = self.writer.state.position
        assert source.slot is not None
        self._next = max(source.index(reached) if reached else 0, source.index(position_at(source.slot + 1)))

    @property
    def reading(self) -> list[Reading]:
        """The baselines on their way."""
        return self._work.reading

    @property
    def behind(self) -> int:
        """Transactions not read yet."""
        return len(self.source.log) - self._next

    def capture(self, many: int) -> int:
        """Reads so many transactions and commits them to LOG."""
        for one in self.source.log[self._next : self._next + many]:
            self.writer.add(self.source.chunk(one, self._announced))
            self._next += 1
        return Capture._commit(self._process, self._source, self.writer, self._windows)

    def look(self, window: int) -> int:
        """Picks up orders; gives how many baselines began."""
        self._windows_to_open, before = window, self._work.begun
        self._followed.check(self._source, self._work, self._source)
        return self._work.begun - before

    def _begin(self, due: Sequence[str]) -> None:
        attempts = self._work._attempts(due)
        states = lifecycle.of_task(
            self.task.commands_path, read_baselines(self.task.control_path("baselines"))
        )
        self._work._note_layouts(due)
        for n, name in enumerate(due):
            now = self.source.now[name]
            exact = name in states and states[name].exact
            opened = bool(self._windows_to_open >> n & 1) and now.keyed and not exact
            position = position_at(self.source.lsn + 1)
            assert self.writer.announced.base(now.relation, position), f"{name}: later changes were read"
            self.reading.append(Reading(name, attempts[name], position, now, dict(now.rows), opened))

    def land(self, which: int) -> bool:
        """Takes the next step of a baseline; whether there was one to take."""
        if not self.reading:
            return False
        one = self.reading[which % len(self.reading)]
        if one.open and one.order < 0 and not self._read_on(one):
            return True
        if one.order < 0:
            one.order = 0
            if one.attempt.number > 1:
                why = f"baseline {one.attempt.number}"
                one.order = commands.give(
                    self.task.commands_path,
                    commands.LAND,
                    [one.table],
                    why=why,
                    who="capture",
                    baseline=one.attempt.number,
                )
            return True
        if one.order and not self._heard(one.order):
            return False
        self._land(one)
        return True

    def _read_on(self, one: Reading) -> bool:
        """Half of an open window's rows are those of now; False: it was altered and is read again."""
        now = self.source.now[one.table]
        if now.relation != one.early.relation:
            self.reading.remove(one)
            self._windows_to_open = 1
            self._begin([one.table])
            return False
        late = {k: r for k, r in now.rows.items() if k % 2}
        one.rows = {k: r for k, r in one.rows.items() if not k % 2} | late
        return True

    def _land(self, one: Reading) -> None:
        self.reading.remove(one)
        state = lifecycle.states(commands.read(self.task.commands_path), {}).get(one.table)
        if state is not None and state.removed:
            return
        relation, after = one.early.relation, one.attempt.after
        self._ram.at("land in", f"target/{one.table}")
        rows = {
            (k,) if one.early.keyed else -k: {c.attnum: r.get(c.attnum) for c in relation.columns}
            for k, r in one.rows.items()
        }
        versions = self._held[one.table].versions + 1 if one.table in self._held else 0
        self._held[one.table] = Held(relation, rows, ChangeNumber(max(after, 0)), versions)  # type: ignore[arg-type]
        self._ram.at("wrote", f"target/{one.table}")
        number, order = one.attempt.number, one.attempt.order
        now, at = dt.datetime.now(dt.timezone.utc), one.position.hex().upper()
        done = Baseline(one.table, relation, at, len(rows), versions, now, 0.0, number, order, after)
        if one.open:
            self._windows.opened([done])
        else:
            write_baseline(self.task.control_path("baselines"), done)
