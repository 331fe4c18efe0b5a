"""Ledger tables that stay small however long a task runs: their rows are added up, and old ones removed.

A ledger is a Delta table that is appended to with every batch. Its column `kind` distinguishes three kinds
of rows:

- NULL: appended since the last fold, in no total yet;
- `past`: in the totals, kept for readers of single batches;
- `total`: one row for each value of `table` (NULL: of the batches themselves) over all rows except
  the new ones: sums, of all other columns the last value, and in `gone` up to where rows were removed.

`fold` turns new rows into past ones and adds them to the totals, `trim` removes past ones. Each is one
commit on the version that was read, or none: nothing is counted twice or lost, if other processes append
meanwhile, or at any end of a process. A file holds one kind of rows, and its name begins with the kind; that
saves reading, no more: what a row is, its column says.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ..lake import delta as lake
from ..lake import guards
from ..lake.failpoints import reach
from ..lake.one_commit import commit_actions
from ..lake.opened import open_table
from ..model.positions import ChangeNumber, order_key

NEW, PAST, TOTAL = None, "past", "total"
FOLD_EVERY = 32
"""A ledger is folded after this number of commits: the maximum number of small files that a reader opens."""
_TRIES = 8
_LAST = (1 << 63) - 1
_BATCH_ROWS = 32 * 1024
_SMALL_FILE = 8 << 20
_HELD = ["upto", "table", "kind"]
_NULLS_KEPT = pc.ScalarAggregateOptions(skip_nulls=False)
_NOTHING_IS_0 = pc.ScalarAggregateOptions(min_count=0)


@dataclass(frozen=True)
class Book:
    """A ledger, and how its totals are computed: its own columns, those that are summed, those that order
    rows (NULL first), the column whose greatest removed value is kept in `gone`, and the column with the time
    at which a row was written."""

    columns: pa.Schema
    sums: tuple[str, ...]
    order: tuple[str, ...]
    gone: str
    time: str

    @cached_property
    def schema(self) -> pa.Schema:
        """All columns."""
        return pa.schema([*self.columns, ("kind", pa.string()), ("gone", pa.int64())])


@dataclass(frozen=True)
class File:
    """A file of a ledger: path, kind as in its name, bytes, the range of change numbers in it, and when the
    last of its rows was written (None: unknown)."""

    path: str
    kind: str | None
    size: int
    low: ChangeNumber | None
    high: ChangeNumber | None
    written: dt.datetime | None

    def meets(self, after: int, upto: int) -> bool:
        """Whether it may contain change numbers in (after, upto]."""
        return (self.high is None or self.high > after) and (self.low is None or self.low <= upto)


class Ledger:
    """One version of a ledger table; a missing table has no rows.

    Attributes:
        version: the table's; None if it is missing.
        files: its files, in order.
        progress: that of the application `app`; None: nothing yet.
    """

    def __init__(self, path: str, book: Book, app: str = "") -> None:
        self.path, self._book = path, book
        self.version: int | None = None
        self.files = list[File]()
        self.progress: ChangeNumber | None = None
        if lake.exists(path):
            with lake.opened(path) as now:
                self.version = now.version()
                self.progress = lake.reached(now, app) if app else None
                self.files = sorted(_files(now, book), key=_order)

    def totals(self, columns: Sequence[str] | None = None) -> pa.Table:
        """One row per table, over all rows ever written; also one for the batches themselves."""
        names = set(columns or self._book.schema.names) | {*self._book.order, "table", "gone", "kind"}
        found = self.rows(
            [f for f in self.files if f.kind != PAST], [n for n in self._book.schema.names if n in names]
        )
        return add_up(found.filter(_is_not(found, PAST)), self._book)

    def batches(
        self,
        columns: Sequence[str] | None = None,
        after: ChangeNumber | None = None,
        upto: ChangeNumber | None = None,
        tables: Collection[str] | None = None,
        files: Sequence[File] | None = None,
    ) -> pa.Table:
        """Rows with change numbers in (after, upto] that exist individually, new and past ones; only of
        `tables` or `files` if given. None: without that limit."""
        among = self.files if files is None else files
        low, high = order_key(after), _LAST if upto is None else upto
        files = [f for f in among if f.kind != TOTAL and f.meets(low, high)]
        names = [n for n in self._book.schema.names if columns is None or n in {*columns, "kind"}]
        where = (pc.field("upto") > low) & (pc.field("upto") <= high)
        if tables is not None:
            where &= pc.field("table").isin(sorted(tables))
        found = self.rows(files, names, where)
        return found.filter(_is_not(found, TOTAL))

    def rows(
        self, files: Sequence[File], columns: Sequence[str], where: pc.Expression | None = None
    ) -> pa.Table:
        """Rows of some files."""
        return self._dataset(files).to_table(columns=list(columns), filter=where)

    def streamed(self, files: Sequence[File]) -> Iterator[pa.Table]:
        """All rows of some files, file by file, in batches."""
        for one in files:
            few = {"batch_size": _BATCH_ROWS, "batch_readahead": 1, "fragment_readahead": 1}
            for batch in self._dataset([one]).to_batches(use_threads=False, **few):
                yield pa.Table.from_batches([batch])

    def replace(self, old: Sequence[File], new: Sequence[lake.AddedFile]) -> bool:
        """Removes files and adds others, in one commit on this version; False if that is no longer the
        newest one."""
        if self.version is None:
            return False
        delta, now = open_table(self.path, version=self.version), int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [RemoveAction(f.path, True, now, f.size, {}) for f in old]
        actions += [AddAction(f.path, f.size, {}, f.modified, True, f.stats) for f in new]
        reach("ledger.replace")
        guards.check()
        try:
            commit_actions(delta, actions)
        except CommitFailedError:
            return False
        return True

    def _dataset(self, files: Sequence[File]) -> ds.Dataset:
        fs, folder = lake.filesystem(self.path)
        names = [f"{folder}/{f.path}" for f in files]
        return ds.dataset(names, schema=self._book.schema, format="parquet", filesystem=fs)


def fold(path: str, book: Book) -> bool:
    """Adds new rows to the totals; False if others wrote all the time, and it is left to the next time."""
    return _again(lambda: _fold(Ledger(path, book), book))


def trim(
    path: str, book: Book, keep: Callable[[pa.Table], pa.ChunkedArray], old: Callable[[File], bool], many: int
) -> bool:
    """Removes past rows; False if others wrote all the time.

    Args:
        keep: which rows stay, given their columns `upto`, `table` and the ledger's time; it is asked about
            whole batches.
        old: whether a large file is old enough to be asked about.
        many: small files are read, and joined, once there are that many.
    """
    done = True
    for group in _groups(Ledger(path, book), old, many):
        done = _again(lambda group=group: _trim(Ledger(path, book), book, group, keep)) and done  # type: ignore[misc]
    return done


def add_up(rows: pa.Table, book: Book) -> pa.Table:
    """Adds up rows and totals: one row of kind `total` for each value of `table`.

    >>> columns = pa.schema([("table", pa.string()), ("upto", pa.int64()), ("rows", pa.int64())])
    >>> book = Book(columns, ("rows",), ("upto",), "upto", "at")
    >>> rows = pa.table({"table": ["a", "b", "a"], "upto": [1, 1, 2], "rows": [10, 20, 30],
    ...                  "kind": ["total", None, None], "gone": [1, None, None]}, book.schema)
    >>> [tuple(r.values()) for r in add_up(rows, book).to_pylist()]
    [('a', 2, 40, 'total', 1), ('b', 1, 20, 'total', None)]
    """
    if not rows.num_rows:
        return rows
    names = rows.schema.names
    order = pa.table({n: pc.fill_null(rows[n], -1) for n in book.order})
    rows = rows.take(pc.sort_indices(order, sort_keys=[(n, "ascending") for n in book.order]))
    sums = [n for n in book.sums if n in names]
    lasts = [n for n in names if n not in {*sums, "table", "kind", "gone"}]
    made = rows.group_by("table", use_threads=False).aggregate(
        [(n, "sum", _NOTHING_IS_0) for n in sums]
        + [(n, "last", _NULLS_KEPT) for n in lasts]
        + [("gone", "max")]
    )
    kind = pa.array([TOTAL] * made.num_rows, pa.string())
    columns = {"table": made["table"], "kind": kind, "gone": made["gone_max"]}
    columns |= {n: made[f"{n}_sum"] for n in sums} | {n: made[f"{n}_last"] for n in lasts}
    return pa.table({n: columns[n] for n in names}, schema=rows.schema)


def _fold(one: Ledger, book: Book) -> bool:
    files = [f for f in one.files if f.kind != PAST]
    if not any(f.kind is NEW for f in files):
        return True
    totals = book.schema.empty_table()
    past = lake.Part(one.path, book.schema, name=PAST)
    for rows in one.streamed(files):
        totals = add_up(pa.concat_tables([totals, rows.filter(_is_not(rows, PAST))]), book)
        past.write(_marked(rows.filter(_is_not(rows, TOTAL))))
    made = [past.close(), _part(one.path, TOTAL, totals)]
    return one.replace(files, [f for f in made if f])


def _trim(
    one: Ledger, book: Book, group: Sequence[File], keep: Callable[[pa.Table], pa.ChunkedArray]
) -> bool:
    if not {f.path for f in group} <= {f.path for f in one.files}:
        return True  # another process has done it
    light = one.rows(group, list(dict.fromkeys([*_HELD, book.gone, book.time])))
    stays = keep(light)
    if len(group) == 1 and pc.all(stays, min_count=0).as_py():
        return True
    past, at = lake.Part(one.path, book.schema, name=PAST), 0
    for rows in one.streamed(group):
        past.write(rows.filter(stays.slice(at, rows.num_rows)))
        at += rows.num_rows
    left = light.filter(pc.invert(stays))
    gone = pa.table({"table": left["table"], "gone": left[book.gone].cast(pa.int64())})
    totals = [f for f in one.files if f.kind == TOTAL]
    marked = _with_gone(one.rows(totals, book.schema.names), gone)
    made = [past.close(), _part(one.path, TOTAL, marked)]
    return one.replace([*group, *totals], [f for f in made if f])


def _marked(rows: pa.Table) -> pa.Table:
    kind = pa.array([PAST] * rows.num_rows, pa.string())
    return rows.set_column(rows.schema.get_field_index("kind"), rows.schema.field("kind"), kind)


def _with_gone(totals: pa.Table, gone: pa.Table) -> pa.Table:
    """Totals that include what is removed from now on."""
    most = {
        r["table"]: r["gone_max"] for r in gone.group_by("table").aggregate([("gone", "max")]).to_pylist()
    }
    values = [
        max((v for v in (r["gone"], most.get(r["table"])) if v is not None), default=None)
        for r in totals.select(["table", "gone"]).to_pylist()
    ]
    return totals.set_column(totals.schema.get_field_index("gone"), "gone", pa.array(values, pa.int64()))


def _groups(one: Ledger, old: Callable[[File], bool], many: int) -> list[list[File]]:
    past = [f for f in one.files if f.kind == PAST]
    small = [f for f in past if f.size < _SMALL_FILE]
    large = [[f] for f in past if f.size >= _SMALL_FILE and old(f)]
    return ([small] if len(small) >= many else []) + large


def _again(once: Callable[[], bool]) -> bool:
    return any(once() for _ in range(_TRIES))


def _part(path: str, kind: str, rows: pa.Table) -> lake.AddedFile | None:
    part = lake.Part(path, rows.schema, name=kind)
    part.write(rows)
    return part.close()


def _is_not(rows: pa.Table, kind: str) -> pa.ChunkedArray:
    return pc.fill_null(pc.not_equal(rows["kind"], kind), True)


def _files(delta: DeltaTable, book: Book) -> Iterator[File]:
    actions = pa.table(delta.get_add_actions(flatten=True))
    wanted = ("path", "size_bytes", "min.upto", "max.upto", f"max.{book.time}")
    for r in actions.select([n for n in wanted if n in actions.column_names]).to_pylist():
        kind = r["path"].partition("-")[0]
        kind = kind if kind in (PAST, TOTAL) else NEW
        low, high, written = (r.get(n) for n in wanted[2:])
        yield File(r["path"], kind, r["size_bytes"], low, high, written)


def _order(one: File) -> tuple[int, str]:
    return order_key(one.low), one.path
