"""Rows of before a range: which of the source's columns they have, as those of `as_of` and `current` tell."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..errors import ConfigError, UnsupportedError
from ..lake import log
from ..lake.log import Layout
from ..wire.exact_values import exactly
from .layouts import before, in_force, layout_of, retyped
from .points import Point

_TOLD = b"tailrace.column"
"""Metadata of a field: which column it is, of which layout."""


@dataclass(frozen=True)
class LayoutRange:
    """Changes from one change sequence to another, and the layout that they have."""

    layout: Layout
    first: str
    last: str


@dataclass(frozen=True)
class _Told:
    """The table and the column that a field has values of, their type, and the change number from which its
    layout was valid."""

    relid: int
    attnum: int
    type: str
    number: int

    @staticmethod
    def of(field: pa.Field) -> _Told | None:
        """What a field tells; None: nothing."""
        said = (field.metadata or {}).get(_TOLD)
        return None if said is None else _Told(**json.loads(said))


def told(schema: pa.Schema, layout: Layout) -> pa.Schema:
    """The columns of rows that have a layout, each of which tells which one it is. Arrow keeps that when
    columns are chosen or renamed, and in Parquet files."""
    relid, number = layout.relation.relid, log.number(layout)
    known = {c.name: _Told(relid, c.attnum, c.type, number) for c in layout.relation.columns}
    return pa.schema(
        [f.with_metadata({_TOLD: json.dumps(vars(known[f.name]))}) if f.name in known else f for f in schema]
    )


def named(base: pa.Table, columns: Collection[str], layouts: Sequence[Layout], layout: Layout) -> pa.Table:
    """Rows of before with the names that their columns have in a layout, without columns that are gone in it.
    Columns that do not tell which they are, as those that somebody else made, keep their names.

    Args:
        base: the rows.
        columns: the names that are asked for.
        layouts: those of the table.
        layout: the one of these that has these names.

    Raises:
        UnsupportedError: a column became another type since, or the table was dropped and created again.
    """
    relation, found = layout.relation, _all_told(base, layouts)
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
            kept[column.name], why = values, retyped(one.type, column)
        if why is not None:
            raise UnsupportedError(
                f"{why} between base and the changes",
                where=relation.table,
                hint="give the rows of after that, or ask for other columns",
            )
    return pa.table(kept)


def laid_under(
    base: pa.Table, schema: pa.Schema, layouts: Sequence[Layout], span: LayoutRange | None, table: str
) -> pa.Table:
    """Rows of before with the names and the types that the changes of a range have (`schema`); columns that
    were added since are NULL.

    Raises:
        ConfigError: they lack a column that the table had, or one has values that are not of its type.
        UnsupportedError: their rows and the changes cannot be told as one table's.
    """
    columns = schema.names
    if span is None:
        return _typed(whole(base, columns, table), schema, table)
    made = named(base, columns, layouts, span.layout)
    numbers = [one.number for one in _all_told(base, layouts) if one is not None]
    wanted = {*columns} if numbers else {c.name for c in span.layout.relation.columns}
    if lacks := wanted - {*made.column_names}:
        # What is between is asked as in a range: of columns that were added, which values they had before.
        if numbers:
            old = in_force(layouts, Point.of(min(numbers)))
            layout_of(layouts, min(old.from_seq, span.first), span.last, only=lacks)
        else:
            old = before(layouts, span.first)
            layout_of(layouts, span.first, span.last, before=True)
        there = {c.attnum for c in old.relation.columns}
        whole(
            made,
            [c.name for c in span.layout.relation.columns if c.attnum in there and c.name in columns],
            table,
        )
        for name in (n for n in columns if n in lacks and n not in made.column_names):
            made = made.append_column(schema.field(name), pa.nulls(made.num_rows, schema.field(name).type))
    return _typed(made, schema, table)


def whole(base: pa.Table, columns: Sequence[str], table: str) -> pa.Table:
    """These columns of rows of before.

    Raises:
        ConfigError: they lack one.
    """
    if missing := [n for n in columns if n not in base.column_names]:
        raise ConfigError(
            f"base has no column {', '.join(missing)}",
            where=table,
            hint=f"it needs {', '.join(columns)}, with the values of before",
        )
    return base.select(list(columns))


def _typed(rows: pa.Table, schema: pa.Schema, table: str) -> pa.Table:
    """Rows whose columns have the types of a schema, where it has them."""
    wanted = {f.name: f.type for f in schema}
    for place, field in enumerate(rows.schema):
        kind = wanted.get(field.name, field.type)
        if field.type != kind:
            values, why = exactly(rows.column(place), kind)
            if why is not None:
                raise ConfigError(
                    f"base has {field.name} as {field.type}: its values cannot be {kind} ({why})",
                    where=table,
                    hint=f"give {field.name} as {kind}",
                )
            rows = rows.set_column(place, field.with_type(kind), values)
    return rows


def _all_told(base: pa.Table, layouts: Sequence[Layout]) -> list[_Told | None]:
    """What each column tells; None: nothing, or of a table that is not this one."""
    ours = {one.relation.relid for one in layouts}
    found = [_Told.of(f) for f in base.schema]
    return [one if one is not None and one.relid in ours else None for one in found]
