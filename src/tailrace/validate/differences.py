"""Differences between two sides of a table as changes that turn one side into the other.

They are a change table in tailrace's layout: an insert per missing row, a delete per extra row, and an update
with its before image per other row. Tasks find the differing rows (`compare`). Only these reach this process,
one group of keys at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import TailraceError
from ..model.change import HEADERS, OPERATIONS, PREFIX, Relation
from ..model.sequence import NUMBER_DIGITS
from ..model.types import header_schema, schema_of
from ..wire.row_hashes import hashes
from .compare import GROUP_ROWS, Comparison, TablePair
from .file_rows import FileRows
from .hash_tasks import HASH

BUCKETS = 256
_OPER = "oper"
_Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ChangeStamp:
    """Header values of the changes.

    Attributes:
        time: the time part of their sequences.
        after: the number before the first change.
        position: the source position (hex) of the rows.
        transaction: the name of their transaction.
        at: their time.
    """

    time: int
    after: int
    position: str
    transaction: str
    at: datetime


@dataclass(frozen=True)
class ChangeImages:
    """Makes change images (`oper`, then the columns) from the rows of two sides.

    The rows have `HASH`, then the columns as c0, c1, ...; all rows of a key must be included. A key that
    `there` has more than once is deleted, because an update would write all of its rows.

    Attributes:
        key: indexes of the key columns; empty for a keyless table, whose rows are compared as a whole.
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
        other = both & ~again
        other[other] = new[left[other]] != old[right[other]]  # as validation sees it
        return _concat_images(
            [
                ("B", there, right[other]),
                ("D", there, right[again | (left < 0)]),
                ("I", wanted, left[right < 0]),
                ("U", wanted, left[other]),
            ]
        )

    def repeated(self, there: pa.Table) -> bool:
        """Returns whether a key occurs more than once."""
        return bool(self.key) and len(np.unique(self._keys(there))) < there.num_rows

    def _copies(self, wanted: pa.Table, there: pa.Table, new: _Indexes, old: _Indexes) -> pa.Table:
        """Returns one insert or delete for each surplus copy of a row."""
        known, which = np.unique(np.concatenate([new, old]), return_inverse=True)
        sides = which[: len(new)], which[len(new) :]
        left, right = (_first(w, len(known)) for w in sides)
        many = np.subtract(*(np.bincount(w, minlength=len(known)) for w in sides))
        more, less = np.maximum(many, 0), np.maximum(-many, 0)
        return _concat_images([("D", there, np.repeat(right, less)), ("I", wanted, np.repeat(left, more))])

    def _keys(self, rows: pa.Table) -> npt.NDArray[np.uint64]:
        found = [hashes([one.column(1 + k) for k in self.key]) for one in rows.to_batches() if one.num_rows]
        return np.concatenate(found) if found else np.zeros(0, np.uint64)


def _first(which: _Indexes, many: int) -> _Indexes:
    """Returns the index of the first occurrence of each number in `which`; -1 if it does not occur."""
    found = np.full(many, -1)
    found[which[::-1]] = np.arange(len(which))[::-1]
    return found


def _concat_images(parts: Sequence[tuple[str, pa.Table, _Indexes]]) -> pa.Table:
    made = []
    for oper, rows, places in parts:
        letters = pa.repeat(pa.scalar(oper), len(places))
        taken = rows.take(pa.array(places)).drop_columns([HASH])
        made.append(taken.add_column(0, _OPER, letters))
    return pa.concat_tables(made)


@dataclass(frozen=True)
class ImageHeaders:
    """Adds headers to images, and casts their columns.

    Batches must be passed in order, with an update's images side by side. Numbers count up from `mark.after`
    + 1 without gaps.
    """

    mark: ChangeStamp
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


@dataclass
class Differences:
    """The changes that turn one side of a table into the other.

    Attributes:
        comparison: the tasks that find the differing rows.
        relation: the table's layout.
        memory: the approximate bytes of rows that are held at once.
        repeated: whether keys occurred more than once. Their rows are deleted, and then missing.
    """

    comparison: Comparison
    relation: Relation
    memory: int
    repeated: bool = False

    def changes(self, wanted: FileRows, there: FileRows, mark: ChangeStamp) -> Iterator[pa.Table]:
        """Yields the changes that turn `there` into `wanted`, as tables with consecutive numbers, ordered by
        key.

        The columns are `HEADERS` with their prefix, then the relation's.
        """
        names = [c.name for c in self.relation.columns]
        pair = TablePair(
            self.relation.table, tuple(self.relation.key), _ordered(wanted, names), _ordered(there, names)
        )
        (sums,) = self.comparison.sums([pair], BUCKETS)
        if isinstance(sums, TailraceError):
            raise sums
        if not len(sums.differing):
            return
        groups = max(-(-sums.rows_to_match // GROUP_ROWS), -(-sums.differing_bytes // self.memory), 1)
        found, pieces = self.comparison.surplus(pair, sums, groups)
        images = ChangeImages(sums.shape.key if self.relation.key else ())
        for file in (one.file for one in found if one.file is not None):
            left, right = self.comparison.rows_of_keys(pair, file, pieces)
            self.repeated |= images.repeated(right)
            made = images(left, right)
            if self.relation.key:
                made = _by_key(made, sums.shape.key)
            numbered = ImageHeaders(mark, schema_of(self.relation.columns))
            changes = pa.Table.from_batches(
                list(numbered(made.combine_chunks().to_batches())),
                pa.schema([*header_schema(), *numbered.data]),
            )
            yield changes
            mark = replace(mark, after=mark.after + count_changes(changes).total())


def count_changes(changes: pa.Table) -> Counter[str]:
    """Returns the number of changes by kind (I, U, D)."""
    found = changes[PREFIX + "change_oper"].value_counts().to_pylist()
    return Counter({one["values"]: one["counts"] for one in found if one["values"] != "B"})


def _by_key(made: pa.Table, key: Sequence[int]) -> pa.Table:
    """Returns images ordered by key and operation; keys that are arrays, which Arrow cannot sort, by their
    hash."""
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
