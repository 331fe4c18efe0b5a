"""Partitions and sort order of Iceberg tables, and the partition values of rows, as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionSpec
from pyiceberg.partitioning import PartitionField as SpecField
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)

from ...errors import ConfigError, UnsupportedError
from ...model.partitions import PartitionField

_TIMES: dict[str, Callable[[], Transform[Any, Any]]] = {
    "year": YearTransform, "month": MonthTransform, "day": DayTransform, "hour": HourTransform,
}  # fmt: skip
_HOUR_US = 3_600_000_000
_HINT = "correct `partition` or `sort` of the table in the task file"
Key = tuple[Any, ...]
"""The partition values of rows."""


@dataclass(frozen=True)
class PhysicalLayout:
    """The partitions and the sort order of a new table, as in a task file."""

    partition: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()

    def spec(self, schema: Schema, where: str) -> PartitionSpec:
        """Returns the partition spec.

        Raises:
            ConfigError: a column does not exist, or has a type that cannot be partitioned so.
        """
        fields = [PartitionField.parse(text) for text in self.partition]
        made = [_spec_field(one, n, schema, where) for n, one in enumerate(fields)]
        return PartitionSpec(*made)

    def order(self, schema: Schema, where: str) -> SortOrder:
        """Returns the sort order; errors as in `spec`."""
        ids = [_source(column, schema, where) for column in self.sort]
        return SortOrder(*(SortField(source_id=one, transform=IdentityTransform()) for one in ids))


UNPARTITIONED = PhysicalLayout()
"""Neither partitions nor an order."""


def _spec_field(one: PartitionField, number: int, schema: Schema, where: str) -> SpecField:
    source = _source(one.column, schema, where)
    transform: Transform[Any, Any] = IdentityTransform()
    name = one.column
    if one.transform == "bucket":
        transform, name = BucketTransform(one.buckets), f"{one.column}_bucket"
    elif one.transform != "identity":
        transform, name = _TIMES[one.transform](), f"{one.column}_{one.transform}"
    kind = schema.find_type(source)
    if not transform.can_transform(kind) or not _supported(transform, str(kind)):
        raise ConfigError(
            f"the column {one.column} ({kind}) cannot be partitioned by {transform}", where=where, hint=_HINT
        )
    return SpecField(source, PARTITION_FIELD_ID_START + number, transform, name)


def _source(column: str, schema: Schema, where: str) -> int:
    for one in schema.fields:
        if one.name == column:
            return one.field_id
    raise ConfigError(f"the target has no column {column!r}", where=where, hint=_HINT)


def _supported(transform: Transform[Any, Any], kind: str) -> bool:
    if isinstance(transform, IdentityTransform):
        return kind in ("boolean", "int", "long", "string", "date")
    if isinstance(transform, BucketTransform):
        return kind in ("int", "long", "date")
    return isinstance(transform, (YearTransform, MonthTransform, DayTransform, HourTransform))


@lru_cache(maxsize=256)
def parsed_spec(text: str) -> PartitionSpec:
    """Returns the spec of a JSON text."""
    return PartitionSpec.model_validate_json(text)


def refuse_spec(spec: PartitionSpec, schema: Schema, where: str) -> None:
    """Raises UnsupportedError for a table that another writer has partitioned in a way that tailrace does not
    write."""
    for one in spec.fields:
        if not _supported(one.transform, str(schema.find_type(one.source_id))):
            raise UnsupportedError(
                f"the table is partitioned by {one.transform} of {schema.find_column_name(one.source_id)}, "
                "which tailrace does not write",
                where=where,
                hint="replace the table's partition spec (docs/iceberg.md)",
            )


def split(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[tuple[Key, pa.Table]]:
    """Yields the rows of each partition with its values."""
    names = {one.field_id: one.name for one in schema.fields}
    values = [_values(one.transform, rows[names[one.source_id]].combine_chunks()) for one in spec.fields]
    codes, known = np.zeros(rows.num_rows, np.int64), list[pa.Array]()
    for array in values:
        encoded = array.dictionary_encode(null_encoding="encode")
        known.append(encoded.dictionary)
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    found, starts = np.unique(codes[order], return_index=True)
    for code, start, end in zip(found, starts, [*starts[1:], len(order)], strict=True):
        some = rows if len(found) == 1 else rows.take(pa.array(order[start:end]))
        yield _key(int(code), known), some


def _key(code: int, known: Sequence[pa.Array]) -> Key:
    found = list[Any]()
    for dictionary in reversed(known):
        code, index = divmod(code, max(1, len(dictionary)))
        found.append(dictionary[index].as_py())
    return tuple(reversed(found))


def _values(transform: Transform[Any, Any], column: pa.Array) -> pa.Array:
    """Returns the partition values of a column: integers, texts or booleans."""
    if isinstance(transform, IdentityTransform):
        return column.cast(pa.int32()) if pa.types.is_date(column.type) else column
    if isinstance(transform, BucketTransform):
        numbers = column.cast(pa.int32()) if pa.types.is_date(column.type) else column
        return _bucket(numbers.cast(pa.int64()), transform.num_buckets)
    if isinstance(transform, YearTransform):
        return pc.subtract(pc.year(column), 1970).cast(pa.int32())
    if isinstance(transform, MonthTransform):
        months = pc.add(pc.multiply(pc.subtract(pc.year(column), 1970), 12), pc.month(column))
        return pc.subtract(months, 1).cast(pa.int32())
    if isinstance(transform, DayTransform) and pa.types.is_date(column.type):
        return column.cast(pa.int32())
    unit = 24 * _HOUR_US if isinstance(transform, DayTransform) else _HOUR_US
    micros = column.cast(pa.timestamp("us")) if pa.types.is_date(column.type) else column
    numbers = micros.cast(pa.int64())
    found = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False) // unit
    return pa.array(found.astype(np.int32), pa.int32(), mask=numbers.is_null().to_numpy(zero_copy_only=False))


def _bucket(numbers: pa.Array, buckets: int) -> pa.Array:
    """Returns the buckets of 64-bit integers: Murmur3 (32 bit) of their bytes, as the specification says."""
    some = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    hashed = np.zeros(len(some), np.uint32)
    with np.errstate(over="ignore"):
        for block in (some & np.uint64(0xFFFFFFFF), some >> np.uint64(32)):
            k = block.astype(np.uint32) * np.uint32(0xCC9E2D51)
            k = _rotated(k, 15) * np.uint32(0x1B873593)
            hashed = _rotated(hashed ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        hashed ^= np.uint32(8)
        hashed = (hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        hashed = (hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        hashed ^= hashed >> np.uint32(16)
    found = (hashed & np.uint32(0x7FFFFFFF)) % np.uint32(buckets)
    return pa.array(found.astype(np.int32), pa.int32(), mask=numbers.is_null().to_numpy(zero_copy_only=False))


def _rotated(value: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    return np.asarray((value << np.uint32(bits)) | (value >> np.uint32(32 - bits)))
