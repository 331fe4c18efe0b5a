"""Properties of a Delta table: its size, features and versions, and whether its files may be replaced."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ...errors import ApplyError, UnsupportedError
from ...lake import delta as lake
from ...lake.opened import open_table
from ...lake.reading import maps_columns
from ...model.positions import order_key
from ..plans import TableSize

_PLAIN = frozenset({"appendOnly", "invariants", "timestampNtz"})
INVARIANT = "delta.invariants"
"""The name of a condition on a column's values, in the column's metadata."""


def is_plain(table: DeltaTable, *, purged: bool = False) -> bool:
    """Whether a table's files may be replaced: it has no partitions and no feature with further requirements
    on writers (change feed, constraints, deletion vectors). `purged`: no current file has deletion vectors,
    even if the table's protocol allows them."""
    protocol, partitions = table.protocol(), table.metadata().partition_columns
    if not all(f.nullable and INVARIANT not in f.metadata for f in table.schema().fields):
        return False
    if protocol.min_writer_version < 7:
        return protocol.min_writer_version <= 2 and not partitions
    allowed = _PLAIN | {"deletionVectors"} if purged else _PLAIN
    return set(protocol.writer_features or []) <= allowed and not partitions


def refuse(table: DeltaTable, path: str) -> None:
    """Raises UnsupportedError for a target with column mapping, which delta-rs does not write."""
    if maps_columns(table):
        raise UnsupportedError(
            "the target has column mapping, which tailrace does not write",
            where=path,
            hint="create the table without `delta.columnMapping.mode`",
        )


def actions(table: DeltaTable) -> pa.Table:
    """Returns the current files, one row per file, with their statistics."""
    return pa.table(table.get_add_actions(flatten=True))


def size_of(table: DeltaTable) -> TableSize:
    """Returns the size of a table."""
    files = actions(table)
    sizes = files["size_bytes"].to_pylist()
    return TableSize(sum(sizes), len(sizes), has_vectors(table), _rows(files))


def rows_in(table: DeltaTable) -> int:
    """Returns the number of rows in the current files, by their statistics, including rows that deletion
    vectors hide."""
    return _rows(actions(table))


def _rows(files: pa.Table) -> int:
    found: list[Any] = files["num_records"].to_pylist()
    return sum(n or 0 for n in found)


def open_at(path: str, app_id: str, number: int) -> DeltaTable:
    """Opens the newest version of a table whose progress is at most a change number.

    Raises:
        ApplyError: the log has no such version any more.
    """
    if (found := _newest_until(path, app_id, number)) is None:
        raise ApplyError(f"no version of the target before change {number + 1} is left", where=path)
    return found


def version_at(path: str, app_id: str, number: int) -> int | None:
    """Returns the newest version whose progress is at most a change number; None if the log has none any
    more."""
    found = _newest_until(path, app_id, number)
    return None if found is None else int(found.version())


def _newest_until(path: str, app_id: str, number: int) -> DeltaTable | None:
    for version in range(open_table(path).version(), -1, -1):
        try:
            found = open_table(path, version=version)
        except DeltaError:  # its log is cleaned up
            return None
        if order_key(lake.reached(found, app_id)) <= number:
            return found
    return None


def has_vectors(table: DeltaTable) -> bool:
    """Whether the table may have deletion vectors."""
    return "deletionVectors" in (table.protocol().writer_features or [])
