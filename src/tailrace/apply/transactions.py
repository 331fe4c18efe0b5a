"""Changes cut into the source's transactions, for targets that commit each of them.

A change without a transaction is one of its own. Where the numbers of some lie between those of others (a
source that does not order by commit), they are one: what lies between them cannot be left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.columns import one
from ..lake import delta as lake
from ..model.change import PREFIX, ChangeTable
from ..model.sequence import NUMBER_DIGITS, TIME_DIGITS
from .images import col
from .plan import SPECIAL
from .targets.auditor import gathered
from .targets.task_batch import TaskBatch

_SEQ, _TRANSACTION = PREFIX + "change_seq", PREFIX + "transaction_id"


def by_transaction(batch: TaskBatch, memory_bytes: int | None) -> Iterator[TaskBatch]:
    """The transactions of a batch, in order, each a batch of its own; its changes are read once. Gives none
    when they take more than a third of the memory."""
    with lake.opened(batch.changes) as changes:
        rows = gathered(batch.read_whole(changes), lake.arrow_schema(changes), memory_bytes)
    if rows is None:
        return
    digits = pc.utf8_slice_codeunits(rows[_SEQ], TIME_DIGITS, TIME_DIGITS + NUMBER_DIGITS)
    numbers = digits.cast(pa.int64()).to_numpy()
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows.take(pa.array(order)), numbers[order]
    last = ends(numbers, pc.coalesce(rows[_TRANSACTION], rows[_SEQ]))
    edges = np.searchsorted(numbers, last, "right").tolist()
    uptos = [*last.tolist()[:-1], batch.upto]  # behind the last there is nothing of this table
    begin, after = 0, batch.after
    for end, upto in zip(edges or [0], uptos, strict=True):
        yield replace(batch, after=after, upto=upto, rows=rows.slice(begin, end - begin))
        begin, after = end, upto


def ends(numbers: npt.NDArray[np.int64], transaction: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """The change numbers, ascending, with which all transactions that have begun have ended.

    >>> numbers, of = np.array([1, 2, 2, 3, 4, 5, 6]), ["a", "a", "a", "b", "c", "b", "d"]
    >>> ends(numbers, pa.chunked_array([of])).tolist()
    [2, 5, 6]
    """
    known = one(transaction).dictionary_encode()
    codes = known.indices.to_numpy()
    last = np.zeros(len(known.dictionary), np.int64)
    np.maximum.at(last, codes, numbers)
    return np.unique(numbers[np.maximum.accumulate(last[codes]) <= numbers])


@dataclass(frozen=True)
class Transaction:
    """Changes of one table with numbers in [first, last], and how many there are of each kind."""

    first: int
    last: int
    counts: dict[str, int]


def transactions(changes: ChangeTable) -> list[Transaction]:
    """The transactions of a change table, in order; runs one job."""
    from pyspark.sql import functions as F

    header, have = changes.header, set(changes.df.columns)
    seq, oper = col(header("change_seq")), col(header("change_oper"))
    number = F.substring(seq, TIME_DIGITS + 1, NUMBER_DIGITS).cast("bigint")
    name = header("transaction_id")
    own = F.coalesce(col(name).cast("string"), seq) if name in have else seq
    mask = header("column_mask")
    absent = (col(mask).isNotNull() & (oper == "U")) if mask in have else F.lit(False)
    kinds = {"key_changes": oper == "B", "absent": absent} | {k: oper == k for k in "IUDT"}
    found = changes.df.groupBy(own.alias("header__own")).agg(
        F.min(number).alias("first"),
        F.max(number).alias("last"),
        *[F.count_if(kinds[k]).alias(k) for k in SPECIAL],
    )
    rows = found.orderBy("first").collect()
    made: list[Transaction] = []
    for r in rows:
        one = Transaction(int(r["first"]), int(r["last"]), {k: int(r[k]) for k in SPECIAL})
        if made and one.first <= made[-1].last:
            before = made.pop()
            counts = {k: before.counts[k] + one.counts[k] for k in SPECIAL}
            one = Transaction(before.first, max(before.last, one.last), counts)
        made.append(one)
    return made
