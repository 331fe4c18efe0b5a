"""The lake's column types: Spark SQL type text to Arrow types and back, for the types in change tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from ..errors import UnsupportedError
from .change import HEADERS, PREFIX, Column

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_ARRAY = re.compile(r"array<([^<>]+)>")


def arrow_type(text: str) -> pa.DataType:
    """Returns the Arrow type of a Spark SQL type.

    >>> arrow_type("decimal(12,2)")
    Decimal128Type(decimal128(12, 2))
    >>> arrow_type("timestamp")
    TimestampType(timestamp[us, tz=UTC])
    >>> arrow_type("array<int>")
    ListType(list<element: int32>)

    Raises:
        UnsupportedError: change tables do not use this type.
    """
    plain = text.replace(" ", "").lower()
    if found := _ARRAY.fullmatch(plain):
        return pa.list_(pa.field("element", arrow_type(found[1])))
    if found := _DECIMAL.fullmatch(plain):
        return pa.decimal128(int(found[1]), int(found[2]))
    if plain not in _SIMPLE:
        raise UnsupportedError(
            f"no lake type {text!r}",
            hint=f"use one of {', '.join(_SIMPLE)}, decimal(p,s), or array<...> of one",
        )
    return _SIMPLE[plain]


def element_type(text: str) -> str | None:
    """Returns the type of an array type's elements; None for other types.

    >>> element_type("array<decimal(5,1)>"), element_type("int")
    ('decimal(5,1)', None)
    """
    found = _ARRAY.fullmatch(text.replace(" ", "").lower())
    return found[1] if found else None


def is_lake_type(text: str) -> bool:
    """Returns whether targets can hold a Spark SQL type.

    >>> is_lake_type("decimal(12,2)"), is_lake_type("interval day")
    (True, False)
    """
    try:
        arrow_type(text)
    except UnsupportedError:
        return False
    return True


def spark_type(kind: pa.DataType) -> str:
    """Returns the Spark SQL type of an Arrow type.

    >>> spark_type(pa.decimal128(5, 1))
    'decimal(5,1)'
    """
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    for text, known in _SIMPLE.items():
        if known == kind:
            return text
    for like, text in ((pa.types.is_large_string, "string"), (pa.types.is_string_view, "string")):
        if like(kind):
            return text
    for like, text in ((pa.types.is_large_binary, "binary"), (pa.types.is_binary_view, "binary")):
        if like(kind):
            return text
    raise UnsupportedError(f"no lake type for Arrow type {kind}")


def schema_of(columns: Iterable[Column]) -> pa.Schema:
    """Returns the Arrow schema of a target table with these columns, all nullable."""
    return pa.schema([pa.field(c.name, arrow_type(c.type)) for c in columns])


def header_schema(prefix: str = PREFIX) -> pa.Schema:
    """Returns the Arrow schema of a change table's header columns."""
    return pa.schema([pa.field(prefix + name, arrow_type(kind)) for name, kind in HEADERS.items()])


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with string and binary types that every reader supports."""

    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return pa.string()
        if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
            return pa.binary()
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return pa.list_(pa.field("element", plain(kind.value_type)))
        return kind

    return pa.schema([pa.field(f.name, plain(f.type), f.nullable) for f in schema])
