"""Tables written to folders by this process, without Spark, as `saving.save` writes them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ..errors import room
from ..lake import delta as lake
from ..wire.octets import hex_digits

KINDS = ("parquet", "csv", "delta")
"""Kinds of file that are written here."""


class TableWriter:
    """One table, batch after batch: `write`, then `close`; `rows` counts them.

    Args:
        place: the table's folder, new.
        schema: of all batches.
        kind: one of `KINDS`.
    """

    def __init__(self, place: Path, schema: pa.Schema, kind: str) -> None:
        self.rows = 0
        self._place, self._schema, self._kind = place, schema, kind
        with room(str(place)):
            place.mkdir(parents=True, exist_ok=True)
            name = place / f"part-{uuid.uuid4().hex}"
            if kind == "delta":
                self._part = lake.Part(str(place), schema)
            elif kind == "csv":
                texts = pa.schema([(f.name, _text_type(f.type)) for f in schema])
                self._csv = pyarrow.csv.CSVWriter(f"{name}.csv", texts)
            else:
                self._parquet = pq.ParquetWriter(f"{name}.parquet", schema, store_schema=False)

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows."""
        self.rows += batch.num_rows
        rows = pa.Table.from_batches([batch])
        with room(str(self._place)):
            if self._kind == "delta":
                self._part.write(rows)
            elif self._kind == "csv":
                self._csv.write_table(as_text(rows))
            else:
                self._parquet.write_table(rows)

    def close(self) -> None:
        """Finishes the table; there is one even without rows."""
        with room(str(self._place)):
            if self._kind == "delta":
                added = self._part.close()
                lake.create(str(self._place), self._schema)
                lake.commit(str(self._place), [added] if added else [], progress={})
            elif self._kind == "csv":
                self._csv.close()
            else:
                self._parquet.close()


def as_text(rows: pa.Table) -> pa.Table:
    """Binary columns as upper-case hex, times with all their digits."""
    for place, field in enumerate(rows.schema):
        kind = _text_type(field.type)
        if kind != field.type:
            column = rows[field.name].combine_chunks()
            text = hex_digits(column) if pa.types.is_binary(field.type) else column.cast(kind)
            rows = rows.set_column(place, field.name, text)
    return rows


def _text_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_binary(kind) or pa.types.is_timestamp(kind) else kind


__all__ = ["KINDS", "TableWriter", "as_text"]
