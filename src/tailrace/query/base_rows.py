"""Base rows of a query (rows before its range), and the identity of their columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..errors import ConfigError, UnsupportedError
from ..lake import log
from ..lake.log import Layout
from ..model.positions import ChangeNumber, ChangeSeq
from ..wire.exact_values import exactly
from .positions import PositionRange
from .schema import common_layout, layout_at, layout_before, type_change

_IDENTITY = b"tailrace.column"
"""Arrow field metadata with the identity of a column."""


@dataclass(frozen=True)
class LayoutRange:
    """A range of change sequences, and the layout of its changes."""

    layout: Layout
    first: ChangeSeq
    last: ChangeSeq


@dataclass(frozen=True)
class _ColumnIdentity:
    """Identity of a field: table, column number and type, and the change number at which its layout began."""

    relid: int
    attnum: int
    type: str
    number: ChangeNumber

    @staticmethod
    def of(field: pa.Field) -> _ColumnIdentity | None:
        """Returns the identity in a field's metadata, or None."""
        said = (field.metadata or {}).get(_IDENTITY)
        return None if said is None else _ColumnIdentity(**json.loads(said))


def tag_columns(schema: pa.Schema, layout: Layout) -> pa.Schema:
    """Returns the schema with the identity of each column in its metadata.

    Arrow keeps the metadata when columns are selected or renamed, and in Parquet files.
    """
    relid, number = layout.relation.relid, log.number(layout)
    known = {c.name: _ColumnIdentity(relid, c.attnum, c.type, number) for c in layout.relation.columns}
    return pa.schema(
        [
            f.with_metadata({_IDENTITY: json.dumps(vars(known[f.name]))}) if f.name in known else f
            for f in schema
        ]
    )


def rename_base(
    base: pa.Table, columns: Collection[str], layouts: Sequence[Layout], layout: Layout
) -> pa.Table:
    """Returns base rows with the column names of a layout, without columns that the layout does not have.

    Columns without an identity in their metadata keep their names.

    Args:
        base: the rows.
        columns: the requested names.
        layouts: the table's layouts.
        layout: the one of these that has the requested names.

    Raises:
        UnsupportedError: a column's type changed since, or the table was dropped and created again.
    """
    relation, found = layout.relation, _identities(base, layouts)
    given = {n for n, one in zip(base.column_names, found, strict=True) if one is None}
    now = {c.attnum: c for c in relation.columns if c.name in columns and c.name not in given}
    kept = {}
    for name, one, values in zip(base.column_names, found, base.columns, strict=True):
        why = None
        if one is None:
            kept[name] = values
        elif one.relid != relation.relid:
            why = "the table was dropped and created again"
        elif (column := now.get(one.attnum)) is not None:
            kept[column.name], why = values, type_change(one.type, column)
        if why is not None:
            raise UnsupportedError(
                f"{why} between the base and the changes",
                where=relation.table,
                hint="pass base rows from after that, or request other columns",
            )
    return pa.table(kept)


def align_base(
    base: pa.Table, schema: pa.Schema, layouts: Sequence[Layout], span: LayoutRange | None, table: str
) -> pa.Table:
    """Returns base rows with the names and types of the changes of a range.

    Columns that were added since are NULL.

    Args:
        base: the rows.
        schema: names and types of the changes.
        layouts: the table's layouts.
        span: the range and its layout; None if no layouts are known.
        table: the table, for error messages.

    Raises:
        ConfigError: the base has no column that the table had, or a value does not fit the column's type.
        UnsupportedError: the layouts of the base and of the changes are incompatible.
    """
    columns = schema.names
    if span is None:
        return _cast(require_columns(base, columns, table), schema, table)
    made = rename_base(base, columns, layouts, span.layout)
    numbers = [one.number for one in _identities(base, layouts) if one is not None]
    wanted = {*columns} if numbers else {c.name for c in span.layout.relation.columns}
    if lacks := wanted - {*made.column_names}:
        # Layouts in between are checked as in a range: added columns need a known earlier value.
        if numbers:
            old = layout_at(layouts, PositionRange.of(min(numbers)))
            common_layout(layouts, min(old.from_seq, span.first), span.last, only=lacks)
        else:
            old = layout_before(layouts, span.first)
            common_layout(layouts, span.first, span.last, before=True)
        there = {c.attnum for c in old.relation.columns}
        require_columns(
            made,
            [c.name for c in span.layout.relation.columns if c.attnum in there and c.name in columns],
            table,
        )
        for name in (n for n in columns if n in lacks and n not in made.column_names):
            made = made.append_column(schema.field(name), pa.nulls(made.num_rows, schema.field(name).type))
    return _cast(made, schema, table)


def require_columns(base: pa.Table, columns: Sequence[str], table: str) -> pa.Table:
    """Returns the given columns of base rows.

    Raises:
        ConfigError: a column is missing.
    """
    if missing := [n for n in columns if n not in base.column_names]:
        raise ConfigError(
            f"base has no column {', '.join(missing)}",
            where=table,
            hint=f"pass {', '.join(columns)}, with the values before the range",
        )
    return base.select(list(columns))


def _cast(rows: pa.Table, schema: pa.Schema, table: str) -> pa.Table:
    """Returns the rows with the types of a schema."""
    wanted = {f.name: f.type for f in schema}
    for place, field in enumerate(rows.schema):
        kind = wanted.get(field.name, field.type)
        if field.type != kind:
            values, why = exactly(rows.column(place), kind)
            if why is not None:
                raise ConfigError(
                    f"base column {field.name} is {field.type} and does not fit {kind} ({why})",
                    where=table,
                    hint=f"pass {field.name} as {kind}",
                )
            rows = rows.set_column(place, field.with_type(kind), values)
    return rows


def _identities(base: pa.Table, layouts: Sequence[Layout]) -> list[_ColumnIdentity | None]:
    """Returns the identity of each column, or None for columns of other tables and those without metadata."""
    ours = {one.relation.relid for one in layouts}
    found = [_ColumnIdentity.of(f) for f in base.schema]
    return [one if one is not None and one.relid in ours else None for one in found]
