"""Catalog queries to a solidDB server: SYS_TABLES, SYS_COLUMNS. Source: spec/soliddb.md §6."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigError
from ...formats.soliddb.tables import SYS_COLUMNS, SYS_TABLES, SYSTEM, field
from ...model.change import Column, Relation
from ...model.nearest import meant
from ...model.patterns import fits, fitting, is_pattern
from ...wire.soliddb import RowField
from .connect import Connection, rows

TABLES = f"SELECT ID, TABLE_NAME, TABLE_TYPE, TABLE_SCHEMA FROM {SYSTEM}.SYS_TABLES"
_COLUMNS = (
    "ID", "REL_ID", "COLUMN_NAME", "COLUMN_NUMBER", "DATA_TYPE", "SQL_DATA_TYPE_NUM", "DATA_TYPE_NUMBER",
    "CHAR_MAX_LENGTH", "NUMERIC_PRECISION", "NUMERIC_SCALE", "ATTR_TYPE",
)  # fmt: skip
COLUMNS = f"SELECT {', '.join(_COLUMNS)} FROM {SYSTEM}.SYS_COLUMNS WHERE REL_ID = ?"
KINDS = {
    "boolean": "bool", "smallint": "int2", "int": "int4", "bigint": "int8", "float": "float4",
    "double": "float8", "string": "text", "binary": "bytea", "date": "date", "timestamp_ntz": "timestamp",
    "timestamp": "timestamptz",
}  # fmt: skip
"""Name of the text form of values in LOG by lake type (decimals: numeric)."""


def names(connection: Connection) -> dict[str, int]:
    """Returns ids by `schema.table`, for user tables."""
    found = rows(connection, TABLES, ())
    return {
        f"{schema}.{name}": int(relid)
        for relid, name, kind, schema in found
        if schema != SYSTEM and (kind or "BASE TABLE") == "BASE TABLE"
    }


def chosen(there: Sequence[str], patterns: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Returns the tables selected by the patterns.

    Raises:
        ConfigError: an exact name does not exist.
    """
    for one in patterns:
        if not is_pattern(one) and one not in there:
            raise ConfigError(
                f"there is no table {one}", where="source.tables", hint="names are case-sensitive here"
            )
    return sorted({t for t in fitting(there, *patterns) if not fits(t, *exclude)})


def relation(
    connection: Connection,
    table: str,
    relid: int,
    keys: Mapping[str, Sequence[str]],
    types: Mapping[str, str],
) -> Relation:
    """Returns the current layout of a table. Its key is set by the option `keys`."""
    schema, _, name = table.partition(".")
    found = [_row(r) for r in rows(connection, COLUMNS, (relid,))]
    key = keys.get(table, ())
    columns = []
    for row in sorted(found, key=lambda r: r["COLUMN_NUMBER"]):
        if not row["ATTR_TYPE"]:
            columns.append(
                _column(row, row["COLUMN_NAME"] in key, types.get(f"{table}.{row['COLUMN_NAME']}"))
            )
    there = [x.name for x in columns]
    if missing := [c for c in key if c not in there]:
        raise ConfigError(
            f"{table} has no column {', '.join(missing)}",
            where="source.options.keys",
            hint=meant(missing[0], there) or f"its columns are {', '.join(there)}",
        )
    return Relation(relid, schema, name, "f", tuple(columns))


def _row(values: Sequence[Any]) -> dict[str, Any]:
    return {c.name: None for t in (SYS_TABLES, SYS_COLUMNS) for c in t.columns} | dict(
        zip(_COLUMNS, values, strict=True)
    )


def _column(row: Mapping[str, Any], key: bool, wanted: str | None) -> Column:
    found = field(row)
    kind = KINDS.get(found.type, "numeric")
    digits = f"({row['NUMERIC_PRECISION']},{row['NUMERIC_SCALE'] or 0})" if found.kind == "DFLOAT" else ""
    source = f"{row['DATA_TYPE'] or found.kind}{digits} {row['SQL_DATA_TYPE_NUM']}/{row['DATA_TYPE_NUMBER']}"
    return Column(found.name, int(row["ID"]), source, kind, wanted or found.type, key)


_SOURCE = re.compile(r"(.*?)(?:\((\d+|None),(\d+)\))? (-?\d+|None)/(-?\d+|None)")


def fields(relation: Relation) -> tuple[RowField, ...]:
    """Returns the encoding of a layout's columns in DATA, derived from their source types.

    >>> price = Column("P", 1, "NUMERIC(10,2) 2/5", "numeric", "string")
    >>> fields(Relation(7, "S", "T", "f", (price,)))
    (RowField(name='P', kind='DFLOAT', type='decimal(10,2)', taken=True),)
    """
    made = []
    for column in relation.columns:
        found = _SOURCE.fullmatch(column.source_type)
        name, precision, scale, sql, family = found.groups() if found else (column.source_type, *[None] * 4)
        row = _row([None] * len(_COLUMNS)) | {
            "COLUMN_NAME": column.name, "DATA_TYPE": name, "SQL_DATA_TYPE_NUM": _int(sql),
            "DATA_TYPE_NUMBER": _int(family), "NUMERIC_PRECISION": _int(precision),
            "NUMERIC_SCALE": _int(scale),
        }  # fmt: skip
        made.append(field(row))
    return tuple(made)


def _int(text: str | None) -> int | None:
    return None if text in (None, "None") else int(str(text))
