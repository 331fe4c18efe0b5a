"""Records that are no changes, against a model that looks at one transaction after the other."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tailrace.formats.base import WHY
from tailrace.formats.soliddb.log import RECNAMES
from tailrace.formats.soliddb.others import OtherRecords
from tailrace.wire.soliddb_address import make, sequence_of

from ..examples import rounds

pytestmark = pytest.mark.unit
START, COMMIT, INSERT, DELETE, SQL = 7, 12, 1, 4, 6
SCHEMA = pa.schema(
    [
        ("RECID", pa.int32()), ("RECNAME", pa.string()), ("TRXID", pa.int64()), ("STMTTRXID", pa.int64()),
        ("RELID", pa.int32()), ("FLAGS", pa.int32()), ("LOGADDR", pa.binary()), ("DATA", pa.binary()),
        ("TEXTDATA", pa.string()), ("_change", pa.bool_()), ("_made", pa.bool_()), ("_moves", pa.bool_()),
        ("_mark", pa.bool_()), (WHY, pa.string()),
    ]
)  # fmt: skip


def log(chance: random.Random) -> list[dict[str, Any]]:
    """Records of two transaction ids, mixed; some marks as writing makes them."""
    rows = []
    for n in range(1, chance.randrange(2, 30)):
        recid = chance.choice([START, COMMIT, INSERT, INSERT, DELETE, SQL])
        mark = recid in (START, COMMIT)
        rank = {START: 0, COMMIT: 9, INSERT: 3, DELETE: 2, SQL: 7}[recid]
        # A mark next to a change has the number of that change.
        number = n + (recid == START) if mark and chance.random() < 0.8 else n
        number -= recid == COMMIT and rows != [] and rows[-1]["_change"] and number == n
        rows.append(
            {
                "RECID": recid, "RECNAME": RECNAMES[recid], "TRXID": chance.choice([1, 2]),
                "STMTTRXID": None if mark else chance.choice([1, 2]), "RELID": None if mark else 10,
                "FLAGS": 0x41 if recid == START and chance.random() < 0.3 else 1,
                "LOGADDR": make(f"{number:035d}", rank), "DATA": None if mark else b"x", "TEXTDATA": None,
                "_change": recid in (INSERT, DELETE), "_made": recid in (INSERT, DELETE),
                "_moves": recid in (INSERT, DELETE), "_mark": mark,
            }
        )  # fmt: skip
    return rows


def bad(chance: random.Random, transaction: int) -> dict[str, Any]:
    """A record of which neither place nor kind is known."""
    recid = chance.choice([None, START, INSERT])
    return {
        **dict.fromkeys(SCHEMA.names), "TRXID": transaction, "RECID": recid, "LOGADDR": b"?", "_change": False,
        "_made": False, "_mark": None if recid is None else recid == START, WHY: "bad",
    }  # fmt: skip


def kept(rows: list[dict[str, Any]], policy: str) -> list[tuple[Any, ...]]:
    """What is kept: transaction, LOGADDR, sequence, whether it waits."""
    made = []
    for transaction in (1, 2):
        mine = sorted(
            (r for r in rows if r["TRXID"] == transaction), key=lambda r: (r["LOGADDR"], r["RECID"])
        )
        parts: list[list[dict[str, Any]]] = [[]]
        for i, r in enumerate(mine):
            if r["RECID"] == START or (i and mine[i - 1]["RECID"] == COMMIT):
                parts.append([])
            parts[-1].append(r)
        for part in parts:
            committed = any(r["RECID"] == COMMIT for r in part)
            off = any(r["RECID"] == START and r["FLAGS"] & 0x40 for r in part)
            places = [r["LOGADDR"] for r in part if r["_change"]]
            for r in part:
                waits = part is parts[-1] and not committed and r["RECID"] != COMMIT
                inserts = any(o["RECID"] == INSERT and o["STMTTRXID"] == r["STMTTRXID"] for o in part)
                skipped = off and (policy == "skip-all" or (r["RECID"] == DELETE and not inserts))
                change = r["_change"] and not (skipped and policy != "keep")
                usual = r["_mark"] and places and r["FLAGS"] == 1
                if r["RECID"] == START:
                    usual = usual and r["LOGADDR"] == min(places)[:-1] + b"\0"
                elif usual:
                    usual = r["LOGADDR"] == max(places)[:-1] + b"\x09"
                if waits or not (change or usual):
                    made.append((transaction, r["LOGADDR"], sequence_of(r["LOGADDR"]), waits))
    return sorted(made)


@pytest.mark.parametrize("policy", ["skip-all", "skip-deletes", "keep"])
def test_what_is_kept(policy: str) -> None:
    chance, marks = random.Random(7), 0
    for _ in range(rounds(20)):
        rows = log(chance)
        # Only one policy needs statements one after the other; without them nothing but marks is in order.
        statement = (lambda r: r["STMTTRXID"] or 0) if policy == "skip-deletes" else lambda r: 0
        order = sorted(
            rows, key=lambda r: (r["TRXID"], not r["_mark"], statement(r), r["LOGADDR"], r["RECID"])
        )
        wrong = [bad(chance, 1) for _ in range(chance.randrange(3))]
        for one in wrong:
            order.insert(chance.randrange(len(order) + 1), one)
        batches, at = [], 0
        while at < len(order):
            size = chance.randrange(1, 9)
            batches.append(pa.RecordBatch.from_pylist(order[at : at + size], schema=SCHEMA))
            at += size
        found = [r for b in OtherRecords(policy, True)(iter(batches)) for r in b.to_pylist()]
        got = sorted((r["TRXID"], r["LOGADDR"], r["_seq"], r["_waits"]) for r in found)
        assert got == sorted([*kept(rows, policy), *[(1, b"?", None, False)] * len(wrong)]), rows
        marks += sum(r["_mark"] for r in rows) - sum(r["RECID"] in (START, COMMIT) for r in found)
    assert marks > 5  # some marks were as writing makes them
