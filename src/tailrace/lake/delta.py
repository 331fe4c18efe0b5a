"""Delta tables without a JVM: Parquet parts written by Arrow, committed by delta-rs.

A part is first streamed to the table's folder, and belongs to the table once it is committed. So a crash
leaves orphan files (vacuum removes them), but never a partial commit. Each commit also records progress: a
version per application id that only grows. A commit that would not increase it is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.schema import Field, Schema
from deltalake.transaction import AddAction

from ..errors import ConcurrentCommitError, OvertakenError, UnsupportedError, room
from ..model.positions import ChangeNumber, order_key
from ..model.types import plain_schema
from . import guards, news, removed, retrying, storage, written
from .failpoints import reach
from .file_names import file_name
from .one_commit import commit_actions
from .opened import after_commit, cached, exists, open_table, opened, progresses, reached, whole
from .parts import ROW_GROUP, AddedFile, Part
from .reading import dataset, fitted, folder_of, paths, unread
from .storage import filesystem
from .tiers import TIERS, due_size
from .vacuum import DURATION, hours, vacuum

__all__ = [
    "ROW_GROUP",
    "SMALL_FILE",
    "TIERS",
    "AddedFile",
    "Part",
    "add_columns",
    "admits",
    "after_commit",
    "append",
    "arrow_schema",
    "commit",
    "compact",
    "create",
    "dataset",
    "exists",
    "file_name",
    "filesystem",
    "fitted",
    "folder_of",
    "hours",
    "on_newest",
    "opened",
    "overwrite",
    "paths",
    "progress",
    "progresses",
    "reached",
    "read",
    "replace_all",
    "retried",
    "schema_json",
    "unread",
    "vacuum",
    "version",
    "write_part",
    "write_pieces",
]

SMALL_FILE = 32 << 20
PROPERTIES = {"delta.checkpointInterval": "10", DURATION: "interval 3 hours"}
"""Properties of every new table.

A reader reads all commits after the newest checkpoint; the default of delta-rs is a checkpoint every 100
commits. Checkpoints list removed files for three hours instead of a week, so their size follows the existing
files. Maintenance deletes removed files after an hour (`vacuum`, `thin`).
"""
_T = TypeVar("_T")


def create(table: str, schema: pa.Schema, properties: Mapping[str, str] | None = None) -> None:
    """Creates an empty table; does nothing if it exists."""
    if not exists(table):
        settings = {**PROPERTIES, **(properties or {})}
        with room(table):
            DeltaTable.create(
                table, schema, mode="ignore", configuration=settings, raise_if_key_not_exists=False,
                storage_options=storage.options_of(table),
            )  # fmt: skip
        news.tell(table)


def version(table: str) -> int | None:
    """Returns the newest version of the table; None if there is no table."""
    try:
        with opened(table) as delta:
            return int(delta.version())
    except TableNotFoundError:
        return None


def progress(table: str, app_id: str) -> ChangeNumber | None:
    """Returns the progress of an application in this table; None if it has none or there is no table."""
    return progresses(table, [app_id])[0]


def commit(
    table: str,
    files: Sequence[AddedFile],
    *,
    progress: Mapping[str, int],
    info: Mapping[str, str] | None = None,
    only_after: int | None = None,
    begin: bool = False,
    after: Mapping[str, int | None] | None = None,
) -> int | None:
    """Adds parts and progress to an existing table.

    If a concurrent writer (maintenance, another application) commits first, the commit is retried on the
    newest version.

    Args:
        table: the table's folder.
        files: the parts.
        progress: the new progress by application id.
        info: more metadata of the commit.
        only_after: commits on this version or not at all.
        begin: sets progress whatever it was.
        after: the expected current progress by application id (None: none yet), so that numbers counted from
            it are used once.

    Returns:
        The new version; None if all progress was recorded before (a replay), or if `only_after` is not the
            newest version.

    Raises:
        LeaseLostError: another process has taken over.
        OvertakenError: progress differs from `after`, because another process has changed it.
    """
    return _commit(table, files, None, progress, info, only_after, begin=begin, after=after)


def overwrite(
    table: str,
    files: Sequence[AddedFile],
    *,
    schema: pa.Schema | None,
    progress: Mapping[str, int],
    only_after: int,
    info: Mapping[str, str] | None = None,
) -> int | None:
    """Replaces the table's contents by parts, with a schema (None: the same); otherwise like `commit`.

    `only_after` is the version that the parts were made from. If the table has another one, nothing is
    written and the result is None, because the parts do not include the concurrent commit.
    """
    return _commit(table, files, schema, progress, info, only_after, whole=True, begin=False)


def replace_all(
    table: str,
    files: Sequence[AddedFile],
    *,
    schema: pa.Schema,
    progress: Mapping[str, int],
    info: Mapping[str, str] | None = None,
) -> int:
    """Replaces the table's contents by parts, whatever it contains, for baselines.

    Progress is set, whatever it was. Returns the new version. A concurrent commit is either replaced as a
    whole or follows this one.
    """

    def once(now: DeltaTable) -> int | None:
        return _commit(table, files, schema, progress, info, now.version(), whole=True, begin=True)

    return on_newest(table, once)


class _OtherFirstError(Exception):
    """Another writer committed first."""


def on_newest(table: str, once: Callable[[DeltaTable], _T | None]) -> _T:
    """Calls `once` with the current table until it does not return None, which means that another writer
    committed first.

    Raises:
        ConcurrentCommitError: other writers keep committing.
    """

    def attempt() -> _T:
        if (done := once(open_table(table))) is None:
            raise _OtherFirstError
        return done

    try:
        return retrying.retried(attempt, _OtherFirstError)
    except _OtherFirstError:
        raise ConcurrentCommitError(
            "other writers commit to the table faster than it can be rewritten",
            where=table,
            hint="stop other writers to this table for a while",
        ) from None


def _commit(
    table: str,
    files: Sequence[AddedFile],
    schema: pa.Schema | None,
    progress: Mapping[str, int],
    info: Mapping[str, str] | None,
    only_after: int | None,
    *,
    begin: bool,
    whole: bool = False,
    after: Mapping[str, int | None] | None = None,
) -> int | None:
    """Commits parts; see `commit`. With `whole`, the parts replace the table's contents."""
    adds = [AddAction(f.path, f.size, {}, f.modified, True, f.stats) for f in files]
    # Under a guard, a commit goes to the version that was read before, or is checked again.
    exactly = only_after is not None or bool(guards.now())

    def once() -> int | None:
        with cached(table) as one:
            made = committed(one.table, {k: one.progress(k) for k in {*progress, *(after or {})}})
            if made == int(one.table.version()) + 1:
                one.committed(progress)
            return made

    def committed(delta: DeltaTable, numbers: Mapping[str, ChangeNumber | None]) -> int | None:
        guards.check()
        # If another writer changes one of them first, this commit fails: both name the application id.
        there = int(delta.version())
        if not admits(table, numbers, there, progress, only_after=only_after, begin=begin, after=after):
            return None
        if schema is not None:  # possibly a separate commit before that of the parts
            there = _need_features(delta, schema, exactly=exactly)
        if (adds or whole) and (names := delta.metadata().partition_columns):
            raise UnsupportedError(
                f"the table is partitioned by {', '.join(names)}; this would write files without partitions",
                where=table,
                hint="create the table again without partitions, or with the final layout",
            )
        commit_actions(
            delta,
            adds,
            mode="overwrite" if whole else "append",
            schema=schema,
            progress=[Transaction(k, v) for k, v in progress.items()],
            info=info,
        )
        written.add(table, [f.size for f in files])
        return there + 1

    with room(table):
        return retried(once)


AT_WORK = (
    "another process of the task is running, such as `run`, `apply` or `validate --repair`: once it has "
    "ended, run this command again to complete its work"
)


def admits(
    table: str,
    reached: Mapping[str, int | None],
    version: int,
    progress: Mapping[str, int],
    *,
    only_after: int | None = None,
    begin: bool = False,
    after: Mapping[str, int | None] | None = None,
) -> bool:
    """Returns whether a table accepts a commit (see `commit`), given its version and progress.

    An overtaken writer gets an error, whatever the other progress is, because the other writer did not do the
    same work.

    >>> admits("t", {"a": 3}, 7, {"a": 4}), admits("t", {"a": 3}, 7, {"a": 3})
    (True, False)
    >>> admits("t", {}, 7, {}, only_after=6)
    False

    Raises:
        OvertakenError: progress differs from `after`.
    """
    for app, there in (after or {}).items():
        if (found := reached.get(app)) != there:
            now, before = found or 0, there or 0
            raise OvertakenError(
                f"another process has written in the meantime: {app} is at {now}, no longer at {before}",
                where=table,
                hint=AT_WORK,
            )
    if progress and not begin and all(order_key(reached.get(k)) >= v for k, v in progress.items()):
        return False
    return only_after is None or version == only_after


def retried(once: Callable[[], _T]) -> _T:
    """Calls a function that commits, again if another writer committed first."""

    def attempt() -> _T:
        guards.check()
        return once()

    return retrying.retried(attempt, CommitFailedError)


def write_part(table: str, rows: pa.Table) -> list[AddedFile]:
    """Writes rows as one part of a table's folder, to be committed; no part without rows."""
    return write_pieces(table, rows.schema, [rows])


def write_pieces(table: str, schema: pa.Schema, rows: Iterable[pa.Table]) -> list[AddedFile]:
    """Writes rows that arrive in pieces as one part of a table's folder, to be committed; no part without
    rows."""
    part = Part(table, schema)
    for piece in rows:
        part.write(piece)
    added = part.close()
    return [added] if added else []


def append(
    table: str,
    rows: pa.Table,
    *,
    progress: Mapping[str, int] | None = None,
    after: Mapping[str, int | None] | None = None,
) -> int | None:
    """Appends a few rows (control tables), and creates the table if necessary; otherwise like `commit`."""
    create(table, rows.schema)
    return commit(table, write_part(table, rows), progress=progress or {}, after=after)


def read(table: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns all rows of a small table (control tables, relation history).

    Raises:
        TailraceError: its files were removed in the meantime.
    """
    return read_at(table, columns)[1]


def read_at(table: str, columns: Sequence[str] | None = None) -> tuple[int, pa.Table]:
    """Returns the version of a small table and all of its rows, like `read`."""
    with removed.told(table):
        return whole(table, columns)


def _need_features(delta: DeltaTable, schema: pa.Schema, *, exactly: bool = False) -> int:
    """Adds the features that a schema needs to a table, and returns its version.

    `exactly` commits directly after the open version, or raises CommitFailedError.
    """
    kinds = [f.type.value_type if pa.types.is_list(f.type) else f.type for f in schema]
    naive = any(pa.types.is_timestamp(kind) and kind.tz is None for kind in kinds)
    if naive and "timestampNtz" not in (delta.protocol().writer_features or []):
        once = CommitProperties(max_commit_retries=0) if exactly else None
        delta.alter.add_feature(
            TableFeatures.TimestampWithoutTimezone,
            allow_protocol_versions_increase=True,
            commit_properties=once,
        )
    return int(delta.version())


def add_columns(table: str, fields: Sequence[pa.Field]) -> None:
    """Appends nullable columns; existing names are skipped."""
    have = set(arrow_schema(table).names)
    new = [f for f in fields if f.name not in have]
    if new:
        guards.check()
        _need_features(open_table(table), pa.schema(new))
        wanted = [Field.from_arrow(f) for f in new]
        open_table(table).alter.add_columns(wanted)


def arrow_schema(table: str | DeltaTable) -> pa.Schema:
    """Returns the table's schema in plain Arrow types (string and binary, no views, no large types)."""
    if isinstance(table, str):
        with opened(table) as delta:
            return arrow_schema(delta)
    return plain_schema(pa.schema(table.schema().to_arrow()))


def compact(table: str, small_files: int) -> None:
    """Joins small files of a table once it has `small_files` of one tier (`TIERS`), so that a row is
    rewritten once per tier.

    Rows and progress stay. Not for tables with deletion vectors.
    """
    with opened(table) as delta:
        sizes = pa.table(delta.get_add_actions(flatten=True))["size_bytes"].to_pylist()
    if (size := due_size(sizes, small_files)) is not None:
        reach("maintain.compact")
        done = retried(lambda: open_table(table).optimize.compact(target_size=size))
        made = json.loads(done["filesAdded"])
        written.add(table, [int(made["avg"])] * int(made["totalFiles"]))


def schema_json(schema: pa.Schema) -> str:
    """Returns a schema as Delta's JSON text; Spark parses it with `StructType.fromJson`."""
    return Schema.from_arrow(schema).to_json()
