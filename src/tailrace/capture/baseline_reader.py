"""Takes a baseline: a table's rows, read in parallel and committed to its target at once.

Parts are read in parallel (`part_readers`), by Spark's tasks or in this process, each with its own
connection. All parts are read in one snapshot or, in an open window, while the rows change. They are written
to the target's landing (`snapshot_sink`). One commit makes the whole table visible. Then the `baselines`
record has the position from which its changes count. After a crash the remaining parts are invisible, and the
table is read again, at a later position.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import pyarrow.compute as pc

from ..errors import SourceError, TableMovedError, TailraceError, is_of_table
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..lake.opened import open_table
from ..model.change import Relation
from ..model.positions import BEFORE_ALL, ChangeNumber, Position
from ..sources.base import LogSource, Snapshot
from ..state.baselines import Baseline
from ..store.unstorable import set_aside
from .part_readers import Loaded, PartLoad, PartReaders, misfit_reason
from .snapshot_sink import Landing

ONE_PART = 1 << 62
"""The number of rows per part with which each physical table is one part."""
PARTS_AHEAD = 64
"""The number of parts of the next tables that are submitted while one table is committed."""
RECORD_EVERY_S = 1.0
"""Baselines that are committed within this time are recorded together."""


@dataclass(frozen=True)
class BaselineProgress:
    """The progress of a table's baseline: parts read, all parts, and rows read."""

    table: str
    parts_done: int
    parts: int
    rows: int


@dataclass(frozen=True)
class BaselineAttempt:
    """A baseline before it is read.

    Attributes:
        number: the number of the table's baseline.
        order: the table's newest command when it began.
        after: the change number that LOG had reached then.
    """

    number: int = 1
    order: int = 0
    after: ChangeNumber = BEFORE_ALL


@dataclass(frozen=True)
class BaselineOptions:
    """Settings and callbacks of baselines, the same for all tables.

    Attributes:
        target: returns the landing of a table's rows.
        quarantine: the table of rejected values.
        rows_per_part: the approximate number of rows of a part.
        keep_bad: values that no lake type can hold become NULL; otherwise the first one raises
            ValueRangeError.
        hidden: returns the columns of a layout that are NULL by its policy.
        progress: called with a table's progress.
        landing: called when all rows are read; returns whether they may be committed, which follows at once.
        stopped: returns whether no further table may begin.
        failed: called with a table that cannot have a baseline, and the reason; the others are still read.
        based: called with each baseline's layout and position; returns False if later changes were already
            announced in another layout.
    """

    target: Callable[[str], Landing]
    quarantine: str
    rows_per_part: int
    keep_bad: bool = False
    hidden: Callable[[Relation], frozenset[str]] = lambda _: frozenset()
    progress: Callable[[BaselineProgress], None] = lambda _: None
    landing: Callable[[Relation, BaselineAttempt], bool] = lambda _, __: True
    stopped: Callable[[], bool] = lambda: False
    failed: Callable[[str, TailraceError], None] | None = None
    based: Callable[[Relation, bytes], bool] = lambda _, __: True


def take_baselines(
    source: LogSource,
    snapshot: Snapshot,
    attempts: Mapping[str, BaselineAttempt],
    reading: BaselineOptions,
    record: Callable[[Sequence[Baseline]], None],
    readers: PartReaders,
) -> dict[str, TableMovedError]:
    """Takes the baselines of tables in one snapshot or window.

    While one table is committed, parts of the next ones are read. `record` is called with committed
    baselines, several small ones together (`RECORD_EVERY_S`). A baseline that is not recorded before a crash
    is read again.

    Returns:
        The tables that were truncated or altered while they were read, and have to be read again.
    """
    moved: dict[str, TableMovedError] = {}
    left, ahead = deque(attempts.items()), deque[_TableReading]()
    landed, recorded = list[Baseline](), time.monotonic()
    try:
        while not reading.stopped() and (left or ahead):
            while left and sum(len(one.waiting) for one in ahead) < PARTS_AHEAD:
                table, attempt = left.popleft()
                try:
                    ahead.append(_begin(source, snapshot, table, attempt, readers, reading))
                except TableMovedError as error:
                    moved[table] = error
                except TailraceError as error:
                    _failed(reading, table, error)
            if not ahead:
                break
            one = ahead.popleft()
            try:
                if (done := _finish(one, snapshot, reading)) is not None:
                    landed.append(done)
            except TableMovedError as error:
                moved[one.table] = error
            except TailraceError as error:
                _failed(reading, one.table, error)
            more = ahead and ahead[0].read and time.monotonic() - recorded < RECORD_EVERY_S
            if landed and not more:
                these, landed, recorded = landed, [], time.monotonic()
                record(these)
    finally:
        for one in ahead:
            one.give_up()
        if landed:
            record(landed)
    return moved


def _failed(reading: BaselineOptions, table: str, error: TailraceError) -> None:
    if reading.failed is None or not is_of_table(error):
        raise error
    reading.failed(table, error)


@dataclass
class _TableReading:
    """A table that is being read."""

    table: str
    relation: Relation
    attempt: BaselineAttempt
    landing: Landing
    parts: int
    waiting: set[Future[Loaded]]
    began: float

    @property
    def read(self) -> bool:
        """Whether all its parts are read."""
        return all(one.done() for one in self.waiting)

    def give_up(self) -> None:
        """Cancels its reading, so that nothing writes to the landing of the next attempt."""
        for one in self.waiting:
            one.cancel()
        wait(self.waiting)


def _begin(
    source: LogSource,
    snapshot: Snapshot,
    table: str,
    attempt: BaselineAttempt,
    readers: PartReaders,
    reading: BaselineOptions,
) -> _TableReading:
    """Submits a table's parts to the readers."""
    began = time.monotonic()
    relation = source.relation(table)
    if not reading.based(relation, snapshot.position):
        raise TableMovedError(f"{table} was altered when its baseline began", hint="it is read again")
    # Without a snapshot, only the rows of one statement are consistent: a row that moves could be read twice.
    parts = source.parts(relation, reading.rows_per_part if snapshot.name else ONE_PART)
    landing = reading.target(table).begin(relation, attempt.number)
    hidden = reading.hidden(relation)
    load = PartLoad(source.part_reader(), snapshot, relation, landing, reading.keep_bad, hidden)
    waiting = {readers.load(load, part) for part in parts}
    reading.progress(BaselineProgress(table, 0, len(parts), 0))
    return _TableReading(table, relation, attempt, landing, len(parts), waiting, began)


def _finish(one: _TableReading, snapshot: Snapshot, reading: BaselineOptions) -> Baseline | None:
    """Commits a table's rows once all parts are read; returns None if they may not be committed."""
    table, relation, attempt = one.table, one.relation, one.attempt
    files: list[lake.AddedFile] = []
    bad: list[tuple[str, str]] = []
    rows = 0
    try:
        while one.waiting:
            finished, one.waiting = wait(one.waiting, return_when=FIRST_COMPLETED)
            for part in finished:
                loaded = _result(part, table)
                rows += loaded.rows
                bad += loaded.bad
                if loaded.added:
                    files.append(loaded.added)
            reading.progress(BaselineProgress(table, one.parts - len(one.waiting), one.parts, rows))
    except BaseException:
        one.give_up()
        raise
    _quarantine(reading.quarantine, relation, bad)
    if not reading.landing(relation, attempt):
        return None
    reach("baseline.land")
    version = one.landing.commit(relation, files, attempt.after)
    reach("baseline.landed")
    now = dt.datetime.now(dt.timezone.utc)
    took, position = time.monotonic() - one.began, snapshot.position.hex().upper()
    return Baseline(
        table,
        relation,
        Position(position),
        rows,
        version,
        now,
        took,
        attempt.number,
        attempt.order,
        attempt.after,
    )


def _result(one: Future[Loaded], table: str) -> Loaded:
    try:
        return one.result()
    except BrokenProcessPool as error:
        died = SourceError(
            "a process that was reading a part of the baseline died",
            where=table,
            hint="if memory ran out, lower baseline.workers or rows_per_part. In your own script, start "
            "capture under `if __name__ == '__main__':`",
        )
        died.of_task = True
        raise died from error


def _quarantine(quarantine: str, relation: Relation, bad: list[tuple[str, str]]) -> None:
    """Quarantines rejected values; they replace those of the table's previous baseline, or of a failed
    attempt."""
    before = (pc.field("table") == relation.table) & pc.field("change_seq").is_null()
    if lake.exists(quarantine) and lake.dataset(open_table(quarantine)).count_rows(filter=before):
        name = relation.table.replace("'", "''")
        lake.retried(lambda: open_table(quarantine).delete(f"\"table\" = '{name}' AND change_seq IS NULL"))
    if bad:
        rows = [
            {
                "table": relation.table,
                "column": column,
                "value": text,
                "reason": misfit_reason(relation, column, text),
            }
            for column, text in bad
        ]
        reach("baseline.quarantine")
        lake.append(quarantine, set_aside(rows))
