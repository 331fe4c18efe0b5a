"""DATA of solidDB's records, decoded and encoded inside Spark tasks: whole batches (`mapInArrow`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...model.types import arrow_type
from ...wire import soliddb as codec
from ..base import FINER
from ..shape import quoted
from .log import ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Decoding:
    """Decodes DATA of one table's records, a batch at a time; what Spark's tasks run.

    Adds `_c0`, `_c1`, ... (`columns`), `_exact` (encoding gives the same bytes again), `_bad` (a reason) and
    `_finer` (a fraction is cut).
    """

    fields: tuple[tuple[codec.RowField, ...], ...]
    columns: tuple[tuple[str, str], ...]
    style: codec.Style

    def schema(self, df: DataFrame) -> str:
        """The Spark schema of the rows that come out."""
        came = [f"{quoted(f.name)} {f.dataType.simpleString()}" for f in df.schema]
        return ", ".join(
            [
                *came,
                *(f"_c{i} {t}" for i, (_, t) in enumerate(self.columns)),
                "_exact boolean, _bad string",
                f"{FINER} boolean",
            ]
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decodes a task's batches."""
        for batch in batches:
            made = self.decode(batch["DATA"], batch["_layout"], batch["RECID"])
            names = [
                *batch.schema.names,
                *(f"_c{i}" for i in range(len(self.columns))),
                "_exact",
                "_bad",
                FINER,
            ]
            yield pa.RecordBatch.from_arrays([*batch.columns, *made], names=names)

    def decode(self, data: pa.Array, layout: pa.Array, recid: pa.Array) -> list[pa.Array]:
        """The columns, `_exact`, `_bad` and `_finer` of records with these layouts."""
        which = layout.fill_null(-1).to_numpy(zero_copy_only=False)
        kinds = np.unique(which)
        parts, order = [], []
        for kind in kinds.tolist():
            rows = np.flatnonzero(which == kind)
            take = pa.array(rows)
            parts.append(self._part(kind, data.take(take) if len(kinds) > 1 else data, recid.take(take)))
            order.append(rows)
        if len(parts) == 1:
            return parts[0]
        back = (
            pa.array(np.argsort(np.concatenate(order), kind="stable")) if order else pa.array([], pa.int64())
        )
        if not parts:
            return [c.slice(0, 0) for c in self._part(-1, pa.nulls(1, pa.binary()), pa.nulls(1, pa.int32()))]
        return [pa.concat_arrays(list(p)).take(back) for p in zip(*parts, strict=True)]

    def _part(self, kind: int, data: pa.Array, recid: pa.Array) -> list[pa.Array]:
        n = len(data)
        if kind < 0:
            rows = np.isin(recid.fill_null(0).to_numpy(zero_copy_only=False), ROWS)
            none = pa.array(["no layout of its table is valid at its LOGADDR"]).take(
                pa.array(np.zeros(n, np.int64), mask=~rows)
            )
            columns = [pa.nulls(n, arrow_type(t)) for _, t in self.columns]
            no = pa.array(np.zeros(n, np.bool_))
            return [*columns, no, none, no]
        found = codec.decode(data, self.fields[kind], self.style)
        by_name = {f.name: c for f, c in zip(self.fields[kind], found.columns, strict=True)}
        columns = [
            by_name[c].cast(arrow_type(t)) if c in by_name else pa.nulls(n, arrow_type(t))
            for c, t in self.columns
        ]
        return [*columns, found.exact, found.why, found.finer]


@dataclass(frozen=True)
class Encoding:
    """Encodes one table's rows as DATA, a batch at a time; runs in Spark's tasks. Adds `_encoded`, removes
    the rows' values (`_c0`, `_c1`, ...)."""

    fields: tuple[tuple[codec.RowField, ...], ...]
    types: tuple[str, ...]
    columns: tuple[str, ...]
    style: codec.Style

    def schema(self, df: DataFrame) -> str:
        """The Spark schema of the rows that come out."""
        came = [
            f"{quoted(f.name)} {f.dataType.simpleString()}" for f in df.schema if not f.name.startswith("_c")
        ]
        return ", ".join([*came, "_encoded binary"])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encodes a task's batches."""
        for batch in batches:
            names = [n for n in batch.schema.names if not n.startswith("_c")]
            values = [batch[f"_c{i}"] for i in range(len(self.columns))]
            made = self.encode(values, batch["_layout"])
            yield pa.RecordBatch.from_arrays([*(batch[n] for n in names), made], names=[*names, "_encoded"])

    def encode(self, values: Sequence[pa.Array], layout: pa.Array) -> pa.Array:
        """DATA of rows with these values and layouts; null without a layout."""
        which = layout.fill_null(-1).to_numpy(zero_copy_only=False)
        parts, order = [pa.array([], pa.binary())], [np.zeros(0, np.int64)]
        for kind in np.unique(which).tolist():
            rows = np.flatnonzero(which == kind)
            if kind < 0:
                parts.append(pa.nulls(len(rows), pa.binary()))
            else:
                some = values if len(rows) == len(which) else [v.take(pa.array(rows)) for v in values]
                parts.append(self._part(self.fields[kind], some, len(rows)))
            order.append(rows)
        back = np.argsort(np.concatenate(order), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(back))

    def _part(self, fields: Sequence[codec.RowField], values: Sequence[pa.Array], n: int) -> pa.Array:
        by_name = dict(zip(self.columns, values, strict=True))
        arrays = []
        for one in fields:
            found = by_name.get(one.name)
            target = arrow_type(one.type)
            arrays.append(pa.nulls(n, target) if found is None else found.cast(target))
        return codec.encode(arrays, fields, self.style)
