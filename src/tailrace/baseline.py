"""Baselines: a table's rows as of one exported snapshot, read in parallel parts, committed to its target at once.

Worker processes read parts (their own connections, all in the same snapshot) and stream them to parquet
files in the target's folder; one commit makes the whole table appear, then the `baselines` record says from
which position on its changes count. A crash leaves orphan files; the table is simply read again, in a new
snapshot at a later position. Tables that are recorded are not read again.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from . import lake
from .change import Relation
from .control.ledger import Baseline, write_baseline
from .errors import ValueRangeError
from .laketypes import schema_of
from .sources.base import LogSource, Snapshot

TARGET_PROPERTIES = {"delta.enableDeletionVectors": "false"}


@dataclass(frozen=True)
class BaselineProgress:
    """How far the baseline of one table is: parts and rows read so far, rows expected (an estimate)."""

    table: str
    parts_done: int
    parts: int
    rows: int


@dataclass(frozen=True)
class _Loaded:
    added: lake.AddedFile | None
    rows: int


def run(
    source: LogSource,
    snapshot: Snapshot,
    tables: Sequence[str],
    *,
    target: Callable[[str], str],
    record: str,
    workers: int,
    rows_per_part: int,
    keep_bad: bool = False,
    progress: Callable[[BaselineProgress], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Baseline]:
    """Takes the baselines of some tables in one snapshot; gives what was recorded.

    `target` gives the Delta path per table, `record` is the `baselines` control table. With `keep_bad`,
    values no lake type can hold become NULL; else the first one raises ValueRangeError.
    """
    done = []
    # spawn: a forked child would share the parent's replication connection and Arrow threads
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for table in tables:
            if stopped():
                break
            done.append(
                _table(source, snapshot, table, pool, target(table), rows_per_part, keep_bad, progress)
            )
            write_baseline(record, done[-1])
    return done


def _table(
    source: LogSource,
    snapshot: Snapshot,
    table: str,
    pool: ProcessPoolExecutor,
    path: str,
    rows_per_part: int,
    keep_bad: bool,
    progress: Callable[[BaselineProgress], None],
) -> Baseline:
    began = time.monotonic()
    relation = source.relation(table)
    parts = source.parts(relation, rows_per_part)
    lake.create(path, schema_of(relation.columns), TARGET_PROPERTIES)
    reader = source.part_reader()
    waiting: set[Future[_Loaded]] = {
        pool.submit(load_part, reader, snapshot, relation, part, path, keep_bad) for part in parts
    }
    files: list[lake.AddedFile] = []
    rows = 0
    progress(BaselineProgress(table, 0, len(parts), 0))
    while waiting:
        finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for one in finished:
            loaded = one.result()
            rows += loaded.rows
            if loaded.added:
                files.append(loaded.added)
        progress(BaselineProgress(table, len(parts) - len(waiting), len(parts), rows))
    files.sort(key=lambda f: f.path)
    version = lake.commit(path, files, progress={}, schema=schema_of(relation.columns), overwrite=True)
    now = dt.datetime.now(dt.timezone.utc)
    took = time.monotonic() - began
    position = snapshot.position.hex().upper()
    return Baseline(table, relation, position, rows, version or 0, now, took)


def load_part(
    reader: Callable[..., Any], snapshot: Snapshot, relation: Relation, part: Any, path: str, keep_bad: bool
) -> _Loaded:
    """Reads one part into one parquet file of the target; runs in a worker process."""
    schema = schema_of(relation.columns)
    out = lake.Part(path, schema, name="baseline", stats=_ranged(relation, schema))
    for batch, bad in reader(snapshot, relation, part):
        if bad and not keep_bad:
            column, text = bad[0].column, bad[0].text
            out.discard()
            raise ValueRangeError(
                f"value {text!r} does not fit {relation.table}.{column} (lake type {schema.field(column).type})",
                where=f"baseline of {relation.table}",
                hint=f'keep the column as text with `types: {{"{relation.table}.{column}": string}}`, or set '
                "`on_bad_value: quarantine` to load NULL in its place",
            )
        out.write(batch)
    return _Loaded(out.close(), out.rows)


def _ranged(relation: Relation, schema: pa.Schema) -> list[str]:
    """Key columns whose smallest and largest value are worth keeping: they let a merge skip files."""
    simple = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)
    return [k for k in relation.key if any(like(schema.field(k).type) for like in simple)]
