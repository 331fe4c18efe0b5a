"""Converts the rows of any Spark DataFrame to events of a history: key, order and operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...engine.history_events import (
    DELETE_EVENT,
    OPERATION,
    SEQUENCE,
    TIME,
    TRUNCATE_EVENT,
    UPSERT_EVENT,
    event_schema,
    ignore_nulls,
)  # fmt: skip
from ...engine.history_updates import HistoryRules
from ...errors import ConfigError, UnsupportedError
from ...model.quoting import quoted
from ...model.types import arrow_type
from .checks import cast_exactly, choose_columns
from .sequence_text import ordered_text
from .table import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Columns = Sequence[Any]
"""Column names, or Spark columns."""


@dataclass(frozen=True)
class HistoryFlow:
    """Interpretation of a DataFrame's rows as events. The arguments are those of Spark's
    `create_auto_cdc_flow` and more.

    Attributes:
        keys: columns that identify a row.
        sequence_by: the order of events: a column, an expression, a struct, or several of them that are
            compared one after the other (`sequence_text`).
        apply_as_deletes, apply_as_truncates: conditions for events that delete their row, or all rows (SQL or
            a column).
        column_list, except_column_list: the columns that are kept; all by default.
        stored_as_scd_type: 1 (the default) or 2.
        track_history_column_list, track_history_except_column_list: columns whose change starts a new
            version; all by default.
        ignore_null_updates: NULL means that a value is unchanged, in all columns except the keys.
            `ignore_null_updates_column_list` and `ignore_null_updates_except_column_list` restrict it to some
            columns.
        time_by: the time of each event (timestamp); versions then have `valid_from`, `valid_to` and
            `is_current`.
        bitemporal: keeps versions that late events replace, with system times.
    """

    keys: Columns
    sequence_by: str | Column | Columns
    apply_as_deletes: str | Column | None = None
    apply_as_truncates: str | Column | None = None
    column_list: Columns | None = None
    except_column_list: Columns | None = None
    stored_as_scd_type: int | str | None = None
    track_history_column_list: Columns | None = None
    track_history_except_column_list: Columns | None = None
    ignore_null_updates: bool = False
    ignore_null_updates_column_list: Columns | None = None
    ignore_null_updates_except_column_list: Columns | None = None
    time_by: str | Column | None = None
    bitemporal: bool = False

    def columns(self, df: DataFrame) -> list[str]:
        """Returns the data columns that are kept."""
        return choose_columns(
            df.columns, _names(df, self.column_list), _names(df, self.except_column_list), "column_list"
        )

    def rules(self, df: DataFrame) -> HistoryRules:
        """Returns the history's rules.

        Raises:
            ConfigError: an argument names a column that does not exist, or two arguments contradict each
                other.
        """
        columns, keys = self.columns(df), _names(df, self.keys) or []
        only = _names(df, self.track_history_column_list)
        but = _names(df, self.track_history_except_column_list)
        tracked = choose_columns(columns, only, but, "track_history_column_list")
        scd_type = str(self.stored_as_scd_type or 1)
        if scd_type not in ("1", "2"):
            raise ConfigError(f"stored_as_scd_type is {self.stored_as_scd_type!r}", hint="1 or 2")
        if scd_type == "1" and (only is not None or but is not None):
            raise ConfigError("type 1 keeps no history to track", hint="set stored_as_scd_type=2")
        chosen = None if only is None and but is None else tuple(tracked)
        return HistoryRules(
            tuple(keys), tuple(columns), int(scd_type), chosen, self.time_by is not None, self.bitemporal
        )

    def ignored(self, df: DataFrame) -> list[str]:
        """Returns the columns in which NULL means that the value is unchanged."""
        only = _names(df, self.ignore_null_updates_column_list)
        but = _names(df, self.ignore_null_updates_except_column_list)
        if not self.ignore_null_updates and only is None and but is None:
            return []
        keys = _names(df, self.keys) or []
        return [
            n for n in choose_columns(self.columns(df), only, but, "ignore_null_updates") if n not in keys
        ]

    def events(self, df: DataFrame) -> DataFrame:
        """Returns the rows as events (`engine.history_events`), without `CARRIES`."""
        from pyspark.sql import functions as F

        def holds(condition: str | Column | None) -> Column:
            if condition is None:
                return F.lit(False)
            return F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))

        oper = F.when(holds(self.apply_as_truncates), TRUNCATE_EVENT).when(
            holds(self.apply_as_deletes), DELETE_EVENT
        )
        when = F.lit(None) if self.time_by is None else _expression(self.time_by)
        return df.select(
            *[F.col(quoted(n)) for n in self.columns(df)],
            self._sequence(df).alias(SEQUENCE),
            oper.otherwise(UPSERT_EVENT).alias(OPERATION),
            when.cast("timestamp").alias(TIME),
        )

    def _sequence(self, df: DataFrame) -> Column:
        """Returns the order of events as one column."""
        from pyspark.sql import Column
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        one = self.sequence_by
        if not isinstance(one, (str, Column)):
            parts = [_expression(part).alias(f"part_{k}") for k, part in enumerate(one)]
            one = parts[0] if len(parts) == 1 else F.struct(*parts)
        made = _expression(one)
        kind = df.select(made.alias(SEQUENCE)).schema[SEQUENCE].dataType
        return ordered_text(made, kind) if isinstance(kind, StructType) else made

    def history(self, df: DataFrame, path: str) -> HistoryTable:
        """Opens the history at a path, or creates it for such rows."""
        rules, schema = self.rules(df), self.events(df).schema
        kinds = {f.name: arrow_type(f.dataType.simpleString()) for f in schema}
        if pa.types.is_nested(kinds[SEQUENCE]):
            raise UnsupportedError("the sequence is a list or a map", hint="order by one value, or a struct")
        data = pa.schema([(n, kinds[n]) for n in rules.columns])
        return HistoryTable.make(path, data, rules, kinds[SEQUENCE])

    def rows(self, history: HistoryTable, df: DataFrame) -> pa.Table:
        """Returns the rows as events in this process, for few rows."""
        found = self.events(df).toArrow()
        schema = event_schema(history.data, history.sequence)
        return with_masks(found, schema, history.rules.columns, self.ignored(df))


def with_masks(rows: pa.Table, schema: pa.Schema, columns: Sequence[str], ignored: Sequence[str]) -> pa.Table:
    """Returns Spark's events with the history's columns and types. NULLs of `ignored` columns mean unchanged
    values.

    Raises:
        ConfigError: a value does not fit the history's type exactly.
    """
    there = {*rows.column_names}  # a column that the source dropped is NULL from now on
    found = [
        cast_exactly(rows, f, "the source") if f.name in there else pa.nulls(rows.num_rows, f.type)
        for f in schema
    ]
    made = pa.table(found, schema=schema)
    return ignore_nulls(made, list(columns), ignored) if ignored else made


def _names(df: DataFrame, columns: Columns | None) -> list[str] | None:
    """Returns the names of columns, given as names or columns, in the DataFrame's spelling."""
    if columns is None:
        return None
    return [_resolve_name(df, c if isinstance(c, str) else df.select(c).columns[0]) for c in columns]


def _resolve_name(df: DataFrame, name: str) -> str:
    """Returns the column that Spark resolves a name to; letter case matters if the session says so."""
    if name in df.columns or df.sparkSession.conf.get("spark.sql.caseSensitive") == "true":
        return name
    found = [n for n in df.columns if n.casefold() == name.casefold()]
    return found[0] if len(found) == 1 else name


def _expression(said: str | Column) -> Column:
    from pyspark.sql import functions as F

    return F.expr(said) if isinstance(said, str) else said


__all__ = ["HistoryFlow", "with_masks"]
