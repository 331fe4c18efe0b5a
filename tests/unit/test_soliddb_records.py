"""Changes become records of SYS_LOG in arrays, a batch at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from tailrace.formats.soliddb.codec import Encoding
from tailrace.formats.soliddb.records import Ends, Records, marks
from tailrace.formats.soliddb.tables import SolidLayout
from tailrace.wire.soliddb import RowField, Style
from tailrace.wire.soliddb_address import make

pytestmark = pytest.mark.unit
FIELDS = (RowField("id", "INTEGER", "int"), RowField("v", "CHAR", "string"))
LAYOUT = SolidLayout(10_000, b"", "shop.item", ("shop.item",), FIELDS, ("id",))


def records(key: tuple[int, ...] = (0,)) -> Records:
    return Records("shop.item", (LAYOUT,), Encoding((FIELDS,), ("id", "v"), Style()), key, 20, own=False)


def seq(n: int) -> str:
    return f"{n:035d}"


def changes(*rows: tuple[int, str, int | None, str | None]) -> pa.RecordBatch:
    """Changes: number, operation, id, v."""
    return pa.RecordBatch.from_pydict(
        {
            "_seq": pa.array([seq(r[0]) for r in rows]),
            "_oper": pa.array([r[1] for r in rows]),
            "TRXID": pa.array([7] * len(rows), pa.int64()),
            "STMTTRXID": pa.nulls(len(rows), pa.int64()),
            "_c0": pa.array([r[2] for r in rows], pa.int32()),
            "_c1": pa.array([r[3] for r in rows], pa.string()),
        }
    )


def made(*batches: pa.RecordBatch, key: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    return pa.Table.from_batches(list(records(key)(iter(batches)))).to_pylist()


ROWS = [
    (1, "I", 1, "a"),
    (2, "B", 1, "a"),
    (2, "U", 1, "b"),
    (3, "B", 1, "b"),
    (3, "U", 9, "b"),
    (4, "D", 9, "b"),
    (5, "T", None, None),
]


@pytest.mark.parametrize("cuts", [[], [1], [2], [4], [2, 4], [1, 2, 3, 4, 5, 6]])
def test_a_key_change_is_a_delete_and_an_insert_wherever_a_batch_ends(cuts: list[int]) -> None:
    ends = [0, *cuts, len(ROWS)]
    found = made(*(changes(*ROWS[a:b]) for a, b in pairwise(ends)))
    assert [r["RECID"] for r in found] == [1, 5, 3, 4, 1, 4, 13]
    assert [r["LOGADDR"] for r in found] == [
        make(seq(n), rank) for n, rank in ((1, 3), (2, 1), (2, 4), (3, 1), (3, 4), (4, 2), (5, 5))
    ]
    assert found[0] == {
        "RECID": 1, "RECNAME": "DBE_LOGREADER_LOG_REC_INSERT", "TRXID": 7, "STMTTRXID": None, "RELID": 10_000,
        "FLAGS": 1, "LOGADDR": make(seq(1), 3), "DATA": b"\4\0\0\0\1\2a\0", "TEXTDATA": None,
    }  # fmt: skip
    assert found[-1]["DATA"] == b"\0\0\0\x49shop.item\0"


def test_without_a_key_updates_stay_updates() -> None:
    assert [r["RECID"] for r in made(changes(*ROWS), key=())] == [1, 5, 3, 5, 3, 4, 13]


def test_marks_around_transactions() -> None:
    rows = changes((4, "U", 1, "a"), (2, "I", 1, "a"), (3, "D", 1, "a"))
    rows = rows.set_column(2, "TRXID", pa.array([8, 7, 8], pa.int64()))
    (ends,) = Ends(20)(iter([rows]))
    assert ends.to_pylist() == [
        {"TRXID": 7, "_first": make(seq(2), 3), "_last": make(seq(2), 3)},
        {"TRXID": 8, "_first": make(seq(3), 2), "_last": make(seq(4), 4)},
    ]
    found = pa.Table.from_batches(list(marks(iter([ends])))).to_pylist()
    assert [(r["RECID"], r["TRXID"], r["FLAGS"], r["LOGADDR"]) for r in found] == [
        (7, 7, 1, make(seq(2), 0)),
        (7, 8, 1, make(seq(3), 0)),
        (12, 7, 1, make(seq(2), 9)),
        (12, 8, 1, make(seq(4), 9)),
    ]
    assert {r["RECNAME"] for r in found} == {
        "DBE_LOGREADER_LOG_REC_TRX_START",
        "DBE_LOGREADER_LOG_REC_COMMIT",
    }
