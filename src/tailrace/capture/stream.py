"""The stream in one run of capture: created, read, given up. `state.streams` stores its state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..config.task import Task
from ..errors import ConnectionLostError, SourceError
from ..lake import log
from ..sources.base import OF_TABLE, LogSource
from ..state import streams
from ..state.streams import ANEW, MADE, MAKING, PUBLISHED, UNMADE
from .column_notes import ColumnNotes
from .partition_notes import PartitionNotes

MISSING = "it was dropped and created again, or removed from the publication"
RECREATED = "it was dropped and created again: a new baseline has its rows"
ALTERED = "the publication was altered, and changes may be missing: a new baseline has them"


class Streams:
    """The stream in one run of capture; without `notes` it stores nothing."""

    def __init__(self, task: Task, *, notes: bool = True) -> None:
        self._task, self.now, self._notes = task, streams.newest(task), notes
        self.partitions, self.columns = PartitionNotes(task), ColumnNotes(task)
        self._lost: dict[str, str] = {}
        self._looked: dict[str, str] = {}  # how tables were in the stream at the last check

    @property
    def anew(self) -> bool:
        """Whether an operator has given up the stream, and this has not been handled yet."""
        return self.now.state == ANEW

    @property
    def made(self) -> bool:
        """Whether the task has a stream at the source."""
        return self.now.state == MADE

    @property
    def unidentified(self) -> Mapping[str, str]:
        """Tables whose changes do not identify the changed row, with the reason, as of the last `lost`."""
        return self.partitions.unidentified

    def clear(self, source: LogSource) -> None:
        """Removes the source's objects of a stream that was given up, or not created completely."""
        if self.now.state in (ANEW, MAKING):
            source.renew()

    def prepare(self, source: LogSource, tables: Sequence[str]) -> bool:
        """Calls `source.prepare`; records a stream before it is created, and again before it is read."""
        if self.made:
            fresh = source.prepare(tables, begin=False)
            if not self.now.number:
                found = {**source.identity(), **self.now.identity}
                if "begin" not in self.now.identity and log.state(self._task.log_path).position is not None:
                    found.pop("begin", None)  # LOG knows where to continue
                self._say(replace(self.now, identity=found))
            self._note(source, tables)
            return fresh
        before = replace(self.now, stream=max(self.now.stream, 1))
        server = before.identity or streams.server_of(source.identity())
        self._say(replace(before, state=MAKING, identity=server))  # after a crash, the owner is known
        try:
            fresh = source.prepare(tables)
        except ConnectionLostError:
            raise  # it is unknown whether it was created
        except SourceError:
            self._say(replace(before, state=UNMADE if before.stream == 1 else ANEW))
            raise
        self._say(replace(before, state=MADE, identity=dict(source.identity())))
        self._note(source, tables)
        return fresh

    def lost(self, source: LogSource, tables: Sequence[str], *, now: bool = True) -> dict[str, str]:
        """Returns those tables given to `prepare` of which changes may be missing, with the reason.

        They are not in the stream (`MISSING`), or in it in another way than then, or their names belong to
        other tables now. Or they got rows or values that are in no log; these are checked in any case with
        `now`, and otherwise only when due. The result is empty before the first `prepare`.

        Raises:
            SourceError: the source leaves out kinds of changes.
        """
        there, then = source.published(tables), self.now.published
        if there is None:
            return {}
        self._looked = there
        lost = {t: why for t in tables if t in there and (why := _altered(then.get(t, there[t]), there[t]))}
        lost |= {t: MISSING for t in tables if t not in there}
        self._lost = self.columns.stale(source, tables, notes=self._notes, now=now)
        self._lost |= self.partitions.filled(source, tables, notes=self._notes) | lost
        return self._lost

    def _note(self, source: LogSource, tables: Sequence[str]) -> None:
        """Records how new tables, and those that lost changes, are in the stream now; a new baseline has the
        missing changes.

        Changes of other tables since the last check are left to the next one.
        """
        for one in (self.partitions, self.columns):
            one.settled([t for t in tables if t in self._lost])
        self.partitions.filled(
            source, tables
        )  # the partitions of new tables are stored before a baseline is read
        self.columns.stale(source, tables)
        then = self.now.published
        new = [t for t in tables if t not in then or t in self._lost]
        named = {t: how for t, how in self._looked.items() if t in then and not _altered(then[t], how)}
        found = then | named | (source.published(new) or {} if new else {})
        if found != then:
            said = json.dumps(found, sort_keys=True)
            self._say(replace(self.now, identity={**self.now.identity, PUBLISHED: said}))

    def _say(self, now: streams.StreamRecord) -> None:
        self.now = streams.write(self._task, replace(now, number=self.now.number))


def _altered(then: str, now: str) -> str:
    """Returns why a table may have lost changes, from its entries in the stream then and now; empty if it has
    not.

    >>> _altered("7 740 table 16390", "7 740 table 16390"), _altered("7 740 table 16390", "7 740 table 16400")
    ('', 'it was dropped and created again: a new baseline has its rows')
    """
    (how_then, _, table_then), (how, _, table) = then.partition(OF_TABLE), now.partition(OF_TABLE)
    if how_then != how:
        return ALTERED
    return RECREATED if table_then != table else ""
