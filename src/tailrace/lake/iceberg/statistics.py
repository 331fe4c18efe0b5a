"""Iceberg's statistics of one Parquet file, from the file's metadata: counts, sizes, bounds of columns."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DateType, DecimalType, PrimitiveType, StringType
from pyiceberg.utils.decimal import unscaled_to_decimal
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from ..parts import AddedFile

LONGEST = 16
"""The maximum length of texts in bounds, as in other Iceberg writers."""


@dataclass
class _Columns:
    """Statistics of columns by field id: compressed bytes, values, NULLs, and bounds; bounds and NULLs of
    `unknown` columns are not complete."""

    sizes: dict[int, int] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    nulls: dict[int, int] = field(default_factory=dict)
    bounds: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)

    def add(self, column: pq.ColumnChunkMetaData, field_id: int, kind: Any, *, covered: bool) -> None:
        """Adds a column of a row group; `covered`: its values without bounds are added separately."""
        self.sizes[field_id] = self.sizes.get(field_id, 0) + column.total_compressed_size
        self.values[field_id] = self.values.get(field_id, 0) + column.num_values
        found = column.statistics
        if found is None or not found.has_null_count:
            self.unknown.add(field_id)
            return
        self.nulls[field_id] = self.nulls.get(field_id, 0) + found.null_count
        if found.has_min_max:
            self.widen(field_id, *_bounds(found, kind))
        elif found.null_count < column.num_values and not covered:
            self.unknown.add(field_id)

    def widen(self, field_id: int, low: Any, high: Any) -> None:
        """Extends the bounds of a column."""
        known = self.bounds.get(field_id, (low, high))
        self.bounds[field_id] = min(low, known[0]), max(high, known[1])


def stats_json(
    metadata: pq.FileMetaData,
    schema: Schema,
    more: Mapping[str, tuple[Any, Any]],
    partition: Sequence[Any],
    sort_order: int = 0,
) -> str:
    """Returns the statistics of a file as JSON text, see `data_files`.

    Args:
        metadata: the metadata of the file.
        schema: the table's schema.
        more: minimum and maximum of values that the metadata may not cover (`lake.filestats.MoreRanges`).
        partition: the values of the partition's fields.
        sort_order: the id of the order of the rows; 0 if they have none.
    """
    ids, columns = parquet_path_to_id_mapping(schema), _Columns()
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    for number in range(metadata.num_columns):
        path = metadata.schema.column(number).path
        for group in groups:
            columns.add(group.column(number), ids[path], schema.find_type(ids[path]), covered=path in more)
        if metadata.schema.column(number).max_repetition_level:
            columns.unknown.add(ids[path])  # statistics of elements do not apply to rows
    for name, (low, high) in more.items():
        one = schema.find_field(name)
        if isinstance(one.field_type, StringType):  # bounds do not include NaN
            columns.widen(one.field_id, low, high)
    known = {k: (schema.find_type(k), *one) for k, one in columns.bounds.items() if k not in columns.unknown}
    upper = {k: _upper(kind, high) for k, (kind, _, high) in known.items()}
    return json.dumps(
        {
            "rows": metadata.num_rows,
            "sizes": columns.sizes,
            "values": columns.values,
            "nulls": {k: n for k, n in columns.nulls.items() if k not in columns.unknown},
            "lower": {k: _lower(kind, low).hex() for k, (kind, low, _) in known.items()},
            "upper": {k: one.hex() for k, one in upper.items() if one is not None},
            "splits": [_offset(group.column(0)) for group in groups],
            "partition": list(partition),
            "order": sort_order,
        }
    )


def _offset(column: Any) -> int:
    """Returns the offset of a row group, whose first column is given."""
    data, words = column.data_page_offset, column.dictionary_page_offset
    return int(words if column.has_dictionary_page and words is not None and words < data else data)


def _bounds(found: Any, kind: Any) -> tuple[Any, Any]:
    if isinstance(kind, DecimalType) and found.physical_type in ("INT32", "INT64"):
        return tuple(unscaled_to_decimal(one, kind.scale) for one in (found.min_raw, found.max_raw))  # type: ignore[return-value]
    return found.min, found.max


def _lower(kind: Any, value: Any) -> bytes:
    short = value[:LONGEST] if isinstance(kind, (StringType, BinaryType)) else value
    return to_bytes(kind, short)


def _upper(kind: Any, value: Any) -> bytes | None:
    """Returns the upper bound; None if a truncated text has no greater one."""
    if isinstance(kind, StringType):
        text = truncate_upper_bound_text_string(value, LONGEST)
        # The next character may be half of a surrogate pair, which UTF-8 does not have.
        return None if text is None or _has_surrogates(text) else to_bytes(kind, text)
    if isinstance(kind, BinaryType):
        return truncate_upper_bound_binary_string(value, LONGEST)
    return to_bytes(kind, value)


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= one <= "\udfff" for one in text)


def data_files(added: AddedFile, folder: str, spec_id: int) -> list[DataFile]:
    """Returns the entries of the files of a part for a commit; `folder`: the table's data folder."""
    said = json.loads(added.stats)
    if isinstance(said, dict):
        return [_data_file(f"{folder}/{added.path}", added.size, said, spec_id)]
    return [_data_file(f"{folder}/{one['path']}", one["size"], one["stats"], spec_id) for one in said]


def _data_file(path: str, size: int, said: Mapping[str, Any], spec_id: int) -> DataFile:
    def by_id(name: str) -> dict[int, int]:
        return {int(k): n for k, n in said[name].items()}

    def bounds(name: str) -> dict[int, bytes]:
        return {int(k): bytes.fromhex(text) for k, text in said[name].items()}

    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*said["partition"]),
        file_size_in_bytes=size,
        record_count=said["rows"],
        column_sizes=by_id("sizes"),
        value_counts=by_id("values"),
        null_value_counts=by_id("nulls"),
        nan_value_counts={},
        lower_bounds=bounds("lower"),
        upper_bounds=bounds("upper"),
        split_offsets=sorted(said["splits"]),
        sort_order_id=said["order"] or None,
        spec_id=spec_id,
        equality_ids=None,
        key_metadata=None,
    )


def bound(kind: PrimitiveType, value: bytes | None) -> Any:
    """Returns a bound as a Python value; None if it is not known. Only integers and dates, see
    `TargetFiles.may_touch`."""
    if value is None:
        return None
    found: Any = from_bytes(kind, value)
    return dt.date(1970, 1, 1) + dt.timedelta(days=found) if isinstance(kind, DateType) else found
