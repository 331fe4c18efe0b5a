"""The files of a kept history: versions in force, which every batch touches, are in other files than closed
ones.

Closed versions are ordered by their end, so that a late event touches the files of its time only. Statistics
of `__END_AT` distinguish the two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from ...engine.change_arrays import Bools
from ...engine.columns import one
from ...engine.history import END_AT, START_AT
from ...engine.history_events import CARRIES, OPERATION, SEQUENCE, UPSERT_EVENT
from ...engine.history_updates import SYSTEM_TO, StartPerKey
from ...errors import room
from ...lake import delta as lake
from ...lake.failpoints import reach
from ...lake.one_commit import commit_actions

FILE, ROW = "__file", "__row"
"""Columns of versions that were read: the index of their file, and of the row in it."""
FILE_ROWS, SMALL_ROWS = 1 << 18, 1 << 14
"""The maximum number of rows of a file, and the number below which the next batch rewrites it."""


@dataclass(frozen=True)
class HistoryFiles:
    """One version of a history's Delta table."""

    path: str
    delta: DeltaTable
    schema: pa.Schema

    def read(self, since: StartPerKey) -> pa.Table:
        """Returns the versions of the given keys that were valid at their start or later, with `FILE` and
        `ROW`."""
        if not len(since):
            return self._nothing()
        which = ds.field(END_AT).is_null() | (ds.field(END_AT) >= since.least)
        return self._rows(which, lambda rows: since.reached(rows, END_AT))

    def everything(self) -> pa.Table:
        """Returns all versions that were not replaced, with `FILE` and `ROW`."""
        return self._rows(None, lambda rows: np.ones(rows.num_rows, np.bool_))

    def cut(self, truncates: pa.Table, key: tuple[str, ...]) -> StartPerKey:
        """Returns the keys that had or got a row when the table was truncated, from then on."""
        found = [pa.table({n: self._nothing()[n] for n in key} | {SEQUENCE: truncates[SEQUENCE][:0]})]
        for at in truncates[SEQUENCE].unique():
            which = ds.field(END_AT).is_null() | (ds.field(END_AT) >= at)
            for _, rows, _ in self._batches(which & (ds.field(START_AT) <= at)):
                mine = _flags(pc.less_equal(rows[START_AT], at)) & _flags(
                    pc.or_kleene(rows[END_AT].is_null(), pc.greater_equal(rows[END_AT], at))
                )
                keys = rows.select(list(key)).filter(pa.array(mine & self._current(rows)))
                begin = pa.chunked_array([pa.repeat(at, keys.num_rows)])
                found.append(keys.append_column(SEQUENCE, begin))
        return StartPerKey(pa.concat_tables(found), key).also(StartPerKey(found[0], key))

    def exchange(self, gone: pa.Table, came: pa.Table, progress: dict[str, int]) -> int:
        """Replaces versions (`gone`: `FILE`, `ROW`) by others, in one commit on exactly this table version.

        Raises:
            CommitFailedError: another process has committed in between.
        """
        found = self._places(None)
        old = {f: np.asarray(one(gone[ROW].filter(pc.equal(gone[FILE], f)))) for f in set(_ints(gone[FILE]))}
        touched = set(old) | {k for k, (_, rows) in enumerate(found) if rows < SMALL_ROWS}
        if not gone.num_rows and not came.num_rows:
            touched = set()
        parts = _NewFiles(self.path, self.schema)
        for k in sorted(touched):
            for row, batch, _ in self._of(found[k][0]):
                left = np.ones(batch.num_rows, np.bool_)
                if k in old:
                    mine = old[k][(old[k] >= row) & (old[k] < row + batch.num_rows)] - row
                    left[mine] = False
                parts.write(batch.filter(pa.array(left)))
        parts.write(came.select(self.schema.names).cast(self.schema))
        added, now = parts.close(), int(time.time() * 1000)
        sizes = {a["path"]: a["size_bytes"] for a in _actions(self.delta)}
        removed = [RemoveAction(p, True, now, sizes[p], {}) for p in (found[k][0] for k in sorted(touched))]
        reach("history.exchange")
        with room(self.path):
            commit_actions(
                self.delta,
                [*removed, *(AddAction(p.path, p.size, {}, p.modified, True, p.stats) for p in added)],
                progress=[Transaction(k, v) for k, v in progress.items()],
            )
        return int(self.delta.version()) + 1

    def _places(self, which: ds.Expression | None) -> list[tuple[str, int]]:
        """Returns paths and row numbers of the files that may have matching rows, in a stable order."""
        rows = {a["path"]: a["num_records"] or 0 for a in _actions(self.delta)}
        found = lake.dataset(self.delta).get_fragments(filter=which)
        return [(p, rows[p]) for p in sorted(f.path.removeprefix("/") for f in found)]

    def _of(self, path: str) -> Iterator[tuple[int, pa.Table, str]]:
        """Yields a file's rows in order: the index of the first row, a batch, and the path."""
        fs, folder = lake.filesystem(self.path)
        file = ds.ParquetFileFormat().make_fragment(f"{folder}/{path}", fs)
        row = 0
        for batch in file.to_batches(schema=self.schema, columns=self.schema.names):
            yield row, pa.Table.from_batches([batch]), path
            row += batch.num_rows

    def _batches(self, which: ds.Expression | None) -> Iterator[tuple[tuple[int, int], pa.Table, str]]:
        places = {path: k for k, (path, _) in enumerate(self._places(None))}
        for path, _ in self._places(which):
            for row, batch, _ in self._of(path):
                yield (places[path], row), batch, path

    def _rows(self, which: ds.Expression | None, mine: object) -> pa.Table:
        parts = [self._nothing()]
        for (file, row), batch, _ in self._batches(which):
            flags = mine(batch) & self._current(batch)  # type: ignore[operator]
            found = batch.filter(pa.array(flags))
            found = found.append_column(FILE, pa.array(np.full(found.num_rows, file)))
            parts.append(found.append_column(ROW, pa.array(np.flatnonzero(flags) + row)))
        return pa.concat_tables(parts).combine_chunks()

    def _nothing(self) -> pa.Table:
        return pa.schema([*self.schema, (FILE, pa.int64()), (ROW, pa.int64())]).empty_table()

    def _current(self, rows: pa.Table) -> Bools:
        """Returns which versions were not replaced."""
        if SYSTEM_TO not in rows.column_names:
            return np.ones(rows.num_rows, np.bool_)
        return _flags(rows[SYSTEM_TO].is_null())


class _NewFiles:
    """Writers of new files, one for versions in force and one for closed ones."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._open: dict[bool, lake.Part] = {}
        self._done: list[lake.AddedFile] = []

    def write(self, rows: pa.Table) -> None:
        """Adds versions, closed ones ordered by their end."""
        current = _flags(rows[END_AT].is_null())
        if SYSTEM_TO in rows.column_names:
            current &= _flags(rows[SYSTEM_TO].is_null())
        self._add(True, rows.filter(pa.array(current)))
        closed = rows.filter(pa.array(~current))
        self._add(False, closed.take(pc.sort_indices(closed, [(END_AT, "ascending")])))

    def _add(self, current: bool, rows: pa.Table) -> None:
        at = 0
        while at < rows.num_rows:
            if current not in self._open:
                self._open[current] = lake.Part(self._path, self._schema)
            part = self._open[current]
            some = rows.slice(at, FILE_ROWS - part.rows)
            part.write(some)
            at += some.num_rows
            if part.rows >= FILE_ROWS:
                self._finish(current)

    def _finish(self, current: bool) -> None:
        if (added := self._open.pop(current).close()) is not None:
            self._done.append(added)

    def close(self) -> list[lake.AddedFile]:
        """Returns the written files."""
        for current in list(self._open):
            self._finish(current)
        return self._done


def _actions(delta: DeltaTable) -> list[dict[str, Any]]:
    return list(pa.table(delta.get_add_actions(flatten=True)).to_pylist())


def _ints(column: pa.ChunkedArray) -> list[int]:
    return [int(v) for v in np.unique(np.asarray(one(column)))]


def _flags(column: pa.ChunkedArray | pa.Array) -> Bools:
    found = column if isinstance(column, pa.Array) else one(column)
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def fill_columns(path: str, values: Mapping[str, pa.Array]) -> None:
    """Sets columns to a value in all rows of a table; of events, in those that carry a whole row."""
    if not values:
        return

    def once(now: DeltaTable) -> int | None:
        schema = lake.arrow_schema(now)
        part = lake.Part(path, schema)
        for batch in lake.dataset(now).to_batches():
            rows = pa.Table.from_batches([batch]).cast(schema)
            whole = np.ones(rows.num_rows, np.bool_)
            if OPERATION in schema.names:
                whole = _flags(pc.equal(rows[OPERATION], UPSERT_EVENT)) & _flags(rows[CARRIES].is_null())
            for name, value in values.items():
                place, kind = schema.get_field_index(name), schema.field(name).type
                column = pc.if_else(pa.array(whole), value[0].cast(kind), pa.scalar(None, kind))
                rows = rows.set_column(place, schema.field(name), column)
            part.write(rows)
        added = part.close()
        files = [added] if added else []
        return lake.overwrite(path, files, schema=schema, progress={}, only_after=now.version())

    lake.on_newest(path, once)
