"""Prepares a mapping for a layout of its source: finds the target's columns, and every mistake, without data.

`mapped.py` applies it to change tables.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from ...errors import ConfigError, UnsupportedError
from ...model.change import Column, Relation
from ...model.types import arrow_type
from ...targets.projection import Projection
from .expressions import Expression, analysed, empty_of, missing
from .static_checks import plain_mistakes
from .table_map import TableMap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OWN_NUMBERS = 1 << 20  # above every source's attnum
_SPARSE = ("string", "binary", "decimal")
"""Types whose values PostgreSQL may leave out of an image if an update did not change them."""


@dataclass(frozen=True)
class MappedColumn:
    """One column of a target.

    Attributes:
        column: the column.
        source: the source's column that it is a copy of.
        expression: or the expression that computes it.
        constant: or its constant value.
        absent: none of these; the target keeps its value.
    """

    column: Column
    source: str | None = None
    expression: Expression | None = None
    constant: str | None = None
    absent: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """The source's columns that it reads."""
        if self.source is not None:
            return (self.source,)
        return self.expression.needs if self.expression else ()


@dataclass(frozen=True)
class Prepared:
    """A mapping for one layout of its source.

    Attributes:
        map: the mapping.
        source: the layout of the source.
        relation: the layout of the target.
        parts: the columns of the target.
        where: the criteria, if there are any.
    """

    map: TableMap
    source: Relation
    relation: Relation
    parts: tuple[MappedColumn, ...]
    where: Expression | None = None

    @property
    def moves_keys(self) -> bool:
        """Whether an update that does not change the source's key may change the target's."""
        read = {n for p in self.parts if p.column.key for n in p.needs}
        return not read <= set(self.source.key)


def prepare(spark: Callable[[], SparkSession], wanted: TableMap, relation: Relation) -> Prepared:
    """Prepares the mapping for one layout of its source. `spark` is only called for expressions.

    Raises:
        ConfigError: the mapping has mistakes.
    """
    prepared, wrong = _prepared(spark, wanted, relation)
    if prepared is None:
        raise ConfigError(
            "\n".join(wrong),
            where=f"mapping of {wanted.source}",
            hint="correct `tables` (docs/mapping.md)",
        )
    return prepared


def projection_of(steps: Sequence[Prepared]) -> Projection | None:
    """Returns the projection that is equal to mappings, applied one after the other.

    None if one of them reads values, keeps columns of the target, or changes a type.
    """
    found: Projection | None = None
    for step in steps:
        types = {c.name: c.type for c in step.source.columns}
        if step.where is not None or any(p.absent or p.expression is not None for p in step.parts):
            return None
        if any(p.source is not None and types[p.source] != p.column.type for p in step.parts):
            return None
        sources = {p.column.name: p.source for p in step.parts if p.source is not None}
        constants = {p.column.name: p.constant for p in step.parts if p.constant is not None}
        found = Projection(sources, constants) if found is None else found.then(sources, constants)
    return found


def mistakes(spark: Callable[[], SparkSession], wanted: TableMap, relation: Relation) -> list[str]:
    """The mistakes in a mapping for a layout of its source, as messages."""
    return _prepared(spark, wanted, relation)[1]


def _prepared(
    spark: Callable[[], SparkSession], wanted: TableMap, relation: Relation
) -> tuple[Prepared | None, list[str]]:
    wrong = plain_mistakes(wanted, relation)

    @cache
    def empty() -> DataFrame:
        return empty_of(spark(), relation)

    parts = _parts(empty, wanted, relation, wrong)
    where = _where(empty, wanted, wrong)
    parts = _keyed(wanted, relation, parts, wrong)
    wrong += _unseen(relation, parts, where)
    if wrong:
        return None, wrong
    # The target's layout keeps the name of the source table.
    target = relation.with_columns([p.column for p in parts])
    return Prepared(wanted, relation, target, tuple(parts), where), []


def _parts(
    empty: Callable[[], DataFrame], wanted: TableMap, relation: Relation, wrong: list[str]
) -> list[MappedColumn]:
    """The columns of the target; mistakes are added to `wrong`."""
    known = {c.name: c for c in relation.columns}
    renamed = {text for text in wanted.columns.values() if text in known}
    mapped: dict[str, MappedColumn] = {}
    for name, text in wanted.columns.items():
        if text in known:
            # Columns are identified by number over layouts: only the first copy has the source's number.
            copied = any(p.source == text for p in mapped.values())
            number = _own_number(name) if copied else known[text].attnum
            mapped[name] = MappedColumn(replace(known[text], name=name, attnum=number), source=text)
        elif (found := _expression(empty, f"columns.{name}", text, wrong)) is not None:
            mapped[name] = MappedColumn(_new_column(name, text, "expression", found.type), expression=found)
    for name, value in wanted.constants.items():
        mapped[name] = MappedColumn(_new_column(name, value, "constant", "string"), constant=value)
    parts = []
    for c in relation.columns:
        # The columns that this one becomes have its position in the source.
        copies = [n for n, p in mapped.items() if c.name in (n, p.source)]
        parts += [mapped.pop(n) for n in copies]
        if not copies and c.name not in {*wanted.drop, *renamed, *wanted.columns, *wanted.constants}:
            parts.append(MappedColumn(c, source=c.name))
    return [*parts, *mapped.values()]


def _new_column(name: str, text: str, kind: str, lake: str) -> Column:
    return Column(name, _own_number(name), text, kind, lake)


def _own_number(name: str) -> int:
    """The number of a column that the source does not have."""
    return _OWN_NUMBERS + zlib.crc32(name.encode())


def _expression(empty: Callable[[], DataFrame], what: str, text: str, wrong: list[str]) -> Expression | None:
    try:
        found = analysed(empty(), text)
    except ValueError as error:
        wrong.append(f"{what}: {error}")
        return None
    try:
        if what != "where":
            arrow_type(found.type)
    except UnsupportedError as error:
        wrong.append(f"{what}: {text!r} has a type that targets do not have: {error.what}")
        return None
    return found


def _where(empty: Callable[[], DataFrame], wanted: TableMap, wrong: list[str]) -> Expression | None:
    if wanted.where is None:
        return None
    found = _expression(empty, "where", wanted.where, wrong)
    if found is not None and found.type != "boolean":
        wrong.append(f"where: {wanted.where!r} is {found.type}, not boolean")
        return None
    return found


def _keyed(
    wanted: TableMap, relation: Relation, parts: Sequence[MappedColumn], wrong: list[str]
) -> list[MappedColumn]:
    """The parts with their key flags."""
    key = set(wanted.key)
    if not key and relation.key:
        key = set(wanted.constants) | {p.column.name for p in parts if p.source in relation.key}
    keyed = [replace(p, column=replace(p.column, key=p.column.name in key)) for p in parts]
    for p in keyed:
        if p.column.key and p.expression and p.expression.nullable:
            wrong.append(
                f"key: {p.column.name!r} may be NULL; use a column of the source's key, or an expression "
                "that is never NULL, such as coalesce(...)"
            )
    return keyed


def _unseen(relation: Relation, parts: Sequence[MappedColumn], where: Expression | None) -> list[str]:
    """The mistakes of criteria and columns that need columns which images of this table may not have."""
    if relation.identity == "f":
        return []
    cure = f"ALTER TABLE {relation.table} REPLICA IDENTITY FULL"
    wrong = []
    if where and (unseen := missing(where.needs, relation.key)):
        wrong.append(f"where: the before image of an update or delete has no {', '.join(unseen)}; {cure}")
    sparse = {c.name for c in relation.columns if c.type.startswith(_SPARSE) and not c.key}
    for p in parts:
        name = p.column.name
        if p.column.key and (unseen := missing(p.needs, relation.key)):
            wrong.append(f"key: {name!r} needs {', '.join(unseen)}, which before images do not have; {cure}")
        elif p.expression and len(p.needs) > 1 and (absent := sorted(sparse & set(p.needs))):
            wrong.append(f"columns.{name}: an update may leave out {', '.join(absent)}; {cure}")
    return wrong
