"""A baseline: a table's rows, read in parallel and committed to its target at once.

Parts are read side by side (`part_readers.py`), by Spark's tasks or here, each with its own connection, all
in the same snapshot or, in an open window, as the rows are meanwhile. They go to the target's landing
(`snapshot_sink.py`). One commit makes the whole table appear, then the `baselines` record says from which
position on its changes count. A crash leaves parts that nobody sees; the table is simply read again, at a
later position.
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
from deltalake import DeltaTable

from ..errors import SourceError, TableMovedError, TailraceError, is_of_table
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..model.change import Relation
from ..model.positions import Position
from ..sources.base import LogSource, Snapshot
from ..state.baselines import Baseline
from ..store.unstorable import set_aside
from .part_readers import Loaded, PartLoad, PartReaders, why_unfit
from .snapshot_sink import Landing

WHOLE = 1 << 62
"""A number of rows per part so large that each physical table is one part."""
AHEAD = 64
"""Parts of the next tables that are given to the readers while one table becomes its target."""
RECORD_EVERY_S = 1.0
"""Baselines that become their targets within this time are recorded together."""


@dataclass(frozen=True)
class BaselineProgress:
    """Progress of one table's baseline: parts and rows read so far, and rows expected (an estimate)."""

    table: str
    parts_done: int
    parts: int
    rows: int


@dataclass(frozen=True)
class Attempt:
    """A baseline before it is read. `number`: the number of the table's baseline; `order`: the table's
    newest order when it began; `after`: the change number that LOG had reached then."""

    number: int = 1
    order: int = 0
    after: int = -1


@dataclass(frozen=True)
class Reading:
    """How baselines are read, the same for all tables.

    Attributes:
        target: where a table's rows go.
        quarantine: the table of values that were put aside.
        rows_per_part: about how many rows one part of a table has.
        keep_bad: values no lake type can hold become NULL; else the first one raises ValueRangeError.
        hidden: columns of a layout that are NULL by its policy.
        progress: is told how far a table is.
        landing: is asked when all rows are read whether they may become the target; they do so at once.
        stopped: whether no other table is to be begun.
        failed: gets a table that cannot have a baseline, and why; the others are read all the same.
        based: is told of each baseline's layout and position; False: changes behind it were announced in
            another layout already.
    """

    target: Callable[[str], Landing]
    quarantine: str
    rows_per_part: int
    keep_bad: bool = False
    hidden: Callable[[Relation], frozenset[str]] = lambda _: frozenset()
    progress: Callable[[BaselineProgress], None] = lambda _: None
    landing: Callable[[Relation, Attempt], bool] = lambda _, __: True
    stopped: Callable[[], bool] = lambda: False
    failed: Callable[[str, TailraceError], None] | None = None
    based: Callable[[Relation, bytes], bool] = lambda _, __: True


def take(
    source: LogSource,
    snapshot: Snapshot,
    attempts: Mapping[str, Attempt],
    reading: Reading,
    record: Callable[[Sequence[Baseline]], None],
    readers: PartReaders,
) -> dict[str, TableMovedError]:
    """Takes the baselines of some tables in one snapshot or window. Returns the tables that were truncated or
    altered in the meantime and have to be read again.

    While one table becomes its target, parts of the next ones are read. `record` is called for tables whose
    rows are their targets, for several small ones at once (`RECORD_EVERY_S`); those that a crash leaves
    unrecorded are read again.
    """
    moved: dict[str, TableMovedError] = {}
    left, ahead = deque(attempts.items()), deque[_Coming]()
    landed, recorded = list[Baseline](), time.monotonic()
    try:
        while not reading.stopped() and (left or ahead):
            while left and sum(len(one.waiting) for one in ahead) < AHEAD:
                table, attempt = left.popleft()
                try:
                    ahead.append(_begun(source, snapshot, table, attempt, readers, reading))
                except TableMovedError as error:
                    moved[table] = error
                except TailraceError as error:
                    _failed(reading, table, error)
            if not ahead:
                break
            one = ahead.popleft()
            try:
                if (done := _ended(one, snapshot, reading)) is not None:
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


def _failed(reading: Reading, table: str, error: TailraceError) -> None:
    if reading.failed is None or not is_of_table(error):
        raise error
    reading.failed(table, error)


@dataclass
class _Coming:
    """A table that is being read."""

    table: str
    relation: Relation
    attempt: Attempt
    landing: Landing
    parts: int
    waiting: set[Future[Loaded]]
    began: float

    @property
    def read(self) -> bool:
        """Whether all its parts are."""
        return all(one.done() for one in self.waiting)

    def give_up(self) -> None:
        """Ends its reading: nobody writes to the place where the next attempt's rows land."""
        for one in self.waiting:
            one.cancel()
        wait(self.waiting)


def _begun(
    source: LogSource,
    snapshot: Snapshot,
    table: str,
    attempt: Attempt,
    readers: PartReaders,
    reading: Reading,
) -> _Coming:
    """Gives a table's parts to the readers."""
    began = time.monotonic()
    relation = source.relation(table)
    if not reading.based(relation, snapshot.position):
        raise TableMovedError(f"{table} was altered when its baseline began", hint="it is read again")
    # Without a snapshot, only what one statement reads is consistent: a row that moves might be read twice.
    parts = source.parts(relation, reading.rows_per_part if snapshot.name else WHOLE)
    landing = reading.target(table).begin(relation, attempt.number)
    hidden = reading.hidden(relation)
    load = PartLoad(source.part_reader(), snapshot, relation, landing, reading.keep_bad, hidden)
    waiting = {readers.load(load, part) for part in parts}
    reading.progress(BaselineProgress(table, 0, len(parts), 0))
    return _Coming(table, relation, attempt, landing, len(parts), waiting, began)


def _ended(one: _Coming, snapshot: Snapshot, reading: Reading) -> Baseline | None:
    """Makes a table's rows its target once all parts are read; None: they may not become it."""
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
    _set_aside(reading.quarantine, relation, bad)
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
            hint="was it killed for lack of memory? lower baseline.workers or rows_per_part. In your own "
            "script, start capture under `if __name__ == '__main__':`",
        )
        died.of_task = True
        raise died from error


def _set_aside(quarantine: str, relation: Relation, bad: list[tuple[str, str]]) -> None:
    """Quarantines bad values; they replace those of the table's previous baseline, or of a failed attempt."""
    before = (pc.field("table") == relation.table) & pc.field("change_seq").is_null()
    if lake.exists(quarantine) and lake.dataset(DeltaTable(quarantine)).count_rows(filter=before):
        name = relation.table.replace("'", "''")
        lake.retried(lambda: DeltaTable(quarantine).delete(f"\"table\" = '{name}' AND change_seq IS NULL"))
    if bad:
        rows = [
            {
                "table": relation.table,
                "column": column,
                "value": text,
                "reason": why_unfit(relation, column, text),
            }
            for column, text in bad
        ]
        reach("baseline.quarantine")
        lake.append(quarantine, set_aside(rows))
