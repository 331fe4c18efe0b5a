"""Provides OpenEdge's two functions on field maps, for DataFrames and for Spark SQL.

`cdc_get_changed_columns(change table, field map)` returns the changed columns' names, and
`cdc_is_column_changed(change table, column, field map)` 1 or 0. As in OpenEdge, it is an error if the first
argument is not a change table, or if it does not have the column. The vendor's drivers return names joined by
`;`: `array_join(…, ';')` does the same. A NULL field map has no bit set. Source: spec/openedge.md §2.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...model import mask
from ...model.change import PREFIX, ChangeTable
from ...model.quoting import quoted
from ..base import ADDED_COLUMNS
from ..shape import find_columns
from ..spark_functions import F
from .metadata import KEPT, Kept
from .tables import CHANGE, TRACKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    ChangeTableLike = DataFrame | ChangeTable | Mapping[str, int]
FIELD_MAP = next(c.name for c in TRACKING.columns if c.name == "_Change-FieldMap")


def positions_of(change_table: ChangeTableLike) -> dict[str, int]:
    """Returns user column -> bit of field maps, from 1.

    Args:
        change_table: a change table's DataFrame (bits follow its columns), the result of `read` (gaps are
            known), or the positions themselves.

    Raises:
        FormatError: it is not a change table.

    >>> positions_of({"F1": 1, "F3": 3})
    {'F1': 1, 'F3': 3}
    """
    if isinstance(change_table, Mapping):
        return dict(change_table)
    if isinstance(change_table, ChangeTable):
        metadata = change_table.df.schema[PREFIX + "change_seq"].metadata
        if KEPT not in metadata:
            raise FormatError(
                f"{change_table.name or 'it'} is not read from OpenEdge", hint="read() it first"
            )
        return dict(Kept.from_json(metadata[KEPT]).positions)
    meta = set(find_columns(change_table.columns, CHANGE, where="the first argument").values())
    aside = {*meta, *ADDED_COLUMNS}
    return {c: n for n, c in enumerate((c for c in change_table.columns if c not in aside), 1)}


def cdc_get_changed_columns(change_table: ChangeTableLike, field_map: Column | str = FIELD_MAP) -> Column:
    """Returns the names whose bits are set, in order of the bits (array<string>; empty if none is)."""
    places = {p - 1: name for name, p in positions_of(change_table).items()}
    return mask.names(_column(field_map), places, little=True)


def cdc_is_column_changed(
    change_table: ChangeTableLike, column: str, field_map: Column | str = FIELD_MAP
) -> Column:
    """Returns 1 if the column's bit is set, otherwise 0 (int).

    Raises:
        FormatError: the column is not in the change table.
    """
    lower = {name.lower(): p for name, p in positions_of(change_table).items()}
    if column.lower() not in lower:
        raise FormatError(f"no column {column} in the change table", hint=f"it has {', '.join(lower)}")
    return mask.bits(_column(field_map), [lower[column.lower()] - 1], little=True)[0].cast("int")


def _column(field_map: Column | str) -> Column:
    return F.col(quoted(field_map)) if isinstance(field_map, str) else field_map


def register(spark: SparkSession, change_tables: Mapping[str, ChangeTableLike]) -> None:
    """Registers both functions in Spark SQL, for these change tables by name (any letter case).

    `SELECT cdc_get_changed_columns('PUB.CDC_Item', `_Change-FieldMap`) FROM …`. They are native SQL functions
    without Python; registering them again replaces them.
    """
    places = {name.lower(): positions_of(table) for name, table in change_tables.items()}
    for name in list(places):
        places.setdefault(name.rpartition(".")[2], places[name])
    for statement in statements(places):
        spark.sql(statement)


_BIT = "getbit(CAST(conv(hex(substring(field_map, CAST({n} DIV 8 + 1 AS INT), 1)), 16, 10) AS INT), {n} % 8)"
_MAKE = "CREATE OR REPLACE TEMPORARY FUNCTION "


def statements(tables: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Returns the SQL that creates the two functions, for lower-case table names -> column positions."""
    names, bits = [], []
    for table, positions in tables.items():
        rows = ", ".join(f"named_struct('n', {p - 1}, 'c', {_text(c)})" for c, p in positions.items())
        found = f"filter(array({rows}), x -> {_BIT.format(n='x.n')} = 1)" if rows else "array()"
        chosen = f"transform({found}, x -> x.c)" if rows else "CAST(array() AS ARRAY<STRING>)"
        names.append(f"WHEN {_text(table)} THEN {chosen}")
        pairs = ", ".join(f"{_text(c.lower())}, {p - 1}" for c, p in positions.items())
        place = f"try_element_at(map({pairs}), lower(column_name))" if pairs else "CAST(NULL AS INT)"
        bits.append(f"WHEN {_text(table)} THEN {place}")
    no_table = "raise_error(concat(change_table, ' is not a change table'))"
    no_column = "raise_error(concat('no column ', column_name, ' in ', change_table))"
    place = f"CASE lower(change_table) {' '.join(bits)} ELSE CAST({no_table} AS INT) END"
    place = f"coalesce({place}, CAST({no_column} AS INT))"
    bit = _BIT.format(n=f"({place})")
    return [
        f"{_MAKE}cdc_get_changed_columns(change_table STRING, field_map BINARY) RETURNS ARRAY<STRING> RETURN "
        f"CASE lower(change_table) {' '.join(names)} ELSE CAST({no_table} AS ARRAY<STRING>) END",
        f"{_MAKE}cdc_is_column_changed(change_table STRING, column_name STRING, field_map BINARY) "
        f"RETURNS INT RETURN coalesce(CAST({bit} AS INT), 0)",
    ]


def _text(value: str) -> str:
    """Returns a SQL string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
