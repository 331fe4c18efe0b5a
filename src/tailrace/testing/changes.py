"""Builds canonical change tables from literal histories, and returns change tables as literal rows, for
format tests.

Masks become column names, so that layouts with other headers compare equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..formats.base import ADDED_COLUMNS, WHY
from ..formats.shape import arrow_rows
from ..model import mask, sequence
from ..model.change import HEADERS, OPERATIONS, PREFIX, ChangeTable
from ..model.quoting import quoted
from ..model.types import arrow_type, header_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH = datetime(2026, 1, 1, 12, 0, 0, 120_000, tzinfo=timezone.utc)

COLUMNS = {"id": "int", "name": "string", "amount": "decimal(12,2)", "at": "timestamp", "note": "string"}
KEY = ["id"]
TABLE = "shop.item"


@dataclass(frozen=True)
class Image:
    """One image of one change.

    Attributes:
        number: change number; B and U of one update share it.
        oper: I U D B T.
        values: the columns of the image; missing ones are absent.
        changed: names in the change mask. None: as Qlik writes it (I: all, D: the key, B and T: none), and
            for U the columns that differ from the B before it, or all present columns.
        transaction: its transaction; by default each change has its own.
    """

    number: int
    oper: str
    values: Mapping[str, Any] = field(default_factory=dict)
    changed: Sequence[str] | None = None
    transaction: int | None = None


def change_table(
    spark: SparkSession,
    images: Sequence[Image],
    *,
    columns: Mapping[str, str] | None = None,
    key: Sequence[str] = tuple(KEY),
    name: str = TABLE,
) -> ChangeTable:
    """Returns the canonical change table of these images, with all `HEADERS` filled."""
    columns = COLUMNS if columns is None else columns
    headers = [_headers(one, images, list(columns), key) for one in images]
    schema = pa.schema([*header_schema(), *((n, arrow_type(t)) for n, t in columns.items())])
    arrays = [pa.array([h[n] for h in headers], schema.field(PREFIX + n).type) for n in HEADERS]
    for column in columns:
        arrays.append(pa.array([one.values.get(column) for one in images], schema.field(column).type))
    df = arrow_rows(spark, pa.Table.from_arrays(arrays, schema=schema))
    return ChangeTable(df, list(key), list(columns), name=name)


def _headers(one: Image, all: Sequence[Image], columns: list[str], key: Sequence[str]) -> dict[str, Any]:
    transaction = one.number if one.transaction is None else one.transaction
    start = len(HEADERS)
    there = [start + i for i, c in enumerate(columns) if c in one.values]
    at = EPOCH + timedelta(seconds=transaction)
    us = int(at.timestamp() * 1_000_000)
    whole = one.oper == "T" or len(there) == len(columns)
    return {
        "change_seq": sequence.make(int(sequence.time_parts(pa.array([us]).to_numpy())[0]), one.number),
        "change_oper": one.oper,
        "change_mask": mask.encode(start + columns.index(c) for c in changed(one, all, columns, key)),
        "stream_position": f"{one.number:040X}",
        "operation": OPERATIONS[one.oper],
        "transaction_id": str(1000 + transaction),
        "timestamp": at,
        "column_mask": None if whole else mask.encode(there),
    }


def changed(one: Image, all: Sequence[Image], columns: Sequence[str], key: Sequence[str]) -> list[str]:
    """Returns the names in an image's change mask (spec/qlik.md §2)."""
    if one.changed is not None:
        return list(one.changed)
    if one.oper in "BT":
        return []
    if one.oper == "D":
        return list(key)
    if one.oper == "I":
        return list(columns)
    before = next((b.values for b in all if b.number == one.number and b.oper == "B"), {})
    return [c for c, v in one.values.items() if c not in before or before[c] != v]


def comparable_rows(ct: ChangeTable, *, headers: Sequence[str] | None = None) -> list[tuple[Any, ...]]:
    """Returns the rows of a (small) change table as comparable values, ordered.

    Each has the rank of the change, the operation, the names in the change mask (None if unknown), the names
    of present columns (None if all), the given headers, and the values.
    """
    return reasons_and_rows(ct, headers=headers)[1]


def reasons_and_rows(
    ct: ChangeTable, *, headers: Sequence[str] | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Returns `reasons` and `comparable_rows` of a change table that is read once."""
    names = ct.df.columns
    places = dict(enumerate(names))
    wanted = [h for h in (ct.headers if headers is None else headers) if h not in _MASKED]
    rows = _timestamps_as_text(ct.df.drop(*(c for c in ADDED_COLUMNS if c != WHY))).collect()
    why = sorted(r[WHY] for r in rows if r[WHY]) if WHY in names else []
    ranks = {s: i for i, s in enumerate(sorted({r[ct.header("change_seq")] for r in rows}))}
    result = []
    for row in rows:
        masks = [
            None if m is None else tuple(places.get(n, f"bit {n}") for n in mask.decode(bytes(m)))
            for m in (row[ct.header("change_mask")], row[ct.header("column_mask")])
        ]
        oper = row[ct.header("change_oper")]
        carried = masks[1]
        values = [row[c] if carried is None or c in carried else _ABSENT for c in ct.columns]
        values = [_ABSENT] * len(values) if oper == "T" else values
        known = tuple(row[ct.header(h)] for h in wanted)
        result.append((ranks[row[ct.header("change_seq")]], oper, *masks, known, tuple(map(_plain, values))))
    return why, sorted(result, key=repr)


def _timestamps_as_text(df: DataFrame) -> DataFrame:
    """Casts timestamps to text: Python's datetimes depend on the machine's time zone, and do not support
    every year."""
    from pyspark.sql import functions as F

    result = []
    for one in df.schema:
        value = F.col(quoted(one.name))
        text = one.dataType.simpleString().startswith("timestamp")
        result.append((value.cast("string") if text else value).alias(one.name))
    return df.select(*result)


def reasons(ct: ChangeTable) -> list[str]:
    """Returns the reasons of rejected rows."""
    if WHY not in ct.df.columns:
        return []
    return sorted(r[0] for r in ct.df.select(WHY).collect() if r[0])


_MASKED = ("change_mask", "column_mask", "change_oper")
_ABSENT = "(absent)"


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, float):
        return repr(value)  # NaN equals NaN, and -0.0 is not 0.0
    return value
