"""Which records of solidDB's log are read, and why others are bad: literal records in, literal results out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailrace.formats.base import WHY
from tailrace.formats.soliddb.log import RANK, RECNAMES, SYS_LOG, rank_of, sequences_of
from tailrace.formats.soliddb.rules import CHANGE, LAYOUT, MADE, MARK, MOVES, OFF, OfLog, OfTable
from tailrace.formats.soliddb.tables import SolidLayout
from tailrace.model.types import arrow_type
from tailrace.wire import soliddb_address
from tailrace.wire.soliddb_address import RANKS, make

pytestmark = pytest.mark.unit
SCHEMA = pa.schema([*((c.name, arrow_type(c.type)) for c in SYS_LOG.columns), (WHY, pa.string())])
OWN, OWN_LONG = b"\1" * 20, b"\1" * 28
ITEM = SolidLayout(10, b"", "SHOP.ITEM", ("DBA.SHOP.ITEM", "SHOP.ITEM", "ITEM"), (), ())
WIDER = SolidLayout(10, b"\1" * 19 + b"\2", "SHOP.ITEM", ("SHOP.ITEM", "ITEM"), (), ())
STAFF = SolidLayout(20, b"", "HR.STAFF", ("HR.STAFF", "STAFF"), (), ())


def record(recid: int | None = 1, **more: Any) -> dict[str, Any]:
    """A good insert into ITEM, with other values."""
    name = None if recid is None else RECNAMES.get(recid, "NEW")
    known = {
        "RECID": recid, "RECNAME": name, "TRXID": 5, "RELID": 10, "FLAGS": 1, "LOGADDR": OWN, "DATA": b"x",
    }  # fmt: skip
    return {**dict.fromkeys(SCHEMA.names), **known, **more}


def batch(*records: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(records), SCHEMA)


def whole(*records: dict[str, Any], some: bool = False, length: int = 20) -> pa.RecordBatch:
    return OfLog((ITEM, WIDER, STAFF), some, length)(batch(*records))


def truncate(relid: int | None, data: bytes) -> dict[str, Any]:
    return record(13, RELID=relid, DATA=data)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (record(), None),
        (record(WHY="before", FLAGS=None), None),
        (record(None), "no RECID"),
        (record(LOGADDR=None), "no LOGADDR"),
        (record(LOGADDR=b"\1" * 19), "LOGADDR has 19 bytes, not 20 or 28"),
        (record(LOGADDR=OWN_LONG), "LOGADDR has 28 bytes, others have 20"),
        (record(LOGADDR=b"\xff" * 20), "LOGADDR does not fit into 35 digits"),
        (record(RECNAME="odd"), "RECNAME odd is not that of RECID 1"),
        (record(RECNAME=None), None),
        (record(99), None),
        (record(DATA=None), "a row record without DATA"),
        (record(FLAGS=0), "a row record without DATA; a NOP record with values"),
        (record(RELID=4711), "RELID 4711 is in no SYS_TABLES with SYS_COLUMNS"),
        (record(RELID=None), "RELID NULL is in no SYS_TABLES with SYS_COLUMNS"),
        (record(6, RELID=None, FLAGS=0), "a NOP record with values"),
    ],
)
def test_a_bad_record_has_its_reasons(one: dict[str, Any], why: str | None) -> None:
    assert whole(one)[WHY].to_pylist() == [why]


def test_a_reason_comes_after_those_of_reading() -> None:
    assert whole(record(DATA=None) | {WHY: "RELID is not valid as int"})[WHY].to_pylist() == [
        "RELID is not valid as int; a row record without DATA"
    ]


def test_rows_without_any_values_are_no_records() -> None:
    empty = dict.fromkeys(SCHEMA.names)
    idle = [empty | {"FLAGS": 0}, empty | {"FLAGS": 2, "RECID": 0}]
    kept = [empty | {"FLAGS": 0, "TRXID": 5}, empty | {"FLAGS": 0, "RECID": 7}, empty | {"FLAGS": 1}]
    assert whole(*idle, *kept).num_rows == 3


def test_records_of_tables_that_are_not_wanted_are_not_bad() -> None:
    made = whole(record(RELID=4711), some=True)
    assert (made[WHY].to_pylist(), made[CHANGE].to_pylist()) == ([None], [False])


def test_changes_marks_and_others_of_a_log_are_told_apart() -> None:
    made = whole(record(), record(7, FLAGS=0x41), record(12), record(6), record(4, DATA=None), record(None))
    columns = {n: made[n].to_pylist() for n in (CHANGE, OFF, MARK, MOVES)}
    assert columns == {
        CHANGE: [True, False, False, False, False, False],
        OFF: [False, True, False, False, False, False],
        MARK: [False, True, True, False, False, False],
        MOVES: [True, False, False, False, True, False],
    }


TRUNCATES = [
    (truncate(10, b"\0\0\0\x49?\0"), True),  # by RELID
    (truncate(4711, b"\0\0\0\x49SHOP\0ITEM\0"), True),  # by name, as no table has the RELID
    (truncate(None, b'\x49\0\0\0"SHOP"."ITEM"'), True),
    (truncate(20, b"\0\0\0\x49SHOP\0ITEM\0"), False),  # another table's
    (truncate(10, b"\0\0\0\x16SHOP\0ITEM\0"), False),  # ALTER TABLE
    (truncate(4711, b"\0\0\0\x49OTHER\0"), False),
    (truncate(10, b""), False),
]


@pytest.mark.parametrize(("one", "mine"), TRUNCATES)
def test_a_truncate_is_found_by_relid_or_by_name(one: dict[str, Any], mine: bool) -> None:
    made = OfTable((ITEM, WIDER), (ITEM, WIDER, STAFF), 20)(batch(one))
    assert made.num_rows == mine


def test_a_name_of_two_tables_is_nobodys_truncate() -> None:
    other = SolidLayout(30, b"", "OLD.ITEM", ("OLD.ITEM", "ITEM"), (), ())
    rule = OfTable((ITEM,), (ITEM, other), 20)
    log = batch(truncate(None, b"\0\0\0\x49ITEM"), truncate(None, b"\0\0\0\x49SHOP.ITEM"))
    assert rule(log)["DATA"].to_pylist() == [b"\0\0\0\x49SHOP.ITEM"]


def test_good_records_of_a_table_have_the_layout_of_their_address() -> None:
    rule = OfTable((ITEM, WIDER), (ITEM, WIDER, STAFF), 20)
    later = b"\1" * 19 + b"\3"
    made = rule(
        batch(
            record(),
            record(LOGADDR=later),
            record(7),
            record(RELID=20),
            record(DATA=None),
            record(6),
            record(None),
        )
    )
    assert made[LAYOUT].to_pylist() == [0, 1, None]
    assert made[MARK].to_pylist() == [False, False, True]


def test_records_that_tailrace_made_are_known_by_the_rank_of_their_address() -> None:
    seq = f"{7:035d}"
    addresses = [make(seq, RANKS["I"]), make(seq, RANKS["B"]), make(seq, RANKS["U"]), OWN]
    made = OfTable((ITEM,), (ITEM,), 20)(batch(*(record(LOGADDR=a) for a in addresses)))
    assert made[RANK].to_pylist() == [RANKS["I"], RANKS["B"], RANKS["U"], None]
    # An insert is an insert or half of a key change; a before image never is one.
    assert made[MADE].to_pylist() == [True, False, True, False]


@pytest.mark.parametrize("length", soliddb_address.LENGTHS)
def test_sequences_and_ranks_are_those_of_single_addresses(length: int) -> None:
    seqs = [f"{n:035d}" for n in (0, 1, 2**32, 2**95 - 1, 2**95, 10**19, 10**34 + 7, 10**35 - 1)]
    seqs += [f"{k * 37**k % 10**35:035d}" for k in range(40)]
    rows = [(s, r, make(s, r, length)) for s in seqs for r in RANKS.values()]
    made = pa.array([a for _, _, a in rows])
    assert sequences_of(made).to_pylist() == [s for s, _, _ in rows]
    assert rank_of(made).to_pylist() == [r for _, r, _ in rows]


def test_addresses_without_a_sequence_have_none() -> None:
    good = bytes.fromhex("0000000000000001FFFFFFFF0000029500000295")
    odd = [None, b"", b"\1" * 19, b"\xff" * 20, good, bytes(12) + good[12:] + bytes(8)]
    assert sequences_of(pa.array(odd)).to_pylist() == [
        None, None, None, None, soliddb_address.sequence_of(good), f"{0:035d}",
    ]  # fmt: skip
    assert rank_of(pa.array([good, b"", None], pa.binary())).to_pylist() == [None, None, None]
