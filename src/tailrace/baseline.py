"""Baselines: a table's rows as of one exported snapshot, read in parallel, committed to its target at once.

Worker processes read parts (their own connections, all in the same snapshot) and stream them to where the
target has its rows land (`landing.py`); one commit makes the whole table appear, then the `baselines` record
says from which position on its changes count. A crash leaves parts that nobody sees; the table is simply read
again, in a new snapshot at a later position. Tables that are recorded are not read again.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from . import lake
from .change import Relation
from .control.ledger import Baseline, write_baseline
from .errors import SourceError, ValueRangeError
from .landing import DeltaLanding, Landing
from .sources.base import BaselineBatch, BaselinePart, LogSource, Snapshot
from .store.task import QUARANTINE_SCHEMA


@dataclass(frozen=True)
class BaselineProgress:
    """How far the baseline of one table is: parts and rows read so far, rows expected (an estimate)."""

    table: str
    parts_done: int
    parts: int
    rows: int


@dataclass(frozen=True)
class Loaded:
    """What one part became: its file (None: no rows), rows, and bad values as (column, source text)."""

    added: lake.AddedFile | None
    rows: int
    bad: list[tuple[str, str]]


def run(
    source: LogSource,
    snapshot: Snapshot,
    tables: Sequence[str],
    *,
    target: Callable[[str], Landing],
    record: str,
    quarantine: str,
    workers: int,
    rows_per_part: int,
    keep_bad: bool = False,
    progress: Callable[[BaselineProgress], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
    hidden: Callable[[Relation], frozenset[str]] = lambda _: frozenset(),
) -> list[Baseline]:
    """Takes the baselines of some tables in one snapshot; gives what was recorded.

    `target` gives per table where its rows go, `record` is the `baselines` control table. With `keep_bad`,
    values no lake type can hold become NULL; else the first one raises ValueRangeError. Columns that are
    `hidden` by a layout's policy are NULL.
    """
    done = []
    # spawn: a forked child would share the parent's replication connection and Arrow threads
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=end_with, initargs=(os.getpid(),)
    ) as pool:
        for table in tables:
            if stopped():
                break
            done.append(
                _table(
                    source,
                    snapshot,
                    table,
                    pool,
                    target(table),
                    quarantine,
                    rows_per_part,
                    keep_bad,
                    progress,
                    hidden,
                )
            )
            write_baseline(record, done[-1])
    return done


def _table(
    source: LogSource,
    snapshot: Snapshot,
    table: str,
    pool: ProcessPoolExecutor,
    target: Landing,
    quarantine: str,
    rows_per_part: int,
    keep_bad: bool,
    progress: Callable[[BaselineProgress], None],
    hidden: Callable[[Relation], frozenset[str]],
) -> Baseline:
    began = time.monotonic()
    relation = source.relation(table)
    parts = source.parts(relation, rows_per_part)
    landing = target.begin(relation)
    reader = source.part_reader()
    waiting: set[Future[Loaded]] = {
        pool.submit(load_part, reader, snapshot, relation, part, landing, keep_bad, hidden(relation))
        for part in parts
    }
    files: list[lake.AddedFile] = []
    bad: list[tuple[str, str]] = []
    rows = 0
    progress(BaselineProgress(table, 0, len(parts), 0))
    while waiting:
        finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for one in finished:
            loaded = _result(one, table)
            rows += loaded.rows
            bad += loaded.bad
            if loaded.added:
                files.append(loaded.added)
        progress(BaselineProgress(table, len(parts) - len(waiting), len(parts), rows))
    _set_aside(quarantine, relation, bad)
    version = landing.commit(relation, files)
    now = dt.datetime.now(dt.timezone.utc)
    took = time.monotonic() - began
    position = snapshot.position.hex().upper()
    return Baseline(table, relation, position, rows, version, now, took)


def _result(one: Future[Loaded], table: str) -> Loaded:
    try:
        return one.result()
    except BrokenProcessPool as error:
        raise SourceError(
            "a process that read a part of the baseline died",
            where=table,
            hint="was it killed for memory? lower baseline.workers or rows_per_part. In your own script, "
            "start capture below `if __name__ == '__main__':`",
        ) from error


def end_with(parent: int) -> None:
    """Makes this worker process end when its parent is gone, however it went: nobody else would tell it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _set_aside(quarantine: str, relation: Relation, bad: list[tuple[str, str]]) -> None:
    if bad:
        rows = [
            {
                "table": relation.table,
                "column": column,
                "value": text,
                "reason": _reason(relation, column, text),
            }
            for column, text in bad
        ]
        lake.append(quarantine, pa.Table.from_pylist(rows, QUARANTINE_SCHEMA))


def _reason(relation: Relation, column: str, text: str) -> str:
    return f"{text!r} does not fit {relation.table}.{column} (lake type {relation.column(column).type})"


def _without(batch: pa.RecordBatch, hidden: frozenset[str]) -> pa.RecordBatch:
    """The batch with NULL in hidden columns."""
    if not hidden:
        return batch
    columns = [pa.nulls(batch.num_rows, f.type) if f.name in hidden else batch[f.name] for f in batch.schema]
    return pa.record_batch(columns, schema=batch.schema)


PartReader: TypeAlias = Callable[[Snapshot, Relation, BaselinePart], Iterator[BaselineBatch]]


def load_part(
    reader: PartReader,
    snapshot: Snapshot,
    relation: Relation,
    part: BaselinePart,
    to: Landing | str,
    keep_bad: bool,
    hidden: frozenset[str] = frozenset(),
) -> Loaded:
    """Reads one part into where it lands (a text: a Delta folder); runs in a worker process.

    Values no lake type can hold are NULL there; without `keep_bad` the first raises ValueRangeError.
    """
    out = (DeltaLanding(to) if isinstance(to, str) else to).part(relation)
    found: list[tuple[str, str]] = []
    for batch, bad in reader(snapshot, relation, part):
        found += [(one.column, one.text) for one in bad if one.column not in hidden]
        if found and not keep_bad:
            column, text = found[0]
            out.discard()
            raise ValueRangeError(
                f"value {_reason(relation, column, text)}",
                where=f"baseline of {relation.table}",
                hint=f'keep the column as text with `types: {{"{relation.table}.{column}": string}}`, or set '
                "`on_bad_value: quarantine` to load NULL in its place",
            )
        out.write(_without(batch, hidden))
    return Loaded(out.close(), out.rows, found)
