"""Temporary files by which the tasks of one batch exchange rows.

They are in a folder whose name begins with an underscore, which readers of the table and VACUUM ignore. The
folder is deleted after the batch. Folders of killed processes are deleted by a later batch.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..engine.columns import typed
from ..errors import room
from ..lake import delta as lake
from ..lake.folders import is_folder, last_change, remove_folder, subfolders
from ..lake.storage import filesystem, is_remote, join, make_folder

FOLDER = "_tailrace"
ROW_GROUP = 1 << 16
"""The maximum number of rows of a row group: readers open the groups that they need."""
_MAX_AGE_S = 86_400
_BUFFER = 4 << 20
"""Bytes of rows that are written together."""


@contextmanager
def scratch(table: str) -> Iterator[str]:
    """Creates a folder for one batch of a table and deletes it afterwards. Also deletes folders of earlier
    batches that are older than a day."""
    every = join(table, FOLDER)
    is_new = not is_folder(table)
    for name in subfolders(every):
        if time.time() - last_change(join(every, name)) > _MAX_AGE_S:
            remove_folder(join(every, name))
    mine = join(every, uuid.uuid4().hex)
    make_folder(mine)
    try:
        yield mine
    finally:
        remove_folder(mine)
        for parent in (every, table) if is_new and not is_remote(table) else ():
            with suppress(OSError):  # a preview must not create the table's folder
                Path(filesystem(parent)[1]).rmdir()


@dataclass(frozen=True)
class ScratchFile:
    """A written file: its path, its number of rows, and their bytes in memory."""

    path: str
    rows: int
    bytes: int

    def read(self, columns: Sequence[str] | None = None, start: int = 0, end: int | None = None) -> pa.Table:
        """Returns the rows from `start` to `end` (exclusive; None: all following rows)."""
        end = self.rows if end is None else end
        fs, path = lake.filesystem(self.path)
        with pq.ParquetFile(path, filesystem=fs) as file:
            groups, first, at = list[int](), 0, 0
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if at < end and at + count > start:
                    first = at if not groups else first
                    groups.append(group)
                at += count
            rows = file.read_row_groups(groups, columns=columns, use_threads=False)
        return rows.slice(start - first if groups else 0, end - start)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields all rows, one row group at a time."""
        fs, path = lake.filesystem(self.path)
        with pq.ParquetFile(path, filesystem=fs) as file:
            yield from file.iter_batches(ROW_GROUP, columns=columns, use_threads=False)


class ScratchWriter:
    """Writes one file of a folder; small tables are collected and written together.

    Attributes:
        unwritten: bytes that are not written yet.
        rows, bytes: all rows, and their bytes.
    """

    def __init__(self, folder: str, schema: pa.Schema) -> None:
        self._path, self._schema = f"{folder}/{uuid.uuid4().hex}.parquet", schema
        self._writer: pq.ParquetWriter | None = None
        self._buffer: list[pa.Table] = []
        self.unwritten = self.rows = self.bytes = 0

    def write(self, rows: pa.Table) -> None:
        """Adds rows; the schema must be the file's."""
        if not rows.num_rows:
            return
        size = rows.nbytes
        self._buffer.append(rows)
        self.rows += rows.num_rows
        self.unwritten, self.bytes = self.unwritten + size, self.bytes + size
        if self.unwritten >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        """Writes the collected rows."""
        if not self._buffer:
            return
        with room(self._path):
            if self._writer is None:
                fs, path = lake.filesystem(self._path)
                self._writer = pq.ParquetWriter(
                    path, self._schema, filesystem=fs, compression="snappy", use_dictionary=False
                )
            self._writer.write_table(pa.concat_tables(self._buffer), row_group_size=ROW_GROUP)
        self._buffer, self.unwritten = [], 0

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
    """Writes the rows of a partition to a file of a folder, in the types of a schema."""

    folder: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> ScratchFile | None:
        file = ScratchWriter(self.folder, self.schema)
        for batch in batches:
            file.write(pa.Table.from_batches([typed(batch, self.schema)]))
        return file.close()
