"""The lake types for PostgreSQL's types, as data.

Types without an entry become a string with PostgreSQL's text. The source sets the session parameters that
determine the text: datestyle ISO, intervalstyle postgres, extra_float_digits 1, timezone UTC, bytea_output
hex.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A row of the type map.

    Attributes:
        lake: the Spark SQL type, or a function from PostgreSQL's type modifier to the type and a note.
        remark: a note for readers of the lake.
        shown: the lake type in the documentation, if it is not one fixed type.
    """

    lake: str | Callable[[int], tuple[str, str | None]]
    remark: str = ""
    shown: str = ""


def numeric(typmod: int) -> tuple[str, str | None]:
    """Returns the lake type of a numeric with a type modifier, and a note if it has to stay text.

    >>> numeric(((12 << 16) | 2) + 4)
    ('decimal(12,2)', None)
    """
    if typmod < 4:
        return "string", "numeric without precision is kept as text; give the column a type to get a decimal"
    precision, scale = (typmod - 4) >> 16 & 0xFFFF, (typmod - 4) & 0x7FF
    scale -= (scale & 0x400) << 1  # an 11-bit signed number since PostgreSQL 15
    if precision <= 38 and 0 <= scale <= precision:
        return f"decimal({precision},{scale})", None
    return "string", f"numeric({precision},{scale}) is kept as text: no decimal of at most 38 digits holds it"


_BAD = "`NaN`, `Infinity`: bad values"
_DATES = (
    "`infinity` is 9999-12-31, `-infinity` 0001-01-01 (bad values in a key); "
    "before year 1, after 9999: bad values"
)
_TIMES = (
    "microseconds; `infinity` is 9999-12-31 23:59:59.999999, `-infinity` 0001-01-01 00:00:00 "
    "(bad values in a key); before year 1, after 9999: bad values"
)

KINDS: dict[str, Kind] = {
    "bool": Kind("boolean"),
    "int2": Kind("smallint"),
    "int4": Kind("int"),
    "int8": Kind("bigint"),
    "oid": Kind("bigint", "unsigned 32-bit"),
    "xid": Kind("bigint", "unsigned 32-bit"),
    "float4": Kind("float", "`NaN`, `Infinity`, `-Infinity` are kept"),
    "float8": Kind("double", "`NaN`, `Infinity`, `-Infinity` are kept"),
    "numeric": Kind(
        numeric,
        f"string without precision, above 38 digits, with negative scale or scale above precision; {_BAD}",
        "decimal(p,s)",
    ),
    "date": Kind("date", _DATES),
    "timestamp": Kind("timestamp_ntz", _TIMES),
    "timestamptz": Kind("timestamp", f"UTC; {_TIMES}"),
    "bytea": Kind("binary"),
    "text": Kind("string"),
    "varchar": Kind("string"),
    "bpchar": Kind("string", "trailing blanks are kept"),
    "char": Kind("string", 'the one-byte type `"char"`'),
    "name": Kind("string"),
    "citext": Kind("string", "comparison is case-sensitive in the lake"),
    "json": Kind("string", "text as entered"),
    "jsonb": Kind("string", "PostgreSQL's normal form"),
    "xml": Kind("string"),
    "uuid": Kind("string", "lower case with hyphens"),
    "money": Kind("string", "depends on the server's lc_monetary"),
    "interval": Kind("string", "`1 year 2 mons 3 days 04:05:06.789`"),
    "time": Kind("string", "`04:05:06.789`, up to `24:00:00`"),
    "timetz": Kind("string", "`04:05:06.789+02`"),
    "inet": Kind("string"),
    "cidr": Kind("string"),
    "macaddr": Kind("string"),
    "macaddr8": Kind("string"),
    "bit": Kind("string", "`0` and `1`"),
    "varbit": Kind("string", "`0` and `1`"),
    "pg_lsn": Kind("string", "does not sort as text"),
    "xid8": Kind("string", "unsigned 64-bit"),
}
"""The type map by PostgreSQL base type."""

OTHERS = {
    "enums": "the label",
    "arrays": "`{1,NULL,3}`; give the column a type (`array<int>`) to get an array of one dimension",
    "ranges, multiranges": "`[1,5)`",
    "composites": "`(1,two)`",
    "domains": "as their base type",
    "geometric types, tsvector, tsquery, every other type": "",
}
"""Documentation of types without a row."""


def lake_type(kind: str, typmod: int = -1) -> tuple[str, str | None]:
    """Returns the Spark SQL type for a PostgreSQL base type, and a note if there is something to report.

    >>> lake_type("int4"), lake_type("tsvector")
    (('int', None), ('string', None))
    """
    lake = KINDS[kind].lake if kind in KINDS else "string"
    return (lake, None) if isinstance(lake, str) else lake(typmod)


def markdown() -> str:
    """Returns the documentation page docs/types.md."""
    rows = [(f"`{name}`", f"`{kind.shown or kind.lake}`", kind.remark) for name, kind in KINDS.items()]
    rows += [(name, "" if "base" in remark else "`string`", remark) for name, remark in OTHERS.items()]
    return _PAGE + "".join(f"| {' | '.join(row)} |\n" for row in rows).replace("|  |", "| |")


_PAGE = """# Types

Generated from `tailrace.wire.pgtypes`; do not edit.

A string holds PostgreSQL's own text of the value. A *bad value* is one that its lake type cannot hold: the
setting `on_bad_value` says whether its table is suspended before it, or continues with NULL; in a row key,
which cannot be NULL, it suspends the table in either case. A task file can give any column
another type; `string` always works and keeps the source's text. A decimal is never rounded: a value
with more digits than its type is bad. A PostgreSQL target has most of these types as the source has them
([which](types-postgresql.md)).

| PostgreSQL | lake (Spark SQL) | remark |
| --- | --- | --- |
"""
