"""Files that the tasks of one batch leave for one another.

They are in a folder whose name begins with an underscore: no reader of the table next to it, and no vacuum,
opens it. It is deleted after the batch; what a killed process left is deleted by a later batch.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from ..engine.columns import typed
from ..errors import room
from ..lake import delta as lake

FOLDER = "_tailrace"
ROW_GROUP = 1 << 16
"""The maximum number of rows of a row group: readers open the groups that they need."""
_LEFT_S = 86_400
_BUFFER = 4 << 20
"""Bytes of rows that are written together."""


@contextmanager
def scratch(table: str) -> Iterator[str]:
    """A new folder for one batch of a table, deleted afterwards; with folders that are older than a day."""
    fs, path = lake.filesystem(table)
    fresh = fs.get_file_info(path).type == pyarrow.fs.FileType.NotFound
    for left in fs.get_file_info(pyarrow.fs.FileSelector(f"{path}/{FOLDER}", allow_not_found=True)):
        if left.mtime is not None and left.mtime.timestamp() < time.time() - _LEFT_S:
            fs.delete_dir(left.path)
    name = f"{FOLDER}/{uuid.uuid4().hex}"
    fs.create_dir(f"{path}/{name}", recursive=True)
    try:
        yield f"{table}/{name}"
    finally:
        fs.delete_dir(f"{path}/{name}")
        for made in (f"{path}/{FOLDER}", path) if fresh else ():  # a preview leaves nothing
            if not fs.get_file_info(pyarrow.fs.FileSelector(made)):
                fs.delete_dir(made)


@dataclass(frozen=True)
class ScratchFile:
    """A written file: its path, its rows, and the bytes that they take in memory."""

    path: str
    rows: int
    bytes: int

    def read(self, columns: Sequence[str] | None = None, begin: int = 0, end: int | None = None) -> pa.Table:
        """The rows from `begin` to `end` (None: the last one)."""
        end = self.rows if end is None else end
        fs, path = lake.filesystem(self.path)
        with pq.ParquetFile(path, filesystem=fs) as file:
            groups, first, at = list[int](), 0, 0
            for group in range(file.num_row_groups):
                many = file.metadata.row_group(group).num_rows
                if at < end and at + many > begin:
                    first = at if not groups else first
                    groups.append(group)
                at += many
            rows = file.read_row_groups(groups, columns=columns, use_threads=False)
        return rows.slice(begin - first if groups else 0, end - begin)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, a row group at a time."""
        fs, path = lake.filesystem(self.path)
        with pq.ParquetFile(path, filesystem=fs) as file:
            yield from file.iter_batches(ROW_GROUP, columns=columns, use_threads=False)


class ScratchWriter:
    """Writes one file of a folder; small pieces are written together."""

    def __init__(self, folder: str, schema: pa.Schema) -> None:
        self._path, self._schema = f"{folder}/{uuid.uuid4().hex}.parquet", schema
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.Table] = []
        self.held = self.rows = self.bytes = 0
        """Bytes that are not written yet; all rows, and their bytes."""

    def write(self, rows: pa.Table) -> None:
        """Adds rows; the schema must be the file's."""
        if not rows.num_rows:
            return
        self._held.append(rows)
        size = rows.nbytes
        self.held, self.rows, self.bytes = self.held + size, self.rows + rows.num_rows, self.bytes + size
        if self.held >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        """Writes what is held."""
        if not self._held:
            return
        with room(self._path):
            if self._writer is None:
                fs, path = lake.filesystem(self._path)
                self._writer = pq.ParquetWriter(
                    path, self._schema, filesystem=fs, compression="snappy", use_dictionary=False
                )
            self._writer.write_table(pa.concat_tables(self._held), row_group_size=ROW_GROUP)
        self._held, self.held = [], 0

    def close(self) -> ScratchFile | None:
        """Finishes the file; None (and no file) if nothing was written."""
        self.flush()
        if self._writer is None:
            return None
        with room(self._path):
            self._writer.close()
        return ScratchFile(self._path, self.rows, self.bytes)


@dataclass(frozen=True)
class WriteRows:
    """A task that writes the rows of a partition to a file of a folder, in the types of a schema."""

    folder: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> ScratchFile | None:
        file = ScratchWriter(self.folder, self.schema)
        for batch in batches:
            file.write(pa.Table.from_batches([typed(batch, self.schema)]))
        return file.close()
