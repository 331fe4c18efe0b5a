"""The small tables of a task: how they are read, appended to, changed and trimmed.

`declarations` has their names, columns and keys. A `StateTable` is append-only: each row gets the next
`number` and the time `at` which it is written, and the newest row of a key counts. A `KeyedTable` has one row
for each key, because other programs read it: it is replaced as a whole, on the version that was read.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import CommitFailedError

from ..errors import ConfigError, OvertakenError, TailraceError
from ..lake import delta as lake
from ..lake import log_retention, removed
from ..lake.failpoints import reach

Row = dict[str, Any]
T = TypeVar("T")
NUMBER, AT = "number", "at"
APP = "tailrace/rows"
"""App id under which a state table keeps the number of its newest row."""
_TRIES = 100
_TRIM_FROM = 100
"""A table is trimmed when more than this many rows, and more than half of all rows, are not needed."""
_TIDY_EVERY = 50
"""Commits after which old versions of a keyed table are removed."""


@dataclass(frozen=True)
class Declaration:
    """One small table.

    Attributes:
        name: its folder below `<home>/control`.
        columns: names and types, besides `number` and `at`.
        key: the columns that say what a row is about.
        trimmed: which rows are removed, and when.
        fail_point: the point in `lake.failpoints` before each append.
    """

    name: str
    columns: tuple[tuple[str, pa.DataType], ...]
    key: tuple[str, ...]
    trimmed: str
    fail_point: str

    @property
    def schema(self) -> pa.Schema:
        """All columns of the table."""
        return pa.schema([(NUMBER, pa.int64()), (AT, pa.timestamp("us", "UTC")), *self.columns])


class _ParsedRows:
    """The parsed rows of the state tables read last. They stay valid as long as `lake` has the same rows."""

    def __init__(self, most: int = 64) -> None:
        self._most, self._lock = most, threading.Lock()
        self._tables: OrderedDict[str, tuple[pa.Table, tuple[Any, ...]]] = OrderedDict()

    def get(self, path: str, parse: Callable[[Row], T]) -> tuple[T, ...]:
        """The rows of a table, in order."""
        table = lake.read(path)
        with self._lock:
            known = self._tables.get(path)
        if known is not None and known[0] is table:
            return known[1]
        found = tuple(parse(row) for row in sorted(table.to_pylist(), key=itemgetter(NUMBER)))
        with self._lock:
            self._tables[path] = table, found
            self._tables.move_to_end(path)
            while len(self._tables) > self._most:
                self._tables.popitem(last=False)
        return found


_parsed = _ParsedRows()


class StateTable(Generic[T]):
    """An append-only table at a path; a missing one has no rows.

    Args:
        path: its folder.
        declared: its declaration.
        parse: makes a value of a row.
    """

    def __init__(self, path: str, declared: Declaration, parse: Callable[[Row], T]) -> None:
        self.path, self.declared, self._parse = path, declared, parse

    def rows(self) -> list[T]:
        """All rows, in order."""
        return [value for _, value in self._keyed()]

    def latest(self) -> dict[Any, T]:
        """The newest row of each key: that column's value, or a tuple of several."""
        return dict(self._keyed())

    @property
    def newest(self) -> int:
        """The number of the newest row; 0 if the table is empty."""
        return lake.progress(self.path, APP) or 0

    def append(self, rows: Iterable[Mapping[str, Any]], *, follows: int | None = None) -> int:
        """Appends rows in one commit, and returns the number of the last one.

        Args:
            rows: without `number` and `at`.
            follows: the number of the row that they follow; None: of the newest one.

        Raises:
            OvertakenError: that row is no longer the newest one.
            TailraceError: other processes append all the time, or the table was removed meanwhile.
        """
        new = list(rows)
        for _ in range(_TRIES if new else 0):
            last = self.newest if follows is None else follows
            now, upto = dt.datetime.now(dt.timezone.utc), last + len(new)
            numbered = [{**row, NUMBER: n, AT: now} for n, row in enumerate(new, last + 1)]
            try:
                with removed.told(self.path):
                    reach(self.declared.fail_point)
                    made = pa.Table.from_pylist(numbered, self.declared.schema)
                    lake.append(self.path, made, progress={APP: upto}, after={APP: last or None})
                return upto
            except (OvertakenError, CommitFailedError):  # another process used these numbers
                if follows is not None:
                    raise
        if new:
            raise TailraceError(
                "other processes write to the table faster than this one",
                where=self.path,
                hint="run the command again",
            )
        return self.newest

    def trim(self, stays: Callable[[pa.Table], pa.ChunkedArray] | None = None) -> None:
        """Removes rows once they are most of the table; a concurrent commit leaves all for the next call.

        Args:
            stays: returns which rows stay; None: the newest of each key.
        """
        if not lake.exists(self.path):
            return
        version, rows = lake.read_at(self.path)
        kept = rows.filter((stays or self._are_newest)(rows))
        if rows.num_rows > _TRIM_FROM + 2 * kept.num_rows:
            files = lake.write_part(self.path, kept)
            lake.overwrite(self.path, files, schema=None, progress={}, only_after=version)

    def _are_newest(self, rows: pa.Table) -> pa.ChunkedArray:
        newest = rows.group_by(list(self.declared.key)).aggregate([(NUMBER, "max")])
        return pc.is_in(rows[NUMBER], newest[f"{NUMBER}_max"].combine_chunks())

    def _keyed(self) -> tuple[tuple[Any, T], ...]:
        if not lake.exists(self.path):
            return ()
        key = itemgetter(*self.declared.key)
        return _parsed.get(self.path, lambda row: (key(row), self._parse(row)))


class KeyedTable:
    """A table with one row for each key: other programs read it as it is.

    Args:
        path: its folder.
        schema: its columns.
        fail_point: the point in `lake.failpoints` before each commit.
    """

    def __init__(self, path: str, schema: pa.Schema, fail_point: str) -> None:
        self.path, self._schema, self._fail_point = path, schema, fail_point

    def rows(self) -> list[Row]:
        """All rows; a missing table has none."""
        return self.read()[1]

    def read(self) -> tuple[int | None, list[Row]]:
        """The version of the table (None if it is missing) and its rows."""
        if not lake.exists(self.path):
            return None, []
        version, found = lake.read_at(self.path)
        return version, found.to_pylist()

    def change(self, work: Callable[[list[Row]], list[Row]]) -> None:
        """Replaces the rows by the result of `work`, which is called again after a concurrent commit.

        Raises:
            ConfigError: other processes commit all the time.
        """
        for _ in range(_TRIES):
            version, have = self.read()
            made = work([dict(row) for row in have])
            if made == have:
                return
            lake.create(self.path, self._schema)
            files = lake.write_part(self.path, pa.Table.from_pylist(made, schema=self._schema))
            reach(self._fail_point)
            done = lake.overwrite(self.path, files, schema=self._schema, progress={}, only_after=version or 0)
            if done is not None:
                if done % _TIDY_EVERY == 0:  # each commit leaves the file of the previous one
                    log_retention.tidy(self.path)
                return
        raise ConfigError("the table is constantly being written by other processes", where=self.path)
