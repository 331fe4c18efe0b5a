"""Cuts batches into the transactions of the source, for targets that commit each transaction separately.

A change without a transaction counts as one. If a source does not order changes by commit, the change numbers
of transactions overlap; overlapping transactions count as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.columns import one
from ..errors import ApplyError
from ..model.change import PREFIX
from ..model.positions import ChangeRange
from ..model.sequence import NUMBER_DIGITS, TIME_DIGITS
from ..targets.auditor import collect
from ..targets.change_batch import ChangeBatch
from ..wire.row_hashes import hashes

_SEQ, _TRANSACTION = PREFIX + "change_seq", PREFIX + "transaction_id"
Ints = npt.NDArray[np.int64]


def by_transaction(batch: ChangeBatch, memory_bytes: int | None) -> Iterator[ChangeBatch]:
    """Yields the transactions of a batch in order, each as a batch.

    Changes are read once. If they take more than a third of the memory, they are read in parts; a transaction
    that does is read by its merge.
    """
    batch = batch.located()
    rows = collect(batch.read_whole(), batch.schema, memory_bytes)
    if rows is None:
        if (middle := _middle(batch)) is None:
            yield batch
            return
        yield from by_transaction(batch.between(batch.range.start, middle), memory_bytes)
        yield from by_transaction(batch.between(middle, batch.range.end), memory_bytes)
        return
    numbers = _numbers(rows[_SEQ])
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows.take(pa.array(order)), numbers[order]
    last = ends(numbers, _transactions(rows))
    edges = np.searchsorted(numbers, last, "right").tolist()
    numbers_to = [*last.tolist()[:-1], batch.range.end]  # the last one has no changes after it
    begin, start = 0, batch.range.start
    for end, number in zip(edges or [0], numbers_to, strict=True):
        yield replace(batch, range=ChangeRange(start, number), rows=rows.slice(begin, end - begin))
        begin, start = end, number


def middle_of(batch: ChangeBatch) -> int:
    """The change number nearest to the middle of a located batch at which no transaction is open.

    Raises:
        ApplyError: the batch is a single transaction.
    """
    if (found := _middle(batch)) is None:
        raise ApplyError(
            "one transaction needs more memory than a merge has",
            where=f"apply {batch.table}",
            hint="give merges more memory (`apply.merge_memory`)",
        )
    return found


def _middle(batch: ChangeBatch) -> int | None:
    numbers, words = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    names = [n for n in (_SEQ, _TRANSACTION) if n in batch.schema.names]
    for some in batch.read_whole(names):
        numbers.append(_numbers(some[_SEQ]))
        words.append(hashes([one(_transactions(pa.Table.from_batches([some])))]))
    number = np.concatenate(numbers)
    order = np.argsort(number, kind="stable")
    last = ends(number[order], pa.chunked_array([np.concatenate(words)[order].view(np.int64)]))
    inner = last[:-1]
    if not len(inner):
        return None
    return int(inner[np.argmin(np.abs(np.searchsorted(number[order], inner) - len(number) // 2))])


def _numbers(seq: pa.Array | pa.ChunkedArray) -> Ints:
    digits = pc.utf8_slice_codeunits(seq, TIME_DIGITS, TIME_DIGITS + NUMBER_DIGITS)
    return np.asarray(digits.cast(pa.int64()).to_numpy(), np.int64)


def _transactions(rows: pa.Table) -> pa.ChunkedArray:
    """The transaction of each change; its change sequence if it has none."""
    if _TRANSACTION not in rows.schema.names:
        return rows[_SEQ]
    return pc.coalesce(rows[_TRANSACTION], rows[_SEQ])


def ends(numbers: Ints, transaction: pa.ChunkedArray) -> Ints:
    """The change numbers, ascending, at which no transaction is open.

    >>> numbers, of = np.array([1, 2, 2, 3, 4, 5, 6]), ["a", "a", "a", "b", "c", "b", "d"]
    >>> ends(numbers, pa.chunked_array([of])).tolist()
    [2, 5, 6]
    """
    known = one(transaction).dictionary_encode()
    codes = known.indices.to_numpy()
    last = np.zeros(len(known.dictionary), np.int64)
    np.maximum.at(last, codes, numbers)
    return np.unique(numbers[np.maximum.accumulate(last[codes]) <= numbers])
