"""Records of solidDB's log to changes, in arrays: a plain model of the rule, and batches cut anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.formats.base import AGAIN, WHY
from tailrace.formats.soliddb.codec import Decoding
from tailrace.formats.soliddb.log import CAPTURE_OFF, COMMIT, DATA, RANK, ROWS, SEQ, START
from tailrace.formats.soliddb.pairs import NO_COMMIT, NO_START, OPER, OTHER_ROW, Pairs
from tailrace.formats.soliddb.rules import MADE, MARK, MOVES
from tailrace.wire import soliddb

from ..examples import examples

pytestmark = pytest.mark.unit

FIELDS = (soliddb.RowField("id", "INTEGER", "int"), soliddb.RowField("note", "CHAR", "string"))
STYLE = soliddb.Style()


@dataclass(frozen=True)
class Record:
    """A record; `id` None: a mark of its transaction."""

    trxid: int | None
    recid: int
    statement: int | None = 1
    id: int | None = None
    off: bool = False


TRANSACTIONS = st.lists(
    st.tuples(
        st.sampled_from([None, 7, 8]),
        st.lists(
            st.tuples(st.sampled_from(ROWS), st.sampled_from([1, 2, None]), st.integers(1, 2)), max_size=7
        ),
        st.sampled_from(["both", "both", "start", "commit", "off", "none"]),
    ),
    max_size=5,
)


def log_of(transactions: Any) -> list[Record]:
    made = []
    for trxid, rows, marks in transactions:
        if marks in ("both", "start", "off"):
            made.append(Record(trxid, START, None, off=marks == "off"))
        made += [Record(trxid, recid, statement, id) for recid, statement, id in rows]
        if marks in ("both", "commit", "off"):
            made.append(Record(trxid, COMMIT, None))
    return made


def model(log: list[Record], policy: str, starts: str = "optional") -> list[tuple[Any, ...]]:
    """(place, operation, place that gives the change sequence, reason), record by record."""
    parts: list[list[int]] = []
    begun: dict[int | None, list[int]] = {}
    for at, one in enumerate(log):
        if one.recid == START or one.trxid not in begun:
            begun[one.trxid] = []
            parts.append(begun[one.trxid])
        begun[one.trxid].append(at)
        if one.recid == COMMIT:
            del begun[one.trxid]
    found: list[tuple[Any, ...]] = []
    for part in parts:
        trxid = log[part[0]].trxid
        committed = log[part[-1]].recid == COMMIT
        newest = part is next(p for p in reversed(parts) if log[p[0]].trxid == trxid)
        rows = [at for at in part if log[at].id is not None]
        if newest and not committed:
            continue
        off = log[part[0]].off
        if policy == "skip-all" and off:
            continue
        if policy == "skip-deletes" and off:
            inserting = {log[at].statement for at in rows if log[at].recid == 1}
            rows = [at for at in rows if log[at].recid != 4 or log[at].statement in inserting]
        headless = starts == "required" and log[part[0]].recid != START
        said = (*[NO_START] * headless, *[NO_COMMIT] * (not committed))
        for statement in {log[at].statement for at in rows}:
            mine = [at for at in rows if log[at].statement == statement]
            found += updates(log, [at for at in mine if log[at].recid in (3, 5)], "; ".join(said))
            found += moves(log, [at for at in mine if log[at].recid in (1, 4)], "; ".join(said))
    return sorted(found)


def updates(log: list[Record], mine: list[int], said: str) -> list[tuple[Any, ...]]:
    made = []
    for n, at in enumerate(mine):
        then = mine[n + 1] if n + 1 < len(mine) and log[mine[n + 1]].recid == 3 else None
        pair = log[at].recid == 5 and then is not None
        same = pair and (log[then].id == log[at].id or said)  # type: ignore[index]
        why = said or (OTHER_ROW if pair and not same else None)
        made.append((at, "B" if log[at].recid == 5 else "U", then if same else at, why))
    return made


def moves(log: list[Record], mine: list[int], said: str) -> list[tuple[Any, ...]]:
    kinds = [log[at].recid for at in mine]
    strict = len(mine) % 2 == 0 and all(a != b for a, b in pairwise(kinds))
    strict = strict and not said and bool(mine) and log[mine[0]].statement is not None
    made = []
    for n, at in enumerate(mine):
        other = mine[n ^ 1] if strict else at
        moved = strict and log[other].id != log[at].id
        oper = {1: "U" if moved else "I", 4: "B" if moved else "D"}[log[at].recid]
        made.append((at, oper, max(at, other) if moved else at, said or None))
    return made


def batch_of(log: list[Record]) -> pa.RecordBatch:
    """As Spark hands them over: sorted by transaction, its marks first, then by statement."""

    def order(at: int) -> tuple[Any, ...]:
        one = log[at]
        moves = one.recid in (1, 4)
        own = (one.statement is not None, one.statement or 0, moves) if one.id is not None else ()
        return (one.trxid is not None, one.trxid or 0, one.id is not None, own, at)

    places = sorted(range(len(log)), key=order)
    rows = [log[at] for at in places]
    ids = pa.array([r.id for r in rows], pa.int32())
    data = soliddb.encode([ids, pa.array(["x"] * len(rows), pa.string())], FIELDS, STYLE)
    mark = [r.id is None for r in rows]
    columns = {
        "RECID": pa.array([r.recid for r in rows], pa.int32()),
        "RECNAME": pa.nulls(len(rows), pa.string()),
        "TEXTDATA": pa.nulls(len(rows), pa.string()),
        "TRXID": pa.array([r.trxid for r in rows], pa.int64()),
        "STMTTRXID": pa.array([r.statement for r in rows], pa.int64()),
        "RELID": pa.array([None if m else 5 for m in mark], pa.int32()),
        "FLAGS": pa.array([DATA | (CAPTURE_OFF if r.off else 0) for r in rows], pa.int32()),
        "LOGADDR": pa.array([at.to_bytes(12, "big") + bytes(8) for at in places], pa.binary()),
        "DATA": pa.array([None if m else d for m, d in zip(mark, data.to_pylist(), strict=True)], pa.binary()),
        RANK: pa.nulls(len(rows), pa.int32()),
        "_layout": pa.array([None if m else 0 for m in mark], pa.int32()),
        MADE: pa.array([False] * len(rows), pa.bool_()),
        MARK: pa.array(mark, pa.bool_()),
        MOVES: pa.array([r.recid in (1, 4) for r in rows], pa.bool_()),
        WHY: pa.nulls(len(rows), pa.string()),
    }  # fmt: skip
    return pa.RecordBatch.from_pydict(columns)


def pairs_of(policy: str, starts: str = "optional") -> Pairs:
    decoding = Decoding((FIELDS,), (("id", "int"), ("note", "string")), STYLE)
    return Pairs(decoding, (0,), {}, policy, starts)


def found(batches: list[pa.RecordBatch], policy: str, starts: str = "optional") -> list[tuple[Any, ...]]:
    pairs = pairs_of(policy, starts)
    rows = [r for made in pairs(iter(batches)) for r in made.to_pylist()]
    told = [(int.from_bytes(r["LOGADDR"][:12], "big"), r[OPER], int(r[SEQ]), r[WHY]) for r in rows]
    return sorted(told, key=lambda r: (r[0], r[3] or ""))


@examples(12)
@given(
    TRANSACTIONS,
    st.sampled_from(["keep", "skip-all", "skip-deletes"]),
    st.sampled_from(["required", "optional"]),
    st.lists(st.integers(1, 4), max_size=40),
)
def test_as_the_model_has_it_in_batches_of_any_size(transactions, policy, starts, sizes):
    log = log_of(transactions)
    whole = batch_of(log)
    want = model(log, policy, starts)
    assert found([whole], policy, starts) == want
    batches, at = [], 0
    for size in sizes:
        batches.append(whole.slice(at, size))
        at += size
    assert found([*batches, whole.slice(min(at, len(log)))], policy, starts) == want


@examples(12)
@given(TRANSACTIONS, st.lists(st.integers(0, 40), max_size=12), st.integers(1, 5))
def test_records_that_come_again_change_nothing(transactions, again, size):
    log = log_of(transactions)
    whole = batch_of(log)
    copies = [at for at in again if at < len(log)]
    rows = whole.take(pa.array(sorted([*range(len(log)), *copies]), pa.int64()))
    made = found([rows.slice(at, size) for at in range(0, rows.num_rows, size)], "keep")
    assert [r for r in made if r[3] != AGAIN] == model(log, "keep")
    waits = [at for at in copies if not whole[MARK][at].as_py()]
    assert len([r for r in made if r[3] == AGAIN]) <= len(waits)


def test_a_record_that_comes_again_has_its_reason():
    log = [Record(7, START, None), Record(7, 5, 1, 1), Record(7, 3, 1, 1), Record(7, COMMIT, None)]
    whole = batch_of(log)
    rows = whole.take(pa.array([0, 0, 1, 1, 2, 3]))  # the marks come first
    assert found([rows], "keep") == found([whole], "keep")
    rows = whole.take(pa.array([0, 1, 2, 2, 2, 3]))
    told = [r for r in found([rows.slice(0, 4), rows.slice(4)], "keep") if r[3]]
    assert [(at, oper, why) for at, oper, _, why in told] == [(1, "B", AGAIN)] * 2


def test_the_end_of_a_transaction_that_begins_in_another_file_is_bad():
    log = [Record(2, 1, 1, 3), Record(2, COMMIT, None), Record(3, START, None), Record(3, 1, 1, 4)]
    log += [Record(3, COMMIT, None), Record(2, 4, 1, 5)]  # the last one waits
    assert found([batch_of(log)], "keep", "required") == [(0, "I", 0, NO_START), (3, "I", 3, None)]
    assert found([batch_of(log)], "keep") == [(0, "I", 0, None), (3, "I", 3, None)]


def test_a_statement_of_many_rows_waits_for_none_of_them():
    """Rows of a load leave with the batch they came in; key changes by turns wait until their statement ends."""
    load = [Record(7, START, None), *(Record(7, 1, 1, n) for n in range(10)), Record(7, COMMIT, None)]
    turns = [
        Record(7, START, None),
        *(Record(7, 4 if n % 2 else 1, 1, n) for n in range(10)),
        Record(7, COMMIT, None),
    ]
    for log, sizes in ((load, [1, 4, 4, 1]), (turns, [10])):
        whole = batch_of(log)
        made = pairs_of("keep")(whole.slice(at, 4) for at in range(0, 12, 4))
        assert [m.num_rows for m in made] == sizes
