"""Decodes and encodes DATA of solidDB's records in Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...model.types import arrow_type
from ...wire import soliddb as codec
from ...wire.soliddb_types import as_before, as_wider
from .log import ROWS


@dataclass(frozen=True)
class Decoding:
    """Decodes DATA of one table's records as `columns` (names and types)."""

    fields: tuple[tuple[codec.RowField, ...], ...]
    columns: tuple[tuple[str, str], ...]
    style: codec.Style

    def decode(self, data: pa.Array, layout: pa.Array, recid: pa.Array) -> list[pa.Array]:
        """Returns the columns of records with these layouts; whether encoding returns the same bytes, a
        reason for bad records, and whether a fraction is truncated."""
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
        fields = self.fields[kind]
        by_name = {f.name: c for f, c in zip(fields, found.columns, strict=True) if f.taken}
        columns = [
            as_wider(by_name[c], t) if c in by_name else pa.nulls(n, arrow_type(t)) for c, t in self.columns
        ]
        # Bytes of values that are not decoded cannot be restored from the columns.
        exact = found.exact if all(f.taken for f in fields) else pa.array(np.zeros(n, np.bool_))
        return [*columns, exact, found.why, found.finer]


@dataclass(frozen=True)
class Encoding:
    """Encodes one table's rows as DATA."""

    fields: tuple[tuple[codec.RowField, ...], ...]
    columns: tuple[str, ...]
    style: codec.Style

    def encode(self, values: Sequence[pa.Array], layout: pa.Array) -> pa.Array:
        """Returns DATA of rows with these values and layouts; null without a layout."""
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
        if len(parts) == 2:  # one layout
            return parts[1]
        back = np.argsort(np.concatenate(order), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(back))

    def _part(self, fields: Sequence[codec.RowField], values: Sequence[pa.Array], n: int) -> pa.Array:
        by_name = dict(zip(self.columns, values, strict=True))
        arrays = []
        for one in fields:
            found = by_name.get(one.name) if one.taken else None
            missing = pa.nulls(n, arrow_type(one.type))
            arrays.append(missing if found is None else as_before(found, one.type, one.name))
        return codec.encode(arrays, fields, self.style)
