"""Creates a task's state after a long run directly in its tables, without a source or Spark, in half a
minute.

`settled` creates the state after these batches with maintenance: totals of all batches, single batches of
the last week, more batches of a paused table, and the last batches without totals. The tables have as many
versions as after a commit per batch.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..config.task import Task
from ..lake import delta as lake
from ..lake import log
from ..lake.opened import open_table
from ..model import sequence
from ..model.change import Column, Relation
from ..model.positions import ChangeNumber, Position
from ..state import commands, ledger, rolling
from ..state.baselines import Baseline, write_baseline
from ..state.declarations import APPLIED, STORED
from ..state.ledger import AppliedTable, Stored
from ..store import tracking

APPLIED_APP = "tailrace/applied"
NUMBERS_A_BATCH = 20
_CHUNK, _FILE = 20_000, 200_000


@dataclass(frozen=True)
class Year:
    """The amounts of a long run.

    Attributes:
        batches: store batches in `days` days.
        tables: tables.
        in_a_batch: tables with changes per batch.
        kept_days: days for which single batches are kept.
        paused_days: the same for the paused table.
        tail: batches without totals.
        commits: commits in Delta's logs.
    """

    batches: int = 2_000_000
    days: int = 365
    tables: int = 300
    in_a_batch: int = 5
    kept_days: int = 7
    paused_days: int = 30
    tail: int = 25
    commits: int = 300

    def name(self, k: int) -> str:
        """Returns the name of a table."""
        return f"shop.table_{k:03}"

    @property
    def names(self) -> list[str]:
        """All table names; the first table is paused."""
        return [self.name(k) for k in range(self.tables)]

    def back(self, days: float) -> int:
        """Returns the number of batches in that many days."""
        return int(self.batches * days / self.days)


def settled(task: Task, year: Year) -> None:
    """Creates the state of a task that was maintained all the time."""
    _around(task, year)
    newest = year.batches - year.tail
    old, week = newest - year.back(year.paused_days), newest - year.back(year.kept_days)
    for name, book in (("stored", STORED), ("applied", APPLIED)):
        path = task.control_path(name)
        lake.create(path, book.schema, lake.PROPERTIES)
        files = [_total(path, book, year, newest)]
        if book is STORED:  # the paused table needs more
            files += _past(path, book, year, old, week, [0])
        files += _past(path, book, year, week, newest, range(year.tables))
        app = ledger.STORE_APP if book is STORED else APPLIED_APP
        lake.commit(path, files, progress={app: newest * NUMBERS_A_BATCH})
        _at_version(path, 2 * newest, year.commits)
    _tail(task, year)


def _around(task: Task, year: Year) -> None:
    """Writes LOG, TRACKING, layouts, baselines and commands."""
    now = dt.datetime.now(dt.timezone.utc)
    upto = year.batches * NUMBERS_A_BATCH
    relations = [_relation(year.name(k), k) for k in range(year.tables)]
    log.record_layouts(
        task.relations_path,
        [log.Layout(r, n.to_bytes(20, "big"), sequence.make(0, n)) for n in range(6) for r in relations],
    )
    taken = [Baseline(r.table, r, Position("0" * 40), 1000, 1, now, 1.0) for r in relations]
    write_baseline(task.control_path("baselines"), *taken)
    commands.give(task.commands_path, commands.PAUSE, [year.name(0)], why="a year", who="test")
    lake.create(task.log_path, log.SCHEMA, log.PROPERTIES)
    lake.create(task.tracking_path, tracking.SCHEMA)
    words = {f"tailrace/position/{k}": 7 for k in range(3)}
    for path, progress in (
        (task.log_path, {**words, "tailrace/number": upto, "tailrace/time": 1}),
        (task.tracking_path, {ledger.STORE_APP: upto}),
    ):
        lake.commit(path, [], progress=progress)
        _at_version(path, year.batches, year.commits)


def _relation(table: str, k: int) -> Relation:
    key = Column("id", 1, "bigint", "int8", "int", key=True)
    rest = [Column(f"column_{n}", n, "string", "text", "text") for n in range(2, 21)]
    schema, _, name = table.partition(".")
    return Relation(1000 + k, schema, name, "d", (key, *rest))


def _past(
    path: str,
    book: rolling.Book,
    year: Year,
    first: int,
    last: int,
    among: Iterable[int],
    schema: pa.Schema | None = None,
) -> list[lake.AddedFile]:
    """Writes rows of the batches (first, last], for some tables, as they are kept."""
    schema = schema or book.schema
    name = rolling.PAST if "kind" in schema.names else "part"
    found = []
    for begin in range(first, last, _FILE):
        part, end = lake.Part(path, schema, name=name), min(begin + _FILE, last)
        for start in range(begin, end, _CHUNK):
            rows = _rows(book, year, start, min(start + _CHUNK, end), list(among))
            part.write(rows.select(schema.names))
        found.append(part.close())
    return [one for one in found if one]


def _rows(book: rolling.Book, year: Year, first: int, last: int, several: list[int]) -> pa.Table:
    batches = np.arange(first + 1, last + 1)
    each = min(year.in_a_batch, len(several))
    which = np.asarray(several)[(batches[:, None] * 7 + np.arange(each) * 13) % len(several)]
    number = np.repeat(batches, each + 1)
    names = np.asarray([None, *year.names], dtype=object)
    table = names[np.hstack([np.zeros((len(batches), 1), np.int64), which + 1]).reshape(-1)]
    return _columns(book, year, number, pa.array(table, pa.string()))


def _total(path: str, book: rolling.Book, year: Year, newest: int) -> lake.AddedFile:
    table = pa.array([None, *year.names], pa.string())
    number = np.full(year.tables + 1, newest)
    rows = _columns(book, year, number, table)
    n = rows.num_rows
    values = {"kind": pa.array([rolling.TOTAL] * n), "gone": pa.array(np.full(n, year.back(1)), pa.int64())}
    if book is STORED:
        values["rows"] = pa.array(np.full(n, 40_000), pa.int64())
    part = lake.Part(path, book.schema, name=rolling.TOTAL)
    part.write(pa.table({f.name: values.get(f.name, rows[f.name]) for f in book.schema}, schema=book.schema))
    done = part.close()
    assert done is not None  # noqa: S101 - it has rows
    return done


def _columns(book: rolling.Book, year: Year, number: npt.NDArray[np.int64], table: pa.Array) -> pa.Table:
    """Returns a ledger's columns for rows of batches."""
    n, upto = len(number), number * NUMBERS_A_BATCH
    begin = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=year.days)
    micros = int(begin.timestamp() * 1e6) + number * (year.days * 86_400_000_000 // year.batches)
    at = pa.array(micros, pa.timestamp("us", "UTC"))
    one = pa.array(np.full(n, 4), pa.int64())
    counts = pa.array([json.dumps({"rows": 4, "I": 2, "U": 2, "absent": 0, "bytes": 2000})] * n)
    said = {
        "upto": pa.array(upto), "change_seq": pa.array([f"{v:035}" for v in upto.tolist()]),
        "position": pa.array([f"{v:040X}" for v in upto.tolist()]),
        "commit_time": at, "applied_at": at, "stored_at": at, "committed_at": at, "table": table,
        "relid": one, "rows": one, "counts": counts, "version": pa.array(number), "number": pa.array(number),
        "inserted": one, "updated": one, "deleted": one, "missing": one,
        "plan": pa.array(["task_local"] * n), "seconds": pa.array(np.full(n, 0.1)),
        "kind": pa.array([rolling.PAST] * n), "gone": pa.nulls(n, pa.int64()),
    }  # fmt: skip
    return pa.table({f.name: said[f.name] for f in book.schema}, schema=book.schema)


def _tail(task: Task, year: Year) -> None:
    """Writes batches without totals, one small commit each."""
    for batch in range(year.batches - year.tail + 1, year.batches + 1):
        upto, now = batch * NUMBERS_A_BATCH, dt.datetime.now(dt.timezone.utc)
        names = [year.name((batch * 7 + k) % year.tables) for k in range(year.in_a_batch)]
        counts = {"rows": 4, "I": 2, "U": 2}
        one = Stored(
            ChangeNumber(upto),
            sequence.make(0, upto),
            Position(f"{upto:040X}"),
            now,
            dict.fromkeys(names, counts),
        )
        ledger.write_stored(task.control_path("stored"), one, dict.fromkeys(names, 1))
        done = [AppliedTable(t, batch, 2, 2, 0, 0, "task_local", 0.1) for t in names if t != year.name(0)]
        ledger.write_applied(task.control_path("applied"), one, done, APPLIED_APP)


def _at_version(path: str, version: int, commits: int) -> None:
    """Sets a table's version, with a number of older commits still present."""
    delta = open_table(path)
    there = delta.version()
    delta.create_checkpoint()
    folder = Path(path) / "_delta_log"
    (folder / f"{there:020}.checkpoint.parquet").rename(folder / f"{version:020}.checkpoint.parquet")
    last = folder / "_last_checkpoint"
    last.write_text(json.dumps(json.loads(last.read_text()) | {"version": version}))
    newest = folder / f"{there:020}.json"
    for older in range(max(version - commits, there + 1), version + 1):
        shutil.copy(newest, folder / f"{older:020}.json")
    for old in range(there + 1):
        (folder / f"{old:020}.json").unlink(missing_ok=True)
