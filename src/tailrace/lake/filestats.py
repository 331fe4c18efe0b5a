"""Delta's statistics of one Parquet file, from the file's metadata.

Every ordered column gets its minimum and maximum. Some readers treat a column without them as empty, if other
columns have them.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

LONGEST = 64
"""The maximum length of texts, as in Delta's writers; a truncated maximum ends with the greatest
character."""

_LONG_TEXT = 4000
"""The maximum bytes of texts with statistics; Arrow writes none above 4,096 bytes."""
_GREATEST = {pa.float32(): 3.4028234663852886e38, pa.float64(): sys.float_info.max}
"""The greatest number of a type; JSON cannot represent NaN."""
_DECIMAL = "\x01decimal:"
_AS_NUMBER = re.compile(r'"\\u0001decimal:(-?[0-9.]+)"')


class MoreRanges:
    """Minimum and maximum of values without Parquet statistics: texts of more than 4 KB, and NaN, which Spark
    sorts last."""

    def __init__(self, schema: pa.Schema) -> None:
        self.found: dict[str, tuple[Any, Any]] = {}
        self._texts = [f.name for f in schema if pa.types.is_string(f.type)]
        self._floats = {f.name: _GREATEST[f.type] for f in schema if f.type in _GREATEST}

    def of(self, rows: pa.Table) -> None:
        """Adds rows that are written to the file."""
        for name in self._texts:
            if (pc.max(pc.binary_length(rows[name])).as_py() or 0) > _LONG_TEXT:
                ends = pc.min_max(rows[name])
                self._add(name, ends["min"].as_py(), ends["max"].as_py())
        for name, greatest in self._floats.items():
            if pc.any(pc.is_nan(rows[name])).as_py():
                self._add(name, greatest, greatest)

    def _add(self, name: str, low: Any, high: Any) -> None:
        least, most = self.found.get(name, (low, high))
        self.found[name] = min(low, least), max(high, most)


def stats_json(metadata: pq.FileMetaData, more: Mapping[str, tuple[Any, Any]]) -> str:
    """Returns `numRecords`, `minValues`, `maxValues` and `nullCount` of a file as Delta's JSON text.

    `more` are minimum and maximum of values that the metadata may not cover (`MoreRanges`).
    """
    low = {name: least for name, (least, _) in more.items()}
    high = {name: greatest for name, (_, greatest) in more.items()}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in range(metadata.num_row_groups):
        for k in range(metadata.num_columns):
            column = metadata.row_group(group).column(k)
            if metadata.schema.column(k).max_repetition_level:
                continue  # statistics of array elements do not apply to rows
            name, found = column.path_in_schema, column.statistics
            if found is None or not found.has_null_count:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if not found.has_min_max:
                if found.null_count < column.num_values and name not in more:
                    unknown.add(name)
                continue
            if isinstance(found.min, bytes) or not _finite(found.min) or not _finite(found.max):
                unknown.add(name)
                continue
            low[name] = min(low.get(name, found.min), found.min)
            high[name] = max(high.get(name, found.max), found.max)
    stats = {
        "numRecords": metadata.num_rows,
        "minValues": {k: _plain(v) for k, v in low.items() if k not in unknown},
        "maxValues": {k: _plain(v, last=True) for k, v in high.items() if k not in unknown},
        "nullCount": nulls,
    }
    # delta-rs misreads escaped characters beyond U+FFFF.
    return _AS_NUMBER.sub(r"\1", json.dumps(stats, ensure_ascii=False))


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _plain(value: Any, *, last: bool = False) -> Any:
    """Returns a value in Delta's form: times in ISO form, decimals as numbers with all digits."""
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text + "Z" if value.tzinfo is not None else text
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return f"{_DECIMAL}{value:f}"
    if isinstance(value, str) and len(value) > LONGEST:
        return value[:LONGEST] + ("\U0010ffff" if last else "")
    return value


def width(meta: pq.FileMetaData, groups: list[int], names: list[str]) -> int:
    """Returns the approximate bytes per row in the given columns; greater than 0."""
    held = [meta.row_group(g) for g in groups]
    size: int = sum(
        column.total_uncompressed_size
        for group in held
        for column in map(group.column, range(meta.num_columns))
        if column.path_in_schema.partition(".list.")[0] in names
    )
    rows: int = sum(g.num_rows for g in held)
    return size // max(1, rows) + 8
