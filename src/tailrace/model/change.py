"""The one idea: a change table is a DataFrame, header columns first, then the columns of the source table.

One row is one image of one change. The canonical layout is Qlik's (spec/qlik.md §1.1); (`change_seq`,
`change_oper`) is the key, and `B` sorts before the `U` it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INSERT, UPDATE, DELETE, BEFORE, TRUNCATE = "I", "U", "D", "B", "T"
OPERATIONS = {
    INSERT: "INSERT",
    UPDATE: "UPDATE",
    DELETE: "DELETE",
    BEFORE: "BEFOREIMAGE",
    TRUNCATE: "TRUNCATE",
}
"""`change_oper` -> `operation`."""

PARTLY = "p"
"""The `Relation.identity` of a table whose old images may lack values outside of the key: where such a value
is NULL, it is unknown."""

PREFIX = "header__"
HEADERS: dict[str, str] = {
    "change_seq": "string",
    "change_oper": "string",
    "change_mask": "binary",
    "stream_position": "string",
    "operation": "string",
    "transaction_id": "string",
    "timestamp": "timestamp",
    "column_mask": "binary",
}
"""Header columns of tailrace's own change tables, in order, with Spark types; the first seven are Qlik's.
`column_mask` says which columns the image carries (NULL: all)."""


EXTRA_HEADERS: dict[str, str] = {
    "partition_name": "string",
    "user_name": "string",
    "statement_id": "bigint",
    "tenant_id": "int",
    "partition_id": "int",
    "recid": "string",
    "native_oper": "string",
}
"""Optional headers: what some vendors record about a change beyond Qlik's seven headers. They come after
`HEADERS`."""

NATIVE = "native_"
"""Prefix of headers that keep vendor-specific values (`header__native_<vendor column>`), so that the
vendor's tables can be written again."""


@dataclass(frozen=True)
class Column:
    """One column of a source table, as one layout of it has it.

    Attributes:
        name: its name in that layout.
        attnum: its identity over time: a rename keeps it, drop and add makes a new one. Where it cannot be
            told which of the source's columns it is, a negative number that no other column ever has: such
            a column is taken for a new one.
        source_type: the source's own words, e.g. `numeric(12,2)`.
        kind: which wire conversion reads it (a key of the source's type map), e.g. `numeric`.
        type: Spark SQL type in the lake, e.g. `decimal(12,2)`.
        key: part of the row key that appliers use.
        missing: the value (source text) that rows written before the column existed have; None: NULL, or
            unknown, which `note` says then.
        note: a warning for the table's record, e.g. why a numeric is kept as text.
    """

    name: str
    attnum: int
    source_type: str
    kind: str
    type: str
    key: bool = False
    missing: str | None = None
    note: str | None = None


def split(table: str) -> tuple[str, str]:
    """Schema and name of `schema.name`. Names may have dots, schemas have none; without a dot there is no
    schema.

    >>> split("shop.order.lines"), split("keylog")
    (('shop', 'order.lines'), ('', 'keylog'))
    """
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else ("", table)


@dataclass(frozen=True)
class Relation:
    """One layout of a source table, valid from a position on.

    `identity` is PostgreSQL's letter for what an old image carries: d the primary key, i an index's columns,
    f everything, n nothing; `PARTLY`: f, but in some partitions less. Sources that always send full images
    say f.
    """

    relid: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...] = field(default=())
    evidence: str = field(default="", compare=False, repr=False)

    @property
    def table(self) -> str:
        """`schema.name`, or the name alone if there is no schema: the table's name everywhere in tailrace.

        >>> Relation(1, "shop", "item", "f").table, Relation(1, "", "item", "f").table
        ('shop.item', 'item')
        """
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def key(self) -> list[str]:
        """Names of the row key's columns; empty for a table without key."""
        return [c.name for c in self.columns if c.key]

    def column(self, name: str) -> Column:
        """The column of that name; KeyError when the layout has none."""
        return {c.name: c for c in self.columns}[name]

    def to_json(self) -> str:
        """The layout as JSON text, for the relations table.

        >>> r = Relation(1, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
        >>> Relation.from_json(r.to_json()) == r
        True
        """
        return json.dumps({**vars(self), "columns": [vars(c) for c in self.columns]})

    @staticmethod
    def from_json(text: str) -> Relation:
        """The layout that `to_json` wrote."""
        raw = json.loads(text)
        columns = tuple(Column(**c) for c in raw.pop("columns"))
        return Relation(columns=columns, **raw)

    def with_columns(self, columns: Sequence[Column]) -> Relation:
        """The same table with other columns."""
        return replace(self, columns=tuple(columns))


@dataclass(frozen=True)
class ChangeTable:
    """A change table: its DataFrame, the row key, and the source's columns in it.

    Attributes:
        df: header columns (`prefix` + names of `HEADERS`, any subset that has change_seq and change_oper)
            and data columns.
        key: names of the row key's columns; empty when the source table has none.
        columns: names of the data columns to use, in order.
        prefix: what header names start with.
        name: the source table, `schema.name`; empty when nothing says it.
    """

    df: DataFrame
    key: list[str]
    columns: list[str]
    prefix: str = PREFIX
    name: str = ""

    def header(self, name: str) -> str:
        """The full name of a header column."""
        return self.prefix + name

    @property
    def headers(self) -> list[str]:
        """The names of the headers that the table has, without prefix, in order."""
        data = set(self.columns)
        return [
            c.removeprefix(self.prefix)
            for c in self.df.columns
            if c.startswith(self.prefix) and c not in data
        ]

    def with_df(self, df: DataFrame) -> ChangeTable:
        """The same change table with other rows."""
        return replace(self, df=df)

    def ordinal(self, name: str) -> int:
        """The ordinal of a column in the whole change table: its bit in the masks, from 0."""
        return self.df.columns.index(name)
