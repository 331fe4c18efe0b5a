"""The canonical change table: a DataFrame with header columns, then the columns of the source table.

One row is one image of one change. The layout is Qlik's (spec/qlik.md §1.1). (`change_seq`, `change_oper`) is
the key, and `B` sorts before its `U`.
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
"""`operation` by `change_oper`."""

PARTLY = "p"
"""The `Relation.identity` of a table whose old images may have no values outside the key: a NULL there means
unknown."""

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
"""Header columns of tailrace's change tables in order, with Spark types; the first seven are Qlik's.

`column_mask` has the columns that the image contains (NULL: all).
"""


EXTRA_HEADERS: dict[str, str] = {
    "partition_name": "string",
    "user_name": "string",
    "statement_id": "bigint",
    "tenant_id": "int",
    "partition_id": "int",
    "recid": "string",
    "native_oper": "string",
}
"""Optional headers after `HEADERS`, for values that some vendors record beyond Qlik's seven headers."""

NATIVE = "native_"
"""Prefix of headers with vendor-specific values (`header__native_<vendor column>`), so that the vendor's
tables can be written again."""


@dataclass(frozen=True)
class Column:
    """A column of one layout of a source table.

    Attributes:
        name: its name in that layout.
        attnum: its identity over time: a rename keeps it, drop and add creates a new one. If the source's
            column is unknown, a unique negative number, so that the column is treated as new.
        source_type: the source's type, e.g. `numeric(12,2)`.
        kind: the wire conversion (a key of the source's type map), e.g. `numeric`.
        type: Spark SQL type in the lake, e.g. `decimal(12,2)`.
        key: whether it belongs to the row key for apply.
        missing: the value (source text) of rows written before the column existed; None for NULL, or if
            unknown, which `note` says then.
        note: a warning for the table's record, e.g. why a numeric is stored as text.
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
    """Returns schema and name of `schema.name`. Names may contain dots, schemas may not; without a dot there
    is no schema.

    >>> split("shop.order.lines"), split("keylog")
    (('shop', 'order.lines'), ('', 'keylog'))
    """
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else ("", table)


@dataclass(frozen=True)
class Relation:
    """A layout of a source table, valid from a position on.

    `identity` is PostgreSQL's letter for the columns of an old image: d the primary key, i an index's
    columns, f all, n none; `PARTLY`: all, except in some partitions. Sources that always send full images use
    f.
    """

    relid: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...] = field(default=())
    evidence: str = field(default="", compare=False, repr=False)

    @property
    def table(self) -> str:
        """`schema.name`, or the name without a schema: the table's name everywhere in tailrace.

        >>> Relation(1, "shop", "item", "f").table, Relation(1, "", "item", "f").table
        ('shop.item', 'item')
        """
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def key(self) -> list[str]:
        """Names of the row key's columns; empty for a keyless table."""
        return [c.name for c in self.columns if c.key]

    def column(self, name: str) -> Column:
        """Returns the column with that name.

        Raises:
            KeyError: the layout has no such column.
        """
        return {c.name: c for c in self.columns}[name]

    def to_json(self) -> str:
        """Returns the layout as JSON text for the relations table.

        >>> r = Relation(1, "s", "t", "d", (Column("id", 1, "integer", "int4", "int", key=True),))
        >>> Relation.from_json(r.to_json()) == r
        True
        """
        return json.dumps({**vars(self), "columns": [vars(c) for c in self.columns]})

    @staticmethod
    def from_json(text: str) -> Relation:
        """Returns the layout that `to_json` wrote."""
        raw = json.loads(text)
        columns = tuple(Column(**c) for c in raw.pop("columns"))
        return Relation(columns=columns, **raw)

    def with_columns(self, columns: Sequence[Column]) -> Relation:
        """Returns the table with other columns."""
        return replace(self, columns=tuple(columns))


@dataclass(frozen=True)
class ChangeTable:
    """A change table: its DataFrame, the row key, and the source's columns in it.

    Attributes:
        df: header columns (`prefix` + names of `HEADERS`, any subset with change_seq and change_oper) and
            data columns.
        key: names of the row key's columns; empty for a keyless table.
        columns: names of the data columns to use, in order.
        prefix: the prefix of header names.
        name: the source table, `schema.name`; empty if unknown.
    """

    df: DataFrame
    key: list[str]
    columns: list[str]
    prefix: str = PREFIX
    name: str = ""

    def header(self, name: str) -> str:
        """Returns the full name of a header column."""
        return self.prefix + name

    @property
    def headers(self) -> list[str]:
        """The names of the table's headers without prefix, in order."""
        data = set(self.columns)
        return [
            c.removeprefix(self.prefix)
            for c in self.df.columns
            if c.startswith(self.prefix) and c not in data
        ]

    def with_df(self, df: DataFrame) -> ChangeTable:
        """Returns the change table with other rows."""
        return replace(self, df=df)

    def ordinal(self, name: str) -> int:
        """Returns the ordinal of a column in the whole change table: its bit in the masks, from 0."""
        return self.df.columns.index(name)
