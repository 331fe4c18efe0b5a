"""How large a Delta table is, and whether its files may be exchanged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from ...errors import UnsupportedError
from ...lake.reading import maps_columns
from ..plans import Size
from . import distributed

_PLAIN = frozenset({"appendOnly", "invariants", "timestampNtz"})
INVARIANT = "delta.invariants"
"""What a column's metadata call a condition on its values."""


def is_plain(table: DeltaTable, *, purged: bool = False) -> bool:
    """Whether a table's files may be exchanged for others: no partitions, and no feature (change feed,
    constraints, deletion vectors) that asks more of a writer. `purged`: no file in force has vectors, whether
    the table may have some or not."""
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
            hint="make the table without `delta.columnMapping.mode`",
        )


def actions(table: DeltaTable) -> pa.Table:
    """The files in force, a row each, with their statistics."""
    return pa.table(table.get_add_actions(flatten=True))


def size_of(table: DeltaTable) -> Size:
    """Bytes and files in force, whether there are deletion vectors, and rows."""
    files = actions(table)
    sizes = files["size_bytes"].to_pylist()
    return Size(sum(sizes), len(sizes), distributed.has_vectors(table), _rows(files))


def rows_in(table: DeltaTable) -> int:
    """Rows in the files in force, as far as their statistics say (rows that deletion vectors hide count)."""
    return _rows(actions(table))


def _rows(files: pa.Table) -> int:
    found: list[Any] = files["num_records"].to_pylist()
    return sum(n or 0 for n in found)
