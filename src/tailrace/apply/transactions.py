"""Changes cut into the source's transactions, for targets that commit each of them."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.change import ChangeTable
from ..model.sequence import NUMBER_DIGITS, TIME_DIGITS
from .images import col
from .plan import SPECIAL


@dataclass(frozen=True)
class Transaction:
    """Changes of one table with numbers in [first, last], and how many there are of each kind."""

    first: int
    last: int
    counts: dict[str, int]


def transactions(changes: ChangeTable) -> list[Transaction]:
    """The transactions of a change table, in order; runs one job.

    A change without a transaction is one of its own. Where the numbers of some lie between those of others
    (a source that does not order by commit), they are one: what lies between them cannot be left out.
    """
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
