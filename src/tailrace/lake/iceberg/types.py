"""The types of Iceberg columns, and Iceberg schemas for columns of targets.

Iceberg has no 8 or 16 bit integers: such a column is an `int`, and the table's property `tailrace.types`
keeps the type that the target has for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from ...errors import UnsupportedError
from ...model.types import arrow_type, spark_type

TYPES = "tailrace.types"
"""Table property: JSON object from field id to the Spark SQL type of a column that Iceberg stores as a wider
type."""
RULES = "tailrace.ruleColumns"
"""Table property: JSON list with the field ids of the columns that rules have added."""
FIELD_ID = b"PARQUET:field_id"
_SIMPLE: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "tinyint": IntegerType(),
    "smallint": IntegerType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}
_BACK = {kind: text for text, kind in _SIMPLE.items() if text not in ("tinyint", "smallint")}


def iceberg_type(kind: pa.DataType, element_id: int = 0) -> IcebergType:
    """Returns the Iceberg type of an Arrow type; `element_id`: the field id of a list's elements.

    >>> iceberg_type(pa.int16()), iceberg_type(pa.decimal128(12, 2))
    (IntegerType(), DecimalType(precision=12, scale=2))
    """
    if pa.types.is_list(kind):
        return ListType(element_id=element_id, element=iceberg_type(kind.value_type), element_required=False)
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _SIMPLE[spark_type(kind)]


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Returns the Arrow type in which files have an Arrow type.

    >>> stored_type(pa.int16()), stored_type(pa.string())
    (DataType(int32), DataType(string))
    """
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type)))
    return pa.int32() if kind in (pa.int8(), pa.int16()) else kind


def arrow_of(kind: IcebergType, name: str = "") -> pa.DataType:
    """Returns the Arrow type of an Iceberg type.

    Raises:
        UnsupportedError: targets cannot have the type.
    """
    if isinstance(kind, ListType):
        return pa.list_(pa.field("element", arrow_of(kind.element_type, name)))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if (text := _BACK.get(kind)) is None:
        raise UnsupportedError(
            f"the column {name!r} has the Iceberg type {kind}, which targets cannot have",
            hint="move the column to another table",
        )
    return arrow_type(text)


def arrow_schema(schema: Schema, properties: Mapping[str, str]) -> pa.Schema:
    """Returns the columns of a table in plain Arrow types."""
    narrow = {int(key): text for key, text in json.loads(properties.get(TYPES, "{}")).items()}

    def kind_of(one: NestedField) -> pa.DataType:
        text = narrow.get(one.field_id)
        return arrow_of(one.field_type, one.name) if text is None else arrow_type(text)

    return pa.schema([pa.field(one.name, kind_of(one), not one.required) for one in schema.fields])


def properties(schema: Schema, columns: pa.Schema, rule_columns: Collection[str]) -> dict[str, str]:
    """Returns the table properties that a schema needs.

    Args:
        schema: the schema.
        columns: its columns, in the types of the target.
        rule_columns: the columns that rules have added.
    """
    types = {
        one.field_id: spark_type(kind)
        for one in schema.fields
        if (kind := columns.field(one.name).type) != stored_type(kind)
    }
    added = [one.field_id for one in schema.fields if one.name in rule_columns]
    return {TYPES: json.dumps(types), RULES: json.dumps(added)}


def ruled(schema: Schema, properties: Mapping[str, str]) -> set[str]:
    """Returns the columns that rules have added."""
    added = set(json.loads(properties.get(RULES, "[]")))
    return {one.name for one in schema.fields if one.field_id in added}


def with_ids(columns: pa.Schema, have: Mapping[str, NestedField], last: int) -> Schema:
    """Returns an Iceberg schema for columns.

    Args:
        columns: the columns.
        have: the fields of columns that the table has, by new name: their ids stay. Others get new ids, first
            all columns and then the elements of lists, as catalogs do when they create a table.
        last: the greatest field id that the table has ever had.
    """
    ids = {name: one.field_id for name, one in have.items()}
    for name in (n for n in columns.names if n not in ids):
        ids[name] = last = last + 1
    fields = list[NestedField]()
    for one in columns:
        old, element = have.get(one.name), 0
        if old is not None and isinstance(old.field_type, ListType):
            element = old.field_type.element_id
        elif pa.types.is_list(one.type):
            element = last = last + 1
        kind = iceberg_type(one.type, element)
        required = old is not None and old.required
        fields.append(NestedField(field_id=ids[one.name], name=one.name, field_type=kind, required=required))
    return Schema(*fields)


def promotes(old: IcebergType, new: IcebergType) -> bool:
    """Returns whether files with an old type are read as a new one, without being rewritten.

    >>> promotes(IntegerType(), LongType()), promotes(DecimalType(5, 1), DecimalType(7, 2))
    (True, False)
    """
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return old.scale == new.scale and old.precision <= new.precision
    if isinstance(old, ListType) and isinstance(new, ListType):
        return promotes(old.element_type, new.element_type)
    pairs = ((IntegerType(), LongType()), (FloatType(), DoubleType()))
    return old == new or (old, new) in pairs


@lru_cache(maxsize=256)
def parsed(text: str) -> Schema:
    """Returns the schema of a JSON text."""
    return Schema.model_validate_json(text)


@lru_cache(maxsize=256)
def field_ids(text: str) -> dict[str, int]:
    """Returns the field ids of the columns of a schema (JSON text)."""
    return {one.name: one.field_id for one in parsed(text).fields}


def file_schema(schema: Schema, columns: Iterable[str]) -> pa.Schema:
    """Returns the Arrow schema of a file with these columns; the fields have their ids."""
    fields = []
    for name in columns:
        one = schema.find_field(name, case_sensitive=True)
        kind = arrow_of(one.field_type, name)
        if isinstance(one.field_type, ListType):
            said = {FIELD_ID: str(one.field_type.element_id)}
            kind = pa.list_(pa.field("element", kind.value_type, metadata=said))
        fields.append(pa.field(name, kind, not one.required, {FIELD_ID: str(one.field_id)}))
    return pa.schema(fields)
