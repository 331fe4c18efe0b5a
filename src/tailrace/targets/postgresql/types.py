"""The types of a PostgreSQL target's columns: those of a PostgreSQL source, where a text says all of a value.

Values travel in the lake's types. What is text there goes into the type that the source gave it: the
statements that write, and that look for keys, cast it (`casts`). A table that has other types than these,
because it is older or because others changed it, is written as it is.
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

_ENDLESS = "a source's `infinity` comes as [the lake has it](types.md): 9999-12-31"
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
    "date": ("date", f"4713 BC to 5874897 AD; others are refused; {_ENDLESS}"),
    "timestamp_ntz": ("timestamp", f"microseconds; 4713 BC to 294276 AD; others are refused; {_ENDLESS}"),
    "timestamp": ("timestamptz", f"microseconds; 4713 BC to 294276 AD; others are refused; {_ENDLESS}"),
    "array<...>": ("...[]", "of one of these types; one dimension; no part of a key"),
}
"""Lake type (Spark SQL) -> PostgreSQL type of the target's column, and what to know."""

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
    """The PostgreSQL type of a lake type; UnsupportedError when there is none.

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
    """The type that a column of a new target gets.

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
"""Kinds of columns that the map of types has no row for."""


def cast_type(kind: str) -> str:
    """A type whose cast does not cut values that are too long: the assignment that follows refuses them.

    >>> base("character(3)"), base("bit(8)"), base("character varying(3)[]"), base("jsonb")
    ('bpchar', 'varbit', 'character varying[]', 'jsonb')
    """
    plain = _MODIFIER.sub("", kind)
    element = plain.removesuffix("[]")
    return {"character": "bpchar", "bit": "varbit"}.get(element, element) + plain[len(element) :]


_THERE = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


def column_types(session: Session, target: str) -> dict[str, str]:
    """The columns of a target (quoted SQL) and their types, as `format_type` names them; none if it does not
    exist."""
    return dict(session.execute(_THERE, (target,)).fetchall())


@dataclass(frozen=True)
class TargetTypes:
    """Conversions of values on their way to a target's columns.

    Attributes:
        casts: the target's types of columns whose values are text on their way, and something else there.
        exact: every column has the type in which its values travel.
    """

    casts: Mapping[int, str]
    exact: bool

    @staticmethod
    def of(session: Session, target: str, columns: Sequence[Column]) -> TargetTypes:
        """Reads them; of the columns, by their places."""
        kinds, into, exact = column_types(session, target), dict[int, str](), True
        for i, c in enumerate(columns):
            plain = sql_type(c.type)
            kind = kinds.get(c.name, formatted(plain))
            exact = exact and kind == formatted(plain)
            if plain == "text" and _MODIFIER.sub("", kind) not in _TEXTS:
                into[i] = cast_type(kind)
        return TargetTypes(into, exact)


def formatted(kind: str) -> str:
    """A type as `format_type` names it.

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
    """Places of columns, among those of `casts`, whose values the server may hold to be equal though their
    texts differ.

    >>> varied({0: "numeric", 1: "uuid", 2: "interval"})  # 1.0 and 1.00; 1 day and 24:00:00
    {0, 2}
    """
    return {place for place, kind in into.items() if kind not in _ONE_TEXT}


_CAST_OTHERWISE = {"bpchar", "inet"}
"""Types whose cast to text is not what the server sends: it takes blanks off, adds /32 to a host."""


def as_text(cell: str, lake: str, kind: str | None) -> str:
    """SQL of a target's value as the lake has it, to be compared; `kind`: what it is cast from, if that is
    text in the lake. Texts are compared as they are, whatever the column's collation holds to be equal."""
    plain = sql_type(lake)
    if kind in _CAST_OTHERWISE:
        return f'(CASE WHEN {cell} IS NOT NULL THEN concat({cell}) END) COLLATE "C"'
    return f"{cell}::{plain}" + (' COLLATE "C"' if plain in ("text", "text[]") else "")


def retype_steps(have: Column, want: Column, now: str | None) -> list[str]:
    """What ALTER TABLE has to do for a column (`want.name`) to become another type; `now`: the type that it
    has. Types that others gave it stay as long as the values are the same to the lake."""
    old, new = column_type(have), column_type(want)
    same = sql_type(have.type) == sql_type(want.type)
    if old == new or (same and (now or old) != old):
        return []
    name = quoted(want.name)
    return [f"ALTER COLUMN {name} TYPE {new} USING {name}::{cast_type(new)}"]


def markdown() -> str:
    """The map of types as the documentation page docs/types-postgresql.md."""
    rows = "".join(f"| `{lake}` | `{sql}` | {note or ' '} |\n" for lake, (sql, note) in TYPES.items())
    kept: Mapping[str, str] = {n: note for n, note in KEPT.items() if n not in {*_RANGES, *_PLAIN}}
    more = "".join(f"| `{n}` | {note or ' '} |\n" for n, note in kept.items())
    return (_PAGE % (rows, more)).replace("|   |", "| |")


_PAGE = """# Types of PostgreSQL targets

Generated from `tailrace.targets.postgresql.types`; do not edit.

| lake (Spark SQL) | PostgreSQL target | remark |
| --- | --- | --- |
%s
## From PostgreSQL to PostgreSQL

Some types of a PostgreSQL source are text in the lake. A PostgreSQL target has them as the source has:

| source and target | remark |
| --- | --- |
%s| ranges, multiranges, geometric types | built-in ones |
| arrays | of all these types, and of `text`, numbers, dates, times, `boolean`, `bytea` |

The others are `text` in the target: enums, composites, domains over text, types of extensions
(`citext`, `hstore`, PostGIS), `xml`, `money`, `name`, `"char"`, and arrays of them. So are the columns of a
target that several sources feed ([mapping](mapping.md)). Changing the type of a column at the source changes
it in the target, where its values can be turned into the new type without the source ([DDL](ddl.md)).

Tables that tailrace makes have these types and a primary key. NOT NULL, defaults, indexes and other
constraints stay at the source: make the tables by hand to have them (see below), or add them later. Rows that
they refuse are [data errors](apply.md).

## Tables made by hand

To have indexes and other constraints, too, make the tables before the first baseline (`pg_dump --schema-only`
writes them), without foreign keys between them ([why](limits.md)), and leave them empty. Such a table is
filled and keeps all it has; a new baseline empties and fills it again, and `remove --drop-target` deletes the
rows only. So it is with a table that several sources feed, whichever of them came first.

It must fit, or it is refused with each difference and the `ALTER TABLE` that removes it:

- It has every column of the source, with the type that tailrace would make, with the type of the source, or
  with a wider one (`integer` to `bigint` or `numeric`, `varchar(20)` to `varchar(40)` or `text`, any text to
  `text`).
- Other columns may be NULL, or have a default. The column in which [soft delete](apply.md) marks rows is
  `text`, may be NULL and has no default.
- It has the row key as its primary key or as a unique index, or no primary key: then it gets one.
- It computes no column of the source. A column outside the key is not GENERATED ALWAYS AS IDENTITY.

It may be partitioned. Rows that it refuses (constraints, triggers, a missing partition) are
[data errors](apply.md): the batch is applied again one change at a time, and the policy of each refused
change decides.

A target keeps a column whose type was changed by hand. Values are cast to that type; one that does not fit is
a data error. Rows of a table without a key are compared by their texts.
"""
