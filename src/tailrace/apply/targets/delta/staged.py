"""Changes on their way to several tasks: parquet files in a folder of the table, numbered over all files.

The folder is named with an underscore, so no reader of the table, and no vacuum, looks into it. It is deleted
after the batch; what a killed process left is deleted by a later batch.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from ....engine.columns import KEPT, OP, OPER, SEQ, typed
from ....engine.keys import Places
from ....engine.null_keys import null_key
from ....engine.source import Source
from ....execution import over_rows
from ....lake import delta as lake
from ...images import col

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLDER = "_tailrace"
_LEFT_S = 86_400
STAGED = "file string, bytes bigint"
"""What `StageChanges` answers: the file, and how many bytes its rows take in memory."""


class NumberedChanges(Protocol):
    """The changes of a batch, as several tasks read them: the same, under the same numbers, in each."""

    @property
    def folder(self) -> str:
        """Where tasks leave files for one another."""

    @property
    def table(self) -> str:
        """The source table's name."""

    @property
    def key(self) -> tuple[str, ...]:
        """The table's key."""

    def keys(self) -> Source | None:
        """All changes with their keys alone, to look rows up; None: they take too much memory."""

    def rows(self, wanted: Places) -> Source | None:
        """Some changes with all of their columns, by their numbers, which rise; None: as above."""


class SharedChanges:
    """Changes for the threads of one process: the keys are read once for all of them."""

    def __init__(self, changes: NumberedChanges) -> None:
        self._changes, self._lock = changes, Lock()
        self._keys: tuple[Source | None] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Another process gets the changes as they are: there is nothing to share there."""
        return _same, (self._changes,)

    @property
    def folder(self) -> str:
        """See `NumberedChanges`."""
        return self._changes.folder

    @property
    def table(self) -> str:
        """See `NumberedChanges`."""
        return self._changes.table

    @property
    def key(self) -> tuple[str, ...]:
        """See `NumberedChanges`."""
        return self._changes.key

    def keys(self) -> Source | None:
        """See `NumberedChanges`."""
        with self._lock:
            if self._keys is None:
                self._keys = (self._changes.keys(),)
            return self._keys[0]

    def rows(self, wanted: Places) -> Source | None:
        """See `NumberedChanges`."""
        return self._changes.rows(wanted)


def _same(changes: NumberedChanges) -> NumberedChanges:
    return changes


@contextmanager
def scratch(table: str) -> Iterator[str]:
    """A new folder for one batch of a table, deleted afterwards; with folders that are older than a day."""
    fs, path = lake.filesystem(table)
    for left in fs.get_file_info(pyarrow.fs.FileSelector(f"{path}/{FOLDER}", allow_not_found=True)):
        if left.mtime is not None and left.mtime.timestamp() < time.time() - _LEFT_S:
            fs.delete_dir(left.path)
    name = f"{FOLDER}/{uuid.uuid4().hex}"
    fs.create_dir(f"{path}/{name}", recursive=True)
    try:
        yield f"{table}/{name}"
    finally:
        fs.delete_dir(f"{path}/{name}")


@dataclass(frozen=True)
class StageChanges:
    """Writes the changes of one task to a file; answers one row of `STAGED`.

    Raises:
        ApplyError: a change has NULL in its key.
    """

    staged: StagedChanges
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part, size = lake.Part(self.staged.folder, self.schema), 0
        for batch in batches:
            self._check(batch)
            part.write(typed(batch, self.schema))
            size += batch.nbytes
        added = part.close()
        if added is not None:
            yield pa.record_batch([[added.path], [size]], ["file", "bytes"])

    def _check(self, batch: pa.RecordBatch) -> None:
        for name in self.staged.key:
            if batch[name].null_count and not self.staged.folded:  # folded ones were looked at
                seq = batch.filter(batch[name].is_null())[SEQ][0].as_py()
                raise null_key(self.staged.table, self.staged.key, seq)


@dataclass(frozen=True)
class StagedChanges:
    """The staged changes of a batch; a change's number is its row, counted over all files in order.

    Attributes:
        folder: where the files are.
        table: the table's name, for errors.
        key, schema: the table's.
        folded: one row a key with `OP`; else images with `SEQ` and `OPER`.
        partial: the rows have `KEPT`.
        files: their names.
    """

    folder: str
    table: str
    key: tuple[str, ...]
    schema: pa.Schema
    folded: bool
    partial: bool
    files: tuple[str, ...] = ()

    @property
    def extra(self) -> list[str]:
        """The columns that changes have in addition to the data columns."""
        return [OP, *([KEPT] if self.partial else [])] if self.folded else [SEQ, OPER]

    def keys(self) -> Source:
        """All changes with their keys alone: to look rows up."""
        names = [OP] if self.folded else [SEQ, OPER]
        return self._source(pa.concat_tables(self._tables([*names, *self.key])), partial=False)

    def rows(self, wanted: Places) -> Source:
        """Some changes with all of their columns, by their numbers, which rise."""
        names = [*self.extra, *self.schema.names]
        found, begin = [], 0
        for table in self._tables(names):
            low, high = np.searchsorted(wanted, [begin, begin + table.num_rows])
            found.append(table.take(pa.array(wanted[low:high] - begin)))
            begin += table.num_rows
        return self._source(pa.concat_tables(found), partial=self.partial)

    def _source(self, rows: pa.Table, *, partial: bool) -> Source:
        return Source.of(rows, self.key, self.schema, partial)

    def _tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        data = set(self.schema.names)
        wanted = pa.schema([self.schema.field(n) if n in data else pa.field(n, pa.string()) for n in names])
        fs, folder = lake.filesystem(self.folder)
        yield wanted.empty_table()
        for name in self.files:
            found = pq.ParquetFile(f"{folder}/{name}", filesystem=fs).read(columns=wanted.names)
            yield found.select(wanted.names).cast(wanted)


def stage(changes: DataFrame, staged: StagedChanges, most: int | None) -> StagedChanges | None:
    """Writes changes (the columns of `StagedChanges.extra`, then the data columns) to files of `staged`,
    which has none yet; None when they take more than `most` bytes of memory."""
    extra = [pa.field(n, pa.string()) for n in staged.extra]
    task = StageChanges(staged, pa.schema([*extra, *staged.schema]))
    found = over_rows(changes.select(*map(col, task.schema.names)), task, STAGED).collect()
    if most is not None and sum(r["bytes"] for r in found) > most:
        return None
    return replace(staged, files=tuple(r["file"] for r in found))
