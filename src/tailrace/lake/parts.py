"""Parts: parquet files that are streamed into a table's folder and belong to the table once they are
committed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from ..errors import StorageFullError, room
from .filestats import MoreRanges, stats_json

LOCAL = "file://"
"""How an address on this machine begins."""
COMPRESSION = "snappy"
ROW_GROUP = 256 * 1024
_WORDS = frozenset(
    [
        "RECNAME", "header__change_oper", "header__operation", "operation", "change_row_type", "action_taken",
        "result_error", "run_id", "group_id", "subscription_id",
    ]
)  # fmt: skip
"""Columns with few distinct values, in LOG, TRACKING, change tables and key logs."""


@dataclass(frozen=True)
class AddedFile:
    """A closed parquet part, ready to be committed: path inside the table, bytes, rows, Delta statistics
    (JSON text), modification time (ms)."""

    path: str
    size: int
    rows: int
    stats: str
    modified: int

    def to_json(self) -> str:
        """The part as JSON text: tasks hand it to the driver."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> AddedFile:
        """The part that `to_json` wrote."""
        return AddedFile(**json.loads(text))


def filesystem(table: str) -> tuple[pa.fs.FileSystem, str]:
    """Arrow's file system for a table path or URI, and the path in it.

    >>> filesystem("file:///lake%5B1%5D/shop.item/")[1], filesystem("file:///lake[1]/shop.item/")[1]
    ('/lake[1]/shop.item', '/lake[1]/shop.item')
    """
    if table.startswith(LOCAL):  # Arrow refuses signs that delta-rs leaves as they are
        return pa.fs.LocalFileSystem(), str(Path(unquote(table.removeprefix(LOCAL))))
    if "://" in table:
        fs, path = pa.fs.FileSystem.from_uri(table)
        return fs, path
    return pa.fs.LocalFileSystem(), str(Path(table).absolute())


class Part:
    """One parquet file being streamed into a table's folder.

    Row groups are written as batches come; memory stays at one group. The commit carries the smallest and
    largest value of every column that has an order (`filestats`), so readers find files by range.
    """

    def __init__(self, table: str, schema: pa.Schema, *, name: str = "part") -> None:
        self.path = f"{name}-{uuid.uuid4().hex}.parquet"
        self._fs, folder = filesystem(table)
        self._fs.create_dir(folder, recursive=True)
        self._full = f"{folder}/{self.path}"
        self._metadata: list[pq.FileMetaData] = []
        self._more = MoreRanges(schema)
        self.rows = 0
        # Dictionaries pay off for repeated values only; unique bytes (images, positions) would be hashed in
        # vain.
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
        size, stats = self._fs.get_file_info(self._full).size, stats_json(self._metadata[0], self._more.found)
        return AddedFile(self.path, size, self.rows, stats, int(time.time() * 1000))

    @contextmanager
    def _room(self) -> Iterator[None]:
        """If there is no space, deletes the file to free some."""
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
        """An open file is nobody's: Arrow's writer would close it when it is collected, and report it where
        there is no room for that."""
        if writer := getattr(self, "_writer", None):
            writer.is_open = False
