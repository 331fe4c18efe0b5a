"""Delta tables without a JVM: parquet parts written by Arrow, committed by delta-rs.

A part is streamed to the table's folder first and belongs to the table only once it is committed, so a
crash leaves orphan files (vacuum removes them), never half a commit. Progress travels in the commit itself:
each app id has a version that only grows, and a commit that would not move it forward is skipped.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.schema import Field, Schema
from deltalake.transaction import AddAction

from .filestats import stats_json
from .laketypes import plain_schema

COMPRESSION = "snappy"
ROW_GROUP = 256 * 1024
SMALL_FILE, WHOLE_FILE = 32 << 20, 128 << 20
_T = TypeVar("_T")
_RETRIES = 20
_WORDS = frozenset(
    [
        "RECNAME",
        "header__change_oper",
        "header__operation",
        "operation",
        "change_row_type",
        "action_taken",
        "result_error",
        "run_id",
        "group_id",
        "subscription_id",
    ]
)
"""Columns of few words, in LOG, TRACKING, change tables and key logs."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


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
    """Arrow's file system for a table path or URI, and the path in it."""
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
        self.rows = 0
        # Dictionaries pay for repeated words only; unique bytes (images, positions) would be hashed in vain.
        words = [f.name for f in schema if f.name in _WORDS]
        self._writer = pq.ParquetWriter(
            self._full, schema, filesystem=self._fs, compression=COMPRESSION, use_dictionary=words,
            store_schema=False, metadata_collector=self._metadata,
        )  # fmt: skip

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Adds rows; the schema must be the part's."""
        if not batch.num_rows:
            return
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        self._writer.write_table(table, row_group_size=ROW_GROUP)
        self.rows += table.num_rows

    def close(self) -> AddedFile | None:
        """Ends the file; None (and no file) when nothing was written."""
        self._writer.close()
        if not self.rows:
            self._fs.delete_file(self._full)
            return None
        size = self._fs.get_file_info(self._full).size
        return AddedFile(self.path, size, self.rows, stats_json(self._metadata[0]), int(time.time() * 1000))

    def discard(self) -> None:
        """Drops the file without a trace."""
        self._writer.close()
        self._fs.delete_file(self._full)


def file_name(table: str) -> str:
    """A table's name as a folder's: letters, digits, `_`, `.`, `-` stay, others become codes between `~`.

    >>> file_name("public.orders"), file_name('sales.Größe 1/2')
    ('public.orders', 'sales.Gr~f6~~df~e~20~1~2f~2')
    """
    return _UNSAFE.sub(lambda found: f"~{ord(found[0]):x}~", table)


def exists(table: str) -> bool:
    """Whether there is a Delta table at this path."""
    return DeltaTable.is_deltatable(table)


def create(table: str, schema: pa.Schema, properties: Mapping[str, str] | None = None) -> None:
    """Makes an empty table; nothing happens when it is there."""
    if not exists(table):
        DeltaTable.create(table, schema, mode="ignore", configuration=dict(properties or {}))


def version(table: str) -> int:
    """The newest version of the table; -1 when there is no table."""
    return DeltaTable(table).version() if exists(table) else -1


def progress(table: str, app_id: str) -> int:
    """How far an application has come in this table; -1 when it (or the table) never began."""
    try:
        reached = DeltaTable(table).transaction_version(app_id)
    except TableNotFoundError:
        return -1
    return -1 if reached is None else int(reached)


def commit(
    table: str,
    files: Sequence[AddedFile],
    *,
    progress: Mapping[str, int],
    schema: pa.Schema | None = None,
    overwrite: bool = False,
    info: Mapping[str, str] | None = None,
    only_after: int | None = None,
    begin: bool = False,
) -> int | None:
    """Commits parts together with progress; the table must exist.

    Gives the new version, or None when every app id of `progress` has already come this far (a replay).
    With `overwrite` the parts become the whole table, with `schema` when given. A concurrent writer
    (maintenance, another app id) makes it try again from the table's newest version; with `only_after` it
    gives None then, and commits on that version or not at all. With `begin` the progress is set whatever it
    was.
    """
    adds = [AddAction(f.path, f.size, {}, f.modified, True, f.stats) for f in files]
    properties = CommitProperties(
        app_transactions=[Transaction(k, v) for k, v in progress.items()],
        custom_metadata=dict(info or {}),
        max_commit_retries=None if only_after is None else 0,
    )

    def once() -> int | None:
        delta = DeltaTable(table)
        reached = [delta.transaction_version(k) for k in progress]
        if (
            progress
            and not begin
            and all(r is not None and r >= v for r, v in zip(reached, progress.values(), strict=True))
        ):
            return None
        if only_after is not None and delta.version() != only_after:
            return None
        if overwrite and schema is not None:
            _need_features(delta, schema)
        delta.create_write_transaction(
            list(adds),
            mode="overwrite" if overwrite else "append",
            schema=schema if overwrite and schema is not None else delta.schema(),
            commit_properties=properties,
        )
        return int(DeltaTable(table).version())

    return retried(once)


def retried(once: Callable[[], _T]) -> _T:
    """Does what commits, again when somebody else committed first."""
    for attempt in range(_RETRIES):
        try:
            return once()
        except CommitFailedError:
            if attempt == _RETRIES - 1:
                raise
            time.sleep(0.02 * 2 ** min(attempt, 6))
    raise AssertionError("unreachable")


def append(table: str, rows: pa.Table, *, progress: Mapping[str, int] | None = None) -> int | None:
    """Adds a few rows (control tables), creating the table when it is missing."""
    create(table, rows.schema)
    part = Part(table, rows.schema)
    part.write(rows)
    added = part.close()
    return commit(table, [added] if added else [], progress=progress or {})


def read(table: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A small table, whole (control tables, relation history)."""
    return DeltaTable(table).to_pyarrow_table(columns=list(columns) if columns else None)


def _need_features(delta: DeltaTable, schema: pa.Schema) -> None:
    naive = any(pa.types.is_timestamp(f.type) and f.type.tz is None for f in schema)
    if naive and "timestampNtz" not in (delta.protocol().writer_features or []):
        delta.alter.add_feature(TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True)


def add_columns(table: str, fields: Sequence[pa.Field]) -> None:
    """Appends nullable columns; those the table already has (by name) are passed over."""
    delta = DeltaTable(table)
    have = {f.name for f in delta.schema().fields}
    new = [f for f in fields if f.name not in have]
    if new:
        _need_features(delta, pa.schema(new))
        wanted = [Field.from_arrow(f) for f in new]
        DeltaTable(table).alter.add_columns(wanted)


def arrow_schema(table: str) -> pa.Schema:
    """The table's schema in plain Arrow types (string, binary: no views, no large ones)."""
    return plain_schema(pa.schema(DeltaTable(table).schema().to_arrow()))


def files(table: str, column: str, keep: Callable[[Any, Any], bool]) -> list[str]:
    """Paths of the table's files for which `keep(smallest, largest)` of a column says yes.

    Both are None for a file whose commit carries no statistics of that column.
    """
    actions = pa.table(DeltaTable(table).get_add_actions(flatten=True))
    nothing = [None] * actions.num_rows
    names = set(actions.column_names)
    low = actions[f"min.{column}"].to_pylist() if f"min.{column}" in names else nothing
    high = actions[f"max.{column}"].to_pylist() if f"max.{column}" in names else nothing
    root = table.rstrip("/")
    found = zip(actions["path"].to_pylist(), low, high, strict=True)
    return sorted(f"{root}/{path}" for path, lo, hi in found if keep(lo, hi))


def compact(table: str, small_files: int, *, vacuum_after_s: float) -> None:
    """Joins small files once there are that many, then drops files as `vacuum` does; rows and progress
    stay. Not for tables with deletion vectors."""
    delta = DeltaTable(table)
    sizes = pa.table(delta.get_add_actions(flatten=True))["size_bytes"].to_pylist()
    if sum(size < SMALL_FILE for size in sizes) >= max(small_files, 2):
        delta.optimize.compact(target_size=WHOLE_FILE)
        delta = DeltaTable(table)
        delta.create_checkpoint()
        delta.cleanup_metadata()
    vacuum(table, vacuum_after_s)


def vacuum(table: str, after_s: float) -> None:
    """Deletes files that no version within the retention needs."""
    DeltaTable(table).vacuum(hours(after_s), dry_run=False, enforce_retention_duration=False)


def hours(seconds: float) -> int:
    """A retention in hours, at least one: readers and unfinished commits need files for a while."""
    return max(int(seconds // 3600), 1)


def schema_json(schema: pa.Schema) -> str:
    """A schema as Delta's JSON text; Spark reads it with `StructType.fromJson`."""
    return Schema.from_arrow(schema).to_json()
