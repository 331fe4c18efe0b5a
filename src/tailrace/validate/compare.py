"""Compares two sides of a table by counts and checksums per bucket of keys, and row by row where they
differ.

What is computed is computed here, over Arrow batches: in this process (`Files`), or by Spark's tasks over the
same functions (`compare_spark`). Rows are known by their hashes (`wire.row_hashes`), so both agree.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..model.change import Relation
from ..wire.row_hashes import hashes, kind_of, slices

Sums = dict[int, tuple[int, int]]
"""Bucket -> its rows, and the sum of their hashes (64 bits)."""
Counts = dict[int, int]
"""Hash of a row (64 bits, signed) -> its copies in the source minus those in the target."""
SUMS = pa.schema([("bucket", pa.int32()), ("rows", pa.int64()), ("sum", pa.int64())])
BUCKET, HASH = "bucket", "hash"


@dataclass(frozen=True)
class TableResult:
    """Result of validating one table.

    Attributes:
        equal: same columns, same rows.
        source_rows, target_rows: counts at the common position.
        buckets, differing_buckets: how many buckets of keys were compared, and how many differ.
        differing_rows: rows on one side only (a changed row counts once on each side).
        samples: some of them: {"side": "source" | "target", column: text, ...}.
        columns: a sentence when the columns differ.
        overlaid: whether stored changes had to be laid over the target's version to reach the position.
        as_null: values of the source that the column's lake type cannot hold: they were compared as NULL,
            which the target has in their place (`on_bad_value`).
        not_compared: why the table could not be compared; it is not `equal` then, and nothing is counted.
    """

    table: str
    equal: bool
    source_rows: int
    target_rows: int
    buckets: int
    differing_buckets: int
    differing_rows: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)
    columns: str | None = None
    overlaid: bool = False
    seconds: float = 0.0
    not_compared: str | None = None
    as_null: int = 0


@dataclass(frozen=True)
class Shape:
    """How rows are compared: the columns and their common types, the indexes of the key columns among them,
    and the number of buckets. Spark's tasks receive it, with batches whose columns are in this order."""

    schema: pa.Schema
    key: tuple[int, ...]
    buckets: int

    def tagged(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[npt.NDArray[Any], pa.RecordBatch]]:
        """The rows in the schema's types, and bucket and hash of each row (a structured array)."""
        for batch in batches:
            arrays = [a.cast(f.type) for a, f in zip(batch.columns, self.schema, strict=True)]
            for rows in slices(pa.record_batch(arrays, schema=self.schema)):
                tags = np.empty(rows.num_rows, [(BUCKET, np.int32), (HASH, np.int64)])
                mine = hashes(rows.columns)
                keys = hashes([rows.columns[k] for k in self.key])
                tags[BUCKET], tags[HASH] = keys % np.uint64(self.buckets), mine.view(np.int64)
                yield tags, rows

    def sums(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Per bucket of one batch, the number of rows and the sum of their hashes (schema `SUMS`)."""
        rows, sums = np.zeros(self.buckets, np.int64), np.zeros(self.buckets, np.uint64)
        for tags, _ in self.tagged(batches):
            rows += np.bincount(tags[BUCKET], minlength=self.buckets)
            np.add.at(sums, tags[BUCKET], tags[HASH].view(np.uint64))
        some = np.flatnonzero(rows)
        found = [some.astype(np.int32), rows[some], sums[some].view(np.int64)]
        yield pa.record_batch([pa.array(one) for one in found], schema=SUMS)

    def placed(self, batches: Iterable[pa.RecordBatch], buckets: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The rows of some buckets: `BUCKET`, `HASH`, then the columns as c0, c1, ..."""
        names = [BUCKET, HASH, *(f"c{i}" for i in range(len(self.schema)))]
        for tags, rows in self.tagged(batches):
            near = pa.array(np.isin(tags[BUCKET], buckets))
            own = [pa.array(np.ascontiguousarray(tags[n])) for n in (BUCKET, HASH)]
            yield pa.record_batch([*own, *rows.columns], names).filter(near)

    def named(self, batches: Iterable[pa.RecordBatch], buckets: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The same without their `BUCKET`."""
        for batch in self.placed(batches, buckets):
            yield batch.select(batch.schema.names[1:])


class Sides(Protocol):
    """The rows of source and target, wherever they are read."""

    @property
    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """The columns of both sides."""

    def sums(self, shape: Shape) -> tuple[Sums, Sums]:
        """The buckets of both sides."""

    def apart(self, shape: Shape, buckets: Sequence[int], samples: int) -> tuple[int, pa.Table]:
        """For the rows of some buckets: how many are on one side only (for a row on both sides, the surplus
        copies), and some of them, the first by key: `COPIES`, then the columns of the shape."""


COPIES = "header__copies"
"""How many more copies of a row the source has than the target; negative: the target has more."""


def compare(
    table: str, relation: Relation, sides: Sides, overlaid: bool, buckets: int, samples: int
) -> TableResult:
    """Compares a table's source rows with its target's; `relation`: the target's layout."""
    began = time.monotonic()
    shape, words = shape_of(*sides.schemas, relation.key, buckets)
    sources, targets = sides.sums(shape) if shape.schema else ({}, {})
    differing = apart(sources, targets)
    count, some = 0, pa.table({})
    if differing:
        count, some = sides.apart(shape, differing, samples)
    return TableResult(
        table,
        not differing and not words,
        sum(rows for rows, _ in sources.values()),
        sum(rows for rows, _ in targets.values()),
        len(sources.keys() | targets.keys()),
        len(differing),
        count,
        [_shown(row) for row in some.to_pylist()],
        "; ".join(words) or None,
        overlaid,
        round(time.monotonic() - began, 3),
    )


def shape_of(left: pa.Schema, right: pa.Schema, key: Sequence[str], buckets: int) -> tuple[Shape, list[str]]:
    """How two sides can be compared, and a sentence about columns that cannot."""
    words = []
    for one, other, side in ((left, right, "source"), (right, left, "target")):
        if only := [n for n in one.names if n not in other.names]:
            words.append(f"only in the {side}: {', '.join(only)}")
    fields = []
    for name in (n for n in left.names if n in right.names):
        types = left.field(name).type, right.field(name).type
        if (kind := kind_of(*types)) is None:
            words.append(f"{name} is {types[0]} in the source and {types[1]} in the target")
        else:
            fields.append(pa.field(name, kind))
    schema = pa.schema(fields)
    places = [schema.names.index(k) for k in key if k in schema.names] or range(len(schema))
    return Shape(schema, tuple(places), buckets), words


def apart(left: Sums, right: Sums) -> list[int]:
    """The buckets that differ."""
    return sorted(b for b in left.keys() | right.keys() if left.get(b) != right.get(b))


def added(found: Iterable[tuple[int, int, int]]) -> Sums:
    """Adds up the parts of several tasks (bucket, rows, sum).

    >>> added([(1, 2, -1), (1, 1, 3), (4, 1, 0)])
    {1: (3, 2), 4: (1, 0)}
    """
    sums: Sums = {}
    for place, rows, total in found:
        before = sums.get(place, (0, 0))
        sums[place] = before[0] + rows, (before[1] + total) % (1 << 64)
    return sums


@dataclass(frozen=True)
class FileRows:
    """Rows read by this process: from where, their columns (name -> what it is made of), which of them."""

    data: ds.Dataset
    columns: Mapping[str, pc.Expression]
    only: ds.Expression | None = None

    @property
    def schema(self) -> pa.Schema:
        """Their columns."""
        return self.data.scanner(columns=dict(self.columns)).projected_schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows: those columns, in that order."""
        made = {name: self.columns[name] for name in columns}
        yield from self.data.to_batches(columns=made, filter=self.only, batch_size=1 << 16)


@dataclass(frozen=True)
class Files:
    """Both sides, read by this process. Memory: eight bytes per differing row, whatever the size of the
    rows."""

    left: FileRows
    right: FileRows

    @property
    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """See `Sides`."""
        return self.left.schema, self.right.schema

    def sums(self, shape: Shape) -> tuple[Sums, Sums]:
        """See `Sides`."""
        made = (shape.sums(one.batches(shape.schema.names)) for one in (self.left, self.right))
        left, right = (added(zip(*(c.to_pylist() for c in next(m).columns), strict=True)) for m in made)
        return left, right

    def apart(self, shape: Shape, buckets: Sequence[int], samples: int) -> tuple[int, pa.Table]:
        """See `Sides`."""
        found = [
            np.concatenate([b[HASH].to_numpy() for b in near] or [np.zeros(0, np.int64)])
            for near in (self._near(one, shape, buckets) for one in (self.left, self.right))
        ]
        known, which = np.unique(np.concatenate(found), return_inverse=True)
        split = len(found[0])
        copies = np.bincount(which[:split], minlength=len(known)) - np.bincount(
            which[split:], minlength=len(known)
        )
        known, copies = known[copies != 0], copies[copies != 0]
        wanted, first = pa.array(known), pa.table({})
        for one in (self.left, self.right):
            for batch in self._near(one, shape, buckets):
                rows = pa.table(batch.filter(pc.is_in(batch[HASH], value_set=wanted)))
                first = self._first([first, rows] if first.num_columns else [rows], shape, samples)
        many = copies[np.searchsorted(known, first[HASH].to_numpy())] if first.num_rows else []
        columns = [pa.array(many, pa.int64()), *first.columns[1:]]
        return int(np.abs(copies).sum()), pa.table(columns, [COPIES, *shape.schema.names])

    def near(self, shape: Shape, buckets: Sequence[int]) -> tuple[pa.Table, pa.Table]:
        """The rows of both in some buckets: `HASH`, then the columns as c0, c1, ..."""
        schema = pa.schema([(HASH, pa.int64()), *((f"c{i}", f.type) for i, f in enumerate(shape.schema))])
        left, right = (
            pa.Table.from_batches(self._near(one, shape, buckets), schema) for one in (self.left, self.right)
        )
        return left, right

    def _near(self, one: FileRows, shape: Shape, buckets: Sequence[int]) -> Iterator[pa.RecordBatch]:
        return shape.named(one.batches(shape.schema.names), buckets)

    def _first(self, tables: Sequence[pa.Table], shape: Shape, most: int) -> pa.Table:
        """The first rows by key, each hash once."""
        rows = pa.concat_tables(tables)
        _, places = np.unique(rows[HASH].to_numpy(), return_index=True)
        order = [*shape.key, *range(len(shape.schema))]
        # Arrow sorts no arrays.
        key = [(f"c{k}", "ascending") for k in order if not pa.types.is_nested(shape.schema.field(k).type)]
        return rows.take(pa.array(np.sort(places))).sort_by([*key, (HASH, "ascending")]).slice(0, most)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    side = "source" if row.pop(COPIES) > 0 else "target"
    return {"side": side, **{n: None if v is None else str(v) for n, v in row.items()}}
