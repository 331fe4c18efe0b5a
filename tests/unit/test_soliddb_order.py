"""The order of solidDB's records in arrays, against sorting them one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.formats.soliddb.rules import MADE, MARK, MOVES
from tailrace.formats.soliddb.transactions import order_of

pytestmark = pytest.mark.unit
KINDS = {
    "TRXID": pa.int64(), "RELID": pa.int32(), "STMTTRXID": pa.int64(), "LOGADDR": pa.binary(), "RECID": pa.int32(),
    MARK: pa.bool_(), MADE: pa.bool_(), MOVES: pa.bool_(),
}  # fmt: skip
BIG = st.sampled_from([-(2**63), -1, 0, 1, 2, 2**62, 2**63 - 1])
NUMBER = st.one_of(st.none(), BIG)
RELID = st.sampled_from([None, -(2**31), 0, 1, 2**31 - 1])


def records(length: int) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    address = st.one_of(
        st.binary(min_size=length, max_size=length),
        st.integers(0, 3).map(lambda n: bytes(length - 1) + bytes([n])),
        st.integers(0, 3).map(lambda n: bytes([n]) + bytes(length - 1)),
    )
    flag = st.booleans()
    one = st.tuples(BIG, RELID, NUMBER, address, st.sampled_from([1, 3, 4, 5, 7, 12, 13]), flag, flag, flag)
    return st.lists(one, max_size=30)


@given(st.one_of(records(20), records(28)), st.booleans())
def test_order(rows: list[tuple[Any, ...]], statements: bool) -> None:
    def key(at: int) -> tuple[Any, ...]:
        trxid, relid, statement, address, recid, mark, made, moves = rows[at]
        own = [(v is not None, v or 0) for v in (relid, statement, made, moves)]
        return (trxid, not mark, own if statements and not mark else [], address, recid)

    columns = list(zip(*rows, strict=True)) or [()] * len(KINDS)
    arrays = [pa.array(c, k) for c, k in zip(columns, KINDS.values(), strict=True)]
    found = order_of(pa.record_batch(arrays, names=list(KINDS)), statements=statements)
    assert found.tolist() == sorted(range(len(rows)), key=key)
