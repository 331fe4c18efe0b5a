"""Properties of a Delta table: its features, and whether its files may be replaced."""

from __future__ import annotations

import json

import pyarrow as pa
from deltalake import DeltaTable

from ...errors import UnsupportedError
from ...lake.reading import maps_columns
from ...model.quoting import quoted
from ..base import Constraints
from ..rule_columns import RULE

_PLAIN = frozenset({"appendOnly", "invariants", "timestampNtz"})
ADDED = "tailrace.addedBy"
"""Metadata key of columns that rules have added; the value is `RULE`."""
_CHECK = "delta.constraints."
_GENERATED = "delta.generationExpression"
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


def has_vectors(table: DeltaTable) -> bool:
    """Whether the table may have deletion vectors."""
    return "deletionVectors" in (table.protocol().writer_features or [])


def accepts_files(table: DeltaTable) -> bool:
    """Whether complete files may be added to a table: it has no partitions, whose values are only in the log,
    and no constraints on rows."""
    return not table.metadata().partition_columns and not constraints(table)


def constraints(table: DeltaTable) -> Constraints:
    """Returns the NOT NULLs, CHECKs, invariants and generated columns of a table."""
    properties = table.metadata().configuration
    checks = {
        k.removeprefix(_CHECK): v for k, v in properties.items() if k.startswith(_CHECK) and v is not None
    }
    for one in table.schema().fields:
        if invariant := one.metadata.get(INVARIANT):
            checks[f"of {one.name}"] = str(json.loads(str(invariant))["expression"]["expression"])
        if expression := one.metadata.get(_GENERATED):
            checks[f"of {one.name}"] = f"{quoted(one.name)} <=> ({expression})"
    return Constraints(frozenset(f.name for f in table.schema().fields if not f.nullable), checks)


def rule_columns(table: DeltaTable) -> set[str]:
    """Returns the columns that rules have added to a target."""
    return {f.name for f in table.schema().fields if f.metadata.get(ADDED) == RULE}
