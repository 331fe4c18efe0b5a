"""Change tables of literal images, for tests of code that reads change tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..model import mask, sequence
from ..model.change import HEADERS, OPERATIONS, PREFIX, ChangeTable, Column, Relation
from ..model.positions import ChangeRange
from ..model.types import header_schema, schema_of
from ..targets.base import Target
from ..targets.change_batch import ChangeBatch
from ..targets.merge_result import ApplyOutcome
from ..targets.merge_rows import merge_rows
from ..targets.plans import SPECIAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Image = tuple[int, str, Mapping[str, Any]]
"""(change number, operation, values). Missing columns are absent in U, B and D, and NULL in I."""

ID = Column("id", 1, "integer", "int4", "int", key=True)
V = Column("v", 2, "text", "text", "string")
W = Column("Wide_Word", 3, "numeric(12,2)", "numeric", "decimal(12,2)")
RELATION = Relation(16384, "shop", "item", "d", (ID, V, W))
KEYLESS = Relation(16385, "shop", "note", "f", (replace(ID, key=False), V))


def change_table(spark: SparkSession, relation: Relation, rows: Sequence[Image]) -> ChangeTable:
    """Returns a change table with these images, in tailrace's own layout."""
    df = spark.createDataFrame(change_rows(relation, rows))
    return ChangeTable(df, relation.key, [c.name for c in relation.columns])


def change_rows(relation: Relation, rows: Sequence[Image], per_transaction: int = 0) -> pa.Table:
    """Returns the rows of that change table.

    Args:
        per_transaction: the number of change numbers in a transaction; 0 for images without one.
    """
    names = [c.name for c in relation.columns]
    headers = {name: [_header(name, names, row) for row in rows] for name in HEADERS}
    if per_transaction:
        headers["transaction_id"] = [f"{number // per_transaction:032x}" for number, _, _ in rows]
    schema = pa.schema([*header_schema(), *schema_of(relation.columns)])
    arrays = [pa.array(headers[n], schema.field(PREFIX + n).type) for n in HEADERS]
    arrays += [_values(c, rows, schema) for c in relation.columns]
    return pa.Table.from_arrays(arrays, schema=schema)


def _values(column: Column, rows: Sequence[Image], schema: pa.Schema) -> pa.Array:
    kind = schema.field(column.name).type
    found = [row[2].get(column.name) for row in rows]
    if pa.types.is_decimal(kind):
        found = [None if v is None else Decimal(str(v)) for v in found]
    return pa.array(found, kind)


def _header(name: str, columns: Sequence[str], row: Image) -> object:
    number, oper, values = row
    if name == "column_mask":
        there = [len(HEADERS) + i for i, c in enumerate(columns) if c in values]
        return mask.encode(there) if oper in "UBD" and len(there) < len(columns) else None
    known = {
        "change_seq": sequence.make(2026010100000000, number),
        "change_oper": oper,
        "operation": OPERATIONS[oper],
        "stream_position": f"{number:040X}",
    }
    return known.get(name)


def count(relation: Relation, rows: Sequence[Image]) -> dict[str, int]:
    """Returns the counts of special cases in these images, as a store counts them (keys: `SPECIAL`)."""
    found = Counter(oper for _, oper, _ in rows)
    befores = {number: values for number, oper, values in rows if oper == "B"}
    for number, oper, values in rows:
        if oper == "U":
            old = befores.get(number, values)
            found["key_changes"] += any(old.get(k) != values[k] for k in relation.key)
            found["absent"] += any(c.name not in values for c in relation.columns)
    return {k: found[k] for k in SPECIAL}


def batch_of(relation: Relation, rows: Sequence[Image], end: int | None = None) -> ChangeBatch:
    """Returns a batch of these images, by default up to the last of them."""
    end = max(number for number, _, _ in rows) if end is None else end
    return ChangeBatch(
        relation.table, relation, ChangeRange(None, end), counts=count(relation, rows) if rows else {}
    )


def merge_images(
    spark: SparkSession, target: Target, relation: Relation, rows: Sequence[Image], end: int | None = None
) -> ApplyOutcome:
    """Merges a batch of images into a target, as `merge_rows` does."""
    with TemporaryDirectory(prefix="images-") as folder:
        changes = change_table(spark, relation, rows)
        return merge_rows(target, changes, batch_of(relation, rows, end), folder)


def image(key: int | None, word: str | None) -> dict[str, Any]:
    """Returns a full image of `RELATION`."""
    return {"id": key, "v": word, "Wide_Word": 1.5}


def move(number: int, old: int, new: Mapping[str, Any]) -> list[Image]:
    """Returns the two images of a key change."""
    return [(number, "B", {"id": old}), (number, "U", new)]
