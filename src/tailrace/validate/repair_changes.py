"""The difference between two sides of a table as changes: what turns one side into the other.

They are a change table of tailrace's own layout, one change a row that differs: an insert of what is missing,
a delete of each extra row, an update (with its before image) of what is another. The functions work on Arrow
tables: in this process (`difference_here`), or in Spark's tasks, one bucket of keys at a time (`difference`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..apply.images import col
from ..execution import over_rows
from ..model.change import HEADERS, OPERATIONS, PREFIX, Relation
from ..model.sequence import NUMBER_DIGITS
from ..model.types import header_schema, schema_of, spark_type
from ..wire.row_hashes import hashes
from .compare import BUCKET, HASH, FileRows, Files, apart, shape_of
from .compare_spark import Frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS = 256
_OPER = "oper"
_Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mark:
    """Values for the changes' headers: the time part of their sequence, the number before the first, the
    source's position (hex) of the rows, a name for their transaction, their time."""

    time: int
    after: int
    position: str
    transaction: str
    at: datetime


@dataclass(frozen=True)
class ChangeImages:
    """Makes the images of changes (`oper`, then the columns) out of rows of two sides: `HASH`, then the
    columns as c0, c1, ...; all rows of a key must be there.

    `key`: places of the key's columns; none: a table without a key, whose rows differ by all they have.
    """

    key: tuple[int, ...]

    def __call__(self, wanted: pa.Table, there: pa.Table) -> pa.Table:
        new, old = (one[HASH].to_numpy() for one in (wanted, there))
        if not self.key:
            return self._copies(wanted, there, new, old)
        keys = [self._keys(one) for one in (wanted, there)]
        known, which = np.unique(np.concatenate(keys), return_inverse=True)
        left, right = (_first(w, len(known)) for w in (which[: wanted.num_rows], which[wanted.num_rows :]))
        both = (left >= 0) & (right >= 0)
        again = np.bincount(which[wanted.num_rows :], minlength=len(known)) > 1
        other = both.copy()
        other[both] = again[both] | (new[left[both]] != old[right[both]])  # as validation sees it
        return _together(
            [
                ("B", there, right[other]),
                ("D", there, right[left < 0]),
                ("I", wanted, left[right < 0]),
                ("U", wanted, left[other]),
            ]
        )

    def repeated(self, rows: pa.Table) -> bool:
        """Whether a key is there more than once."""
        return bool(self.key) and len(np.unique(self._keys(rows))) < rows.num_rows

    def _copies(self, wanted: pa.Table, there: pa.Table, new: _Places, old: _Places) -> pa.Table:
        """So many inserts or deletes of each row as there are copies apart."""
        known, which = np.unique(np.concatenate([new, old]), return_inverse=True)
        sides = which[: len(new)], which[len(new) :]
        left, right = (_first(w, len(known)) for w in sides)
        many = np.subtract(*(np.bincount(w, minlength=len(known)) for w in sides))
        more, less = np.maximum(many, 0), np.maximum(-many, 0)
        return _together([("D", there, np.repeat(right, less)), ("I", wanted, np.repeat(left, more))])

    def _keys(self, rows: pa.Table) -> npt.NDArray[np.uint64]:
        found = [hashes([one.column(1 + k) for k in self.key]) for one in rows.to_batches() if one.num_rows]
        return np.concatenate(found) if found else np.zeros(0, np.uint64)


def _first(which: _Places, many: int) -> _Places:
    """The first place of each number in `which`; -1: none."""
    found = np.full(many, -1)
    found[which[::-1]] = np.arange(len(which))[::-1]
    return found


def _together(parts: Sequence[tuple[str, pa.Table, _Places]]) -> pa.Table:
    made = []
    for oper, rows, places in parts:
        letters = pa.repeat(pa.scalar(oper), len(places))
        taken = rows.take(pa.array(places)).drop_columns([HASH])
        made.append(taken.add_column(0, _OPER, letters))
    return pa.concat_tables(made)


@dataclass(frozen=True)
class ImageHeaders:
    """Gives images their headers, and the columns their types: a batch after the other, all of them in their
    order, an update's images side by side. Numbers go up from `mark.after` + 1, and none is left out."""

    mark: Mark
    data: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark, after = self.mark, self.mark.after
        for batch in batches:
            if not batch.num_rows:
                continue
            oper = batch.column(0).cast(pa.string())
            first = pc.not_equal(oper, "U").to_numpy(zero_copy_only=False)  # its B has the same number
            numbers = after + np.cumsum(first)
            after = int(numbers[-1])
            digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), NUMBER_DIGITS, "0")
            words = pa.array([OPERATIONS[o] for o in "BDIU"])
            headers = {
                "change_seq": pc.binary_join_element_wise(str(mark.time), digits, ""),
                "change_oper": oper,
                "stream_position": pa.repeat(pa.scalar(mark.position), len(oper)),
                "operation": words.take(pc.index_in(oper, pa.array(list("BDIU")))),
                "transaction_id": pa.repeat(pa.scalar(mark.transaction), len(oper)),
                "timestamp": pa.repeat(pa.scalar(mark.at, pa.timestamp("us", "UTC")), len(oper)),
            }
            schema = pa.schema([*header_schema(), *self.data])
            nothing = pa.nulls(len(oper))
            arrays = [headers.get(name, nothing) for name in HEADERS] + batch.columns[1:]
            arrays = [a.cast(f.type) for a, f in zip(arrays, schema, strict=True)]
            yield pa.record_batch(arrays, schema=schema)


def difference_here(wanted: FileRows, there: FileRows, relation: Relation, mark: Mark) -> pa.Table | None:
    """The changes that make `there` what `wanted` is, in the order of their keys: columns of `HEADERS` with
    their prefix, then the relation's. None: a key is there more than once, which needs a look at all rows."""
    names = [c.name for c in relation.columns]
    both = Files(_ordered(wanted, names), _ordered(there, names))
    shape, _ = shape_of(*both.schemas, relation.key or names, BUCKETS)
    buckets = apart(*both.sums(shape))
    left, right = both.near(shape, buckets)
    images = ChangeImages(shape.key if relation.key else ())
    if images.repeated(right):
        return None
    made = images(left, right)
    if relation.key:
        made = _by_key(made, shape.key)
    numbered = ImageHeaders(mark, schema_of(relation.columns))
    return pa.Table.from_batches(
        list(numbered(made.to_batches())), pa.schema([*header_schema(), *numbered.data])
    )


def _by_key(made: pa.Table, key: Sequence[int]) -> pa.Table:
    """Images by their keys, those of one key by their operations. Arrow sorts no arrays, but their hash."""
    made = made.combine_chunks()
    arrays = [k for k in key if pa.types.is_nested(made.field(1 + k).type)]
    plain = [(f"c{k}", "ascending") for k in key if k not in arrays]
    if arrays and made.num_rows:
        hashed = pa.array(hashes([made.column(1 + k).chunk(0) for k in arrays]))
        made, plain = made.append_column(HASH, hashed), [*plain, (HASH, "ascending")]
    made = made.sort_by([*plain, (_OPER, "ascending")])
    return made.drop_columns([HASH]) if HASH in made.column_names else made


def _ordered(rows: FileRows, names: Sequence[str]) -> FileRows:
    return replace(rows, columns={n: rows.columns[n] for n in names})


def difference(wanted: DataFrame, there: DataFrame, relation: Relation, mark: Mark) -> DataFrame:
    """The same by Spark's tasks. A key that is there more than once becomes one update, which writes the row
    anew."""
    names = [c.name for c in relation.columns]
    wanted, there = (
        df.select(*[col(c.name).cast(c.type).alias(c.name) for c in relation.columns])
        for df in (wanted, there)
    )
    left, right, shape = Frames(wanted, there).differing(relation.key or names, BUCKETS)
    images = ChangeImages(shape.key if relation.key else ())
    kinds = ", ".join(f"c{i} {spark_type(f.type)}" for i, f in enumerate(shape.schema))
    sides = left.groupBy(BUCKET).cogroup(right.groupBy(BUCKET))

    def of_bucket(one: pa.Table, other: pa.Table) -> pa.Table:
        return images(one.drop_columns([BUCKET]), other.drop_columns([BUCKET]))

    found = sides.applyInArrow(of_bucket, f"{_OPER} string, {kinds}").repartition(1)
    if relation.key:
        found = found.sortWithinPartitions(*[f"c{k}" for k in shape.key], _OPER)
    headers = [f"{PREFIX}{n} {kind}" for n, kind in HEADERS.items()]
    data = [f"c{i} {c.type}" for i, c in enumerate(relation.columns)]
    numbered = ImageHeaders(
        mark, pa.schema([(f"c{i}", f.type) for i, f in enumerate(schema_of(relation.columns))])
    )
    made = over_rows(found, numbered, ", ".join([*headers, *data]))
    return made.toDF(*[PREFIX + n for n in HEADERS], *names)
