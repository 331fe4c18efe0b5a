"""Reads the rows of a table through the task's DB-API driver while its writers wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from typing import Any

import pyarrow as pa

from ...model.change import Relation
from ...model.types import arrow_type, schema_of
from ..base import BadValue, BaselineBatch, BaselinePart, Snapshot
from .connect import Connection, Server, asking, let_go

_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError, DecimalException)
ROWS = 10_000
"""Rows per batch."""


def quoted(table: str) -> str:
    """Returns `"schema"."name"`.

    >>> quoted("SHOP.ITEM")
    '"SHOP"."ITEM"'
    """
    schema, _, name = table.partition(".")
    return ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name) if part)


def lock(connection: Connection, tables: Sequence[str]) -> None:
    """Locks tables for writers until the connection's transaction ends."""
    for table in tables:
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"LOCK TABLE {quoted(table)} IN SHARED MODE")


@dataclass(frozen=True)
class SolidPartReader:
    """Reads a table in a snapshot, in any process; picklable."""

    server: Server

    def __call__(self, snapshot: Snapshot, relation: Relation, part: BaselinePart) -> Iterator[BaselineBatch]:
        """Yields the rows of a table in the relation's types."""
        with asking(self.server.where):
            connection = self.server.open()
            try:
                names = ", ".join('"' + c.name.replace('"', '""') + '"' for c in relation.columns)
                with closing(connection.cursor()) as cursor:
                    cursor.execute(f"SELECT {names} FROM {part.leaf}")
                    while rows := cursor.fetchmany(ROWS):
                        yield batch(relation, rows)
            finally:
                let_go(connection)


def batch(relation: Relation, rows: Sequence[Sequence[Any]]) -> BaselineBatch:
    """Returns a driver's rows as columns. Only columns with a value that does not fit are processed value by
    value."""
    arrays, bad = [], []
    for column, values in zip(relation.columns, zip(*rows, strict=True), strict=True):
        kind = arrow_type(column.type)
        try:
            arrays.append(_array(values, kind))
        except _MISFITS:
            fine = []
            for row, value in enumerate(values):
                try:
                    fine.append(_array([value], kind)[0])
                except _MISFITS:
                    fine.append(pa.scalar(None, kind))
                    bad.append(BadValue(row, column.name, str(value)))
            arrays.append(pa.array([v.as_py() for v in fine], kind))
    return BaselineBatch(pa.RecordBatch.from_arrays(arrays, schema=schema_of(relation.columns)), bad)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array([None if v is None else str(v) for v in values], kind)
    if pa.types.is_boolean(kind):
        return pa.array([None if v is None else bool(v) for v in values], kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if v is None else Decimal(str(v)) for v in values], kind)
    return pa.array(values, kind)
