"""The types of a PostgreSQL target's columns: those of a PostgreSQL source, if a text has the complete value.

Values are sent in the lake's types. Values that are text there are cast to the type of the source by the
statements that write rows and search for keys (`casts`). A table with other types, because it is older or was
altered, is written as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import UnsupportedError
from ...model.change import Column
from ...model.types import element_type
from ...sources.postgresql.connect import Session, quoted
from ...wire.pgtypes import KINDS

_INFINITY = "a source's `infinity` becomes 9999-12-31, as [in the lake](types.md)"
TYPES: dict[str, tuple[str, str]] = {
    "boolean": ("boolean", ""),
    "tinyint": ("smallint", "PostgreSQL has no smaller one"),
    "smallint": ("smallint", ""),
    "int": ("integer", ""),
    "bigint": ("bigint", ""),
    "float": ("real", "`NaN`, `Infinity` and `-Infinity` as they are"),
    "double": ("double precision", "`NaN`, `Infinity` and `-Infinity` as they are"),
    "decimal(p,s)": ("numeric(p,s)", ""),
    "string": ("text", "the character U+0000 is refused; from a PostgreSQL source see below"),
    "binary": ("bytea", ""),
    "date": ("date", f"4713 BC to 5874897 AD; others are refused; {_INFINITY}"),
    "timestamp_ntz": ("timestamp", f"microseconds; 4713 BC to 294276 AD; others are refused; {_INFINITY}"),
    "timestamp": ("timestamptz", f"microseconds; 4713 BC to 294276 AD; others are refused; {_INFINITY}"),
    "array<...>": ("...[]", "of one of these types; one dimension; no part of a key"),
}
"""Lake type (Spark SQL) -> PostgreSQL type of the target's column, and a remark."""

_RANGES = [
    f"{n}{kind}" for kind in ("range", "multirange") for n in ("int4", "int8", "num", "ts", "tstz", "date")
]
_PLAIN = ("point", "line", "lseg", "box", "path", "polygon", "circle")
KEPT = {
    "character varying": "with its length",
    "character": "with its length",
    "numeric": "`numeric` without precision, or with one that no decimal of the lake has; `NaN` and all",
    "uuid": "",
    "json": "text as entered",
    "jsonb": "",
    "interval": "",
    "time without time zone": "",
    "time with time zone": "",
    "bit": "with its length",
    "bit varying": "with its length",
    **dict.fromkeys(("inet", "cidr", "macaddr", "macaddr8", "pg_lsn", "tsvector", "tsquery"), ""),
    **dict.fromkeys(_RANGES, ""),
    **dict.fromkeys(_PLAIN, ""),
}
"""Types of a PostgreSQL source that are text in the lake and stay what they are in a PostgreSQL target."""
_ELEMENTS = {
    *KEPT, "text", "boolean", "smallint", "integer", "bigint", "real", "double precision", "date", "bytea",
    "oid", "timestamp without time zone", "timestamp with time zone",
}  # fmt: skip
_NO_KEYS = {"json", *_PLAIN}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MODIFIER = re.compile(r"\(\d+(,-?\d+)?\)")
_TEXTS = {"text", "character varying"}
"""Types that take any text as it is, and compare with it."""


def sql_type(lake: str) -> str:
    """Returns the PostgreSQL type of a lake type.

    Raises:
        UnsupportedError: PostgreSQL has no such type.

    >>> sql_type("decimal(12, 2)"), sql_type("array<timestamp>")
    ('numeric(12,2)', 'timestamptz[]')
    """
    plain = lake.replace(" ", "").lower()
    if element := element_type(plain):
        return f"{sql_type(element)}[]"
    if found := _DECIMAL.fullmatch(plain):
        return f"numeric({found[1]},{found[2]})"
    if plain not in TYPES:
        raise UnsupportedError(f"no PostgreSQL type for {lake!r}", hint=f"use one of {', '.join(TYPES)}")
    return TYPES[plain][0]


def column_type(column: Column) -> str:
    """Returns the type of a column in a new target.

    >>> column_type(Column("v", 1, "character varying(20)", "varchar", "string"))
    'character varying(20)'
    >>> column_type(Column("v", 1, "integer[]", "array", "string"))
    'integer[]'
    >>> column_type(Column("v", 1, "shop.mood", "enum", "string"))
    'text'
    """
    if column.type != "string" or (column.kind not in KINDS and column.kind not in _MORE):
        return sql_type(column.type)
    element = _MODIFIER.sub("", column.source_type.removesuffix("[]"))
    known = _ELEMENTS if column.source_type.endswith("[]") else KEPT
    return column.source_type if element in known and not (column.key and element in _NO_KEYS) else "text"


_MORE = {"array", "range", "multirange", *_PLAIN, "tsvector", "tsquery"}
"""Kinds of columns that are not in the map of types."""


def cast_type(kind: str) -> str:
    """Returns a type without a length, whose cast does not truncate values. The assignment that follows
    refuses values that are too long.

    >>> [cast_type(kind) for kind in ("character(3)", "bit(8)", "character varying(3)[]", "jsonb")]
    ['bpchar', 'varbit', 'character varying[]', 'jsonb']
    """
    plain = _MODIFIER.sub("", kind)
    element = plain.removesuffix("[]")
    return {"character": "bpchar", "bit": "varbit"}.get(element, element) + plain[len(element) :]


_COLUMN_TYPES = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


def column_types(session: Session, target: str) -> dict[str, str]:
    """Returns the columns of a target (quoted SQL) and their types, as `format_type` names them; empty if it
    does not exist."""
    return dict(session.execute(_COLUMN_TYPES, (target,)).fetchall())


@dataclass(frozen=True)
class TargetTypes:
    """Conversions of values for a target's columns.

    Attributes:
        casts: by index of the column, its type in the target, if values are sent as text and it is another
            type.
        exact: every column has the type in which its values are sent.
    """

    casts: Mapping[int, str]
    exact: bool

    @staticmethod
    def of(session: Session, target: str, columns: Sequence[Column]) -> TargetTypes:
        """Reads the conversions for columns of a target."""
        kinds, into, exact = column_types(session, target), dict[int, str](), True
        for i, c in enumerate(columns):
            plain = sql_type(c.type)
            kind = kinds.get(c.name, formatted(plain))
            exact = exact and kind == formatted(plain)
            if plain == "text" and _MODIFIER.sub("", kind) not in _TEXTS:
                into[i] = cast_type(kind)
        return TargetTypes(into, exact)


def formatted(kind: str) -> str:
    """Returns the name that `format_type` gives a type.

    >>> formatted("timestamptz[]"), formatted("integer")
    ('timestamp with time zone[]', 'integer')
    """
    element = kind.removesuffix("[]")
    return _FORMATTED.get(element, element) + kind[len(element) :]


_FORMATTED = {"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone"}


_ONE_TEXT = {
    "uuid", "bpchar", "bit varying", "varbit", "time without time zone", "time with time zone", "inet",
    "cidr", "macaddr", "macaddr8", "pg_lsn", "int4range", "int8range", "daterange", "tsrange", "tstzrange",
}  # fmt: skip


def ambiguous_texts(into: Mapping[int, str]) -> set[int]:
    """Returns the indices of columns in `casts` whose values the server may treat as equal although their
    texts differ.

    >>> ambiguous_texts({0: "numeric", 1: "uuid", 2: "interval"})  # 1.0 and 1.00; 1 day and 24:00:00
    {0, 2}
    """
    return {index for index, kind in into.items() if kind not in _ONE_TEXT}


_CAST_OTHERWISE = {"bpchar", "inet"}
"""Types whose cast to text differs from the text that the server sends: without trailing blanks, with /32."""


def as_text(cell: str, lake: str, kind: str | None) -> str:
    """Returns the SQL of a target's value in its lake type, for comparisons; `kind`: the type in the target,
    if the value is text in the lake. Texts are compared byte by byte, whatever the column's collation is."""
    plain = sql_type(lake)
    if kind in _CAST_OTHERWISE:
        return f'(CASE WHEN {cell} IS NOT NULL THEN concat({cell}) END) COLLATE "C"'
    return f"{cell}::{plain}" + (' COLLATE "C"' if plain in ("text", "text[]") else "")


def retype_steps(have: Column, want: Column, now: str | None) -> list[str]:
    """Returns the steps of ALTER TABLE that change the type of a column (`want.name`); `now`: its type in the
    target. A type that was altered in the target stays while the lake type is the same."""
    old, new = column_type(have), column_type(want)
    same = sql_type(have.type) == sql_type(want.type)
    if old == new or (same and (now or old) != old):
        return []
    name = quoted(want.name)
    return [f"ALTER COLUMN {name} TYPE {new} USING {name}::{cast_type(new)}"]


def markdown() -> str:
    """Returns the map of types as the page docs/types-postgresql.md."""
    rows = "".join(f"| `{lake}` | `{sql}` | {note or ' '} |\n" for lake, (sql, note) in TYPES.items())
    text_types: Mapping[str, str] = {n: note for n, note in KEPT.items() if n not in {*_RANGES, *_PLAIN}}
    more = "".join(f"| `{n}` | {note or ' '} |\n" for n, note in text_types.items())
    return (_PAGE % (rows, more)).replace("|   |", "| |")


_PAGE = """# Types of PostgreSQL targets

Generated from `tailrace.targets.postgresql.types`; do not edit.

| lake (Spark SQL) | PostgreSQL target | remark |
| --- | --- | --- |
%s
## From PostgreSQL to PostgreSQL

Some types of a PostgreSQL source are text in the lake. In a PostgreSQL target they are the same as at the
source:

| source and target | remark |
| --- | --- |
%s| ranges, multiranges, geometric types | built-in ones |
| arrays | of all these types, and of `text`, numbers, dates, times, `boolean`, `bytea` |

The others are `text` in the target: enums, composites, domains over text, types of extensions
(`citext`, `hstore`, PostGIS), `xml`, `money`, `name`, `"char"`, and arrays of them. So are the columns of a
target that several sources feed ([mapping](mapping.md)). Changing the type of a column at the source changes
it in the target, where its values can be turned into the new type without the source ([DDL](ddl.md)).

Tables that tailrace creates have these types and a primary key. NOT NULL, defaults, indexes and other
constraints are not copied from the source: create the tables manually to have them (see below), or add them
later. Rows that they refuse are [data errors](apply.md).

## Tables made by hand

To have indexes and other constraints, too, create the tables before the first baseline (`pg_dump
--schema-only` writes them), without foreign keys between them ([why](limits.md)), and leave them empty. Such
a table is filled and keeps all of its indexes and constraints. A new baseline empties and fills it again, and
`remove --drop-target` deletes only the rows. The same is true for a table of several sources, whichever of
them was first.

A table that does not fit is refused, with each difference and the `ALTER TABLE` that removes it. It fits if:

- It has every column of the source, with the type that tailrace would use, with the type of the source, or
  with a wider one (`integer` to `bigint` or `numeric`, `varchar(20)` to `varchar(40)` or `text`, any text to
  `text`).
- Other columns may be NULL, or have a default. The column in which [soft delete](apply.md) marks rows is
  `text`, may be NULL and has no default.
- It has the row key as its primary key or as a unique index. Without a primary key, tailrace adds it.
- No column of the source is computed. No column outside the key is GENERATED ALWAYS AS IDENTITY.

It may be partitioned. Rows that it refuses (constraints, triggers, a missing partition) are
[data errors](apply.md): the batch is applied again one change at a time, and the policy of each refused
change decides.

A column whose type was changed manually in the target keeps that type. Values are cast to it; a value that
does not fit is a data error. Rows of a keyless table are compared by their texts.
"""
