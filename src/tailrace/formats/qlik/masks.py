"""Determines the byte order of binary masks: the self-check of spec/qlik.md §2.

According to the vendor's page masks are little-endian, but all public masks are text and big-endian. So some
rows are inspected: an INSERT marks all data columns and no header; an UPDATE marks the columns in which it
differs from its before image. At most `SAMPLE` rows of each kind are collected in the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...model import mask
from ...model.quoting import quoted
from ..spark_functions import F
from .layout import columns_of, headers_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE = 100


def is_little(df: DataFrame, prefix: str) -> bool | None:
    """Whether the masks' least significant byte is first; None if no row is conclusive.

    Runs a small Spark job, or two if no INSERT decides.
    """
    names = columns_of(df)
    heads = headers_of(names, prefix)
    if "change_mask" not in heads:
        return None
    oper, bits = F.col(quoted(heads["change_oper"])), F.col(quoted(heads["change_mask"]))
    data = [i for i, n in enumerate(names) if n not in heads.values()]
    inserts = df.filter((oper == "I") & (F.octet_length(bits) > 1)).select(bits).limit(SAMPLE).collect()
    votes = [by_insert(bytes(r[0]), data) for r in inserts]
    decided = winner(votes)
    return winner(by_update(*pair, data) for pair in _pairs(df, heads, data)) if decided is None else decided


def winner(votes: Iterable[bool | None]) -> bool | None:
    """Returns the majority of the votes; None for a tie.

    >>> winner([True, None, True, False]), winner([None]), winner([True, False])
    (True, None, None)
    """
    found = [v for v in votes if v is not None]
    little = sum(found)
    return None if 2 * little == len(found) else 2 * little > len(found)


def by_insert(octets: bytes, data: Sequence[int]) -> bool | None:
    """Whether an INSERT's mask is little-endian: all data columns are marked and nothing else.

    >>> by_insert(bytes.fromhex("80ff"), range(7, 16)), by_insert(bytes.fromhex("ff80"), range(7, 16))
    (True, False)
    """
    big, little = mask.decode(octets), mask.decode(octets[::-1])
    if big == little:
        return None
    for want in (list(data),):
        if want in (big, little):
            return little == want
    inside = [set(found) <= set(data) for found in (big, little)]
    return inside[1] if inside[0] != inside[1] else None


def by_update(octets: bytes, changed: Sequence[int], data: Sequence[int]) -> bool | None:
    """Whether an UPDATE's mask is little-endian: the columns that changed are marked.

    >>> [by_update(bytes.fromhex("8000"), [n], range(7, 16)) for n in (7, 15)]
    [True, False]
    """
    big, little = mask.decode(octets), mask.decode(octets[::-1])
    if big == little:
        return None
    if list(changed) in (big, little):
        return little == list(changed)
    inside = [set(found) <= set(data) for found in (big, little)]
    return inside[1] if inside[0] != inside[1] else None


def _pairs(df: DataFrame, heads: dict[str, str], data: Sequence[int]) -> list[tuple[bytes, list[int]]]:
    """Returns some UPDATEs' masks, and the indexes of the columns that differ from their before images."""
    names = columns_of(df)
    seq, oper, bits = (heads[h] for h in ("change_seq", "change_oper", "change_mask"))
    long = F.octet_length(F.col(quoted(bits))) > 1
    images = df.select(*[F.col(quoted(n)) for n in names])
    after = images.filter((F.col(quoted(oper)) == "U") & long).limit(SAMPLE).collect()
    wanted = [r[seq] for r in after]
    before: dict[Any, Any] = {}
    if wanted:
        olds = images.filter((F.col(quoted(oper)) == "B") & F.col(quoted(seq)).isin(wanted))
        before = {r[seq]: r for r in olds.limit(SAMPLE).collect()}
    found = []
    for row in after:
        old = before.get(row[seq])
        changed = [i for i in data if old is not None and old[i] != row[i]]
        found.append((bytes(row[bits]), changed))
    return found
