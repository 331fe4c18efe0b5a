"""Parts: Parquet files that are streamed into a table's folder, and belong to the table once committed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from ..errors import StorageFullError, room
from .filestats import MoreRanges, stats_json
from .storage import filesystem, make_folder

COMPRESSION = "snappy"
ROW_GROUP = 256 * 1024
_WORDS = frozenset(
    [
        "RECNAME", "header__change_oper", "header__operation", "operation", "change_row_type", "action_taken",
        "result_error", "run_id", "group_id", "subscription_id",
    ]
)  # fmt: skip
"""Columns with few distinct values in LOG, TRACKING, change tables and key logs."""


@dataclass(frozen=True)
class AddedFile:
    """A closed part, ready to be committed: path in the table, bytes, rows, statistics (JSON, in the form of
    the table's format), modification time (ms), and the paths of further files if it has several."""

    path: str
    size: int
    rows: int
    stats: str
    modified: int
    others: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all files."""
        return (self.path, *self.others)

    def to_json(self) -> str:
        """Returns the part as JSON text, which tasks send to the driver."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> AddedFile:
        """Returns the part that `to_json` wrote."""
        said = json.loads(text)
        return AddedFile(**(said | {"others": tuple(said["others"])}))


class PartWriter(Protocol):
    """Writes rows to one or more files of a table, which belong to the table once they are committed."""

    rows: int
    """The number of rows written so far."""

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Adds rows."""

    def close(self) -> AddedFile | None:
        """Finishes the files; None if nothing was written."""

    def close_all(self) -> list[AddedFile]:
        """Finishes the files; empty if nothing was written."""

    def discard(self) -> None:
        """Deletes the files."""


class Part:
    """One Parquet file that is streamed into a table's folder.

    Row groups are written as batches arrive, so memory holds one group. The commit has the minimum and
    maximum of every ordered column (`filestats`), so that readers find files by range.
    """

    def __init__(self, table: str, schema: pa.Schema, *, name: str = "part") -> None:
        self.path = f"{name}-{uuid.uuid4().hex}.parquet"
        self._fs, folder = filesystem(table)
        make_folder(table)
        self._full = f"{folder}/{self.path}"
        self._metadata: list[pq.FileMetaData] = []
        self._more = MoreRanges(schema)
        self.rows = 0
        # Dictionaries are useful for repeated values only, not for unique ones (images, positions).
        words = [f.name for f in schema if f.name in _WORDS]
        with self._room():
            self._writer = pq.ParquetWriter(
                self._full, schema, filesystem=self._fs, compression=COMPRESSION, use_dictionary=words,
                store_schema=False, metadata_collector=self._metadata,
            )  # fmt: skip

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Adds rows; the schema must be the part's."""
        if not batch.num_rows:
            return
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        with self._room():
            self._writer.write_table(table, row_group_size=ROW_GROUP)
        self.rows += table.num_rows
        self._more.of(table)

    def close(self) -> AddedFile | None:
        """Finishes the file; None (and no file) if nothing was written."""
        with self._room():
            self._writer.close()
        if not self.rows:
            self._fs.delete_file(self._full)
            return None
        size, stats = self._fs.get_file_info(self._full).size, self._stats()
        return AddedFile(self.path, size, self.rows, stats, int(time.time() * 1000))

    def close_all(self) -> list[AddedFile]:
        """Finishes the part and returns its files; empty if nothing was written."""
        added = self.close()
        return [] if added is None else [added]

    def _stats(self) -> str:
        """Returns the statistics of the finished file in the form of the table's format."""
        return stats_json(self._metadata[0], self._more.found)

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Deletes the file if the storage is full, to free space."""
        try:
            with room(self._full):
                yield
        except StorageFullError:
            self._give_up()
            self._fs.delete_file(self._full)
            raise

    def discard(self) -> None:
        """Deletes the file."""
        self._writer.close()
        self._fs.delete_file(self._full)

    def __del__(self) -> None:
        self._give_up()

    def _give_up(self) -> None:
        """Marks the writer as closed, so that Arrow does not close it when it is collected and report a full
        storage then."""
        if writer := getattr(self, "_writer", None):
            writer.is_open = False
