"""A small solidDB log for tests: two tables, one with two layouts, and what the fact sheet says can be in it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.formats.soliddb.log import RECNAMES, SYS_LOG
from tailrace.formats.soliddb.tables import SYS_COLUMNS, SYS_TABLES
from tailrace.model.types import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ITEM, STAFF = 10003, 10007
ALTERED = 5  # the position from which ITEM has its fourth column
OPTIONS = {"keys": "SHOP.ITEM=ID; HR.STAFF=ID"}


def at(position: int, place: int = 0, trx: int = 661) -> bytes:
    """A LOGADDR of release 100."""
    return struct.pack(">QIII", position, place, trx, trx)


def value(raw: bytes | None) -> bytes:
    """A value of row layout A."""
    return b"\0" if raw is None else bytes([len(raw)]) + raw


def item(id: int, name: str | None, price: str | None, *note: str | None) -> bytes:
    """A row of SHOP.ITEM; with a note from `ALTERED` on."""
    row = value(struct.pack(">i", id)) + value(None if name is None else name.encode() + b"\0")
    row += value(None if price is None else price.encode())
    for n in note:
        row += value(None if n is None else n.encode("utf-16-be") + b"\0")
    return row


def staff(id: int, hired: str, at: str = "00000000") -> bytes:
    """A row of HR.STAFF: BIGINT, TIMESTAMP, BINARY."""
    return value(struct.pack(">q", id)) + value(bytes.fromhex(hired + at)) + value(b"\x01\x00")


class Log:
    """Records one after the other."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.position = 0

    def record(self, recid: int, data: bytes | None = None, relid: int | None = None, **more: Any) -> None:
        """One record of the transaction that is open; `more` overrides any column."""
        trx = 660 + self.position
        row = {
            "RECID": recid, "RECNAME": RECNAMES.get(recid, f"REC_{recid}"), "TRXID": trx, "STMTTRXID": trx,
            "RELID": relid, "FLAGS": 1, "LOGADDR": at(self.position, len(self.rows), trx), "DATA": data,
            "TEXTDATA": None,
        }  # fmt: skip
        self.rows.append(row | more)

    def transaction(self, *records: Sequence[Any], flags: int = 1, commit: bool = True, **more: Any) -> None:
        """A whole transaction, or (without its commit) the beginning of one."""
        self.position += 1
        self.record(7, FLAGS=flags, STMTTRXID=None, **more)
        for recid, data, relid, *rest in records:
            self.record(recid, data, relid, **{**more, **(rest[0] if rest else {})})
        if commit:
            trx = 660 + self.position
            self.record(12, **{"LOGADDR": struct.pack(">QIII", self.position, 0xFFFFFFFF, trx, trx), **more})


def sample() -> Log:
    """Every kind of record."""
    log = Log()
    log.transaction((1, item(1, "bolt", "1.50"), ITEM), (1, item(2, None, None), ITEM))
    log.transaction(
        (5, item(1, "bolt", "1.50"), ITEM), (3, item(1, "Bolt", "+1.75E0"), ITEM),
        (3, item(2, "", "2"), ITEM),
        (1, staff(1, "87E8021D0A0B0C", "0000012C"), STAFF), (1, staff(2, "07E8021D0A0B0C"), STAFF),
    )  # fmt: skip
    log.transaction(
        (4, item(1, "Bolt", "1.75"), ITEM), (1, item(7, "Bolt", "1.75"), ITEM),  # a key change
        (1, item(8, "", "2"), ITEM, {"STMTTRXID": 9}), (4, item(2, "", "2"), ITEM, {"STMTTRXID": 9}),  # another
        (4, item(7, "Bolt", "1.75"), ITEM, {"STMTTRXID": 10}),
    )  # fmt: skip
    log.transaction((6, b"ALTER TABLE ITEM ...", None), (13, b"\0\0\0\x16ITEM\0", ITEM))
    log.transaction((1, item(9, "nut", "0.1", "é🚀"), ITEM), (1, item(10, "n", "0.1", ""), ITEM))
    log.transaction((4, item(9, "nut", "0.1", "é🚀"), ITEM), flags=0x41)  # capture off
    log.transaction((9, b"?", ITEM, {"TEXTDATA": "odd"}), (13, b"\x49\0\0\0SHOP\0ITEM\0", None))
    return log


def tables(spark: SparkSession, log: Log) -> dict[str, DataFrame]:
    """The log with its system tables."""
    made = {}
    for kind, rows in ((SYS_LOG, log.rows), (SYS_TABLES, TABLES), (SYS_COLUMNS, columns())):
        schema = pa.schema([(c.name, arrow_type(c.type)) for c in kind.columns])
        made[kind.name] = spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))
    return made


TABLES: list[dict[str, Any]] = [
    {"ID": ITEM, "TABLE_NAME": "ITEM", "TABLE_TYPE": "BASE TABLE", "TABLE_SCHEMA": "SHOP", "TABLE_CATALOG": "DBA",
     "CREATIME": datetime(2024, 1, 1), "CHECKSTRING": "ID > 0", "REMARKS": "what is sold"},
    {"ID": STAFF, "TABLE_NAME": "STAFF", "TABLE_TYPE": "BASE TABLE", "TABLE_SCHEMA": "HR", "TABLE_CATALOG": "DBA"},
    {"ID": 12, "TABLE_NAME": "SYS_TABLES", "TABLE_TYPE": "BASE TABLE", "TABLE_SCHEMA": "_SYSTEM"},
]  # fmt: skip


def columns() -> list[dict[str, Any]]:
    """SYS_COLUMNS: ITEM's first layout, its second from `ALTERED` on, and STAFF's."""
    made = []

    def column(
        relid: int, start: bytes | None, place: int, name: str, sql: int, family: int, **more: Any
    ) -> None:
        row = {"ID": len(made) + 500, "REL_ID": relid, "COLUMN_NAME": name, "COLUMN_NUMBER": place * 10}
        row |= {"SQL_DATA_TYPE_NUM": sql, "DATA_TYPE_NUMBER": family, "ATTR_TYPE": 0, "FROM_LOGADDR": start}
        made.append(row | more)

    for start in (None, at(ALTERED)):
        column(ITEM, start, 1, "ID", 4, 1, DATA_TYPE="INTEGER", NULLABLE="NO", NULLABLE_ODBC=0, FORMAT="f")
        column(ITEM, start, 2, "NAME", 12, 0, DATA_TYPE="VARCHAR", CHAR_MAX_LENGTH=40, DEFAULT_VAL="x")
        column(
            ITEM,
            start,
            3,
            "PRICE",
            2,
            5,
            DATA_TYPE="NUMERIC",
            NUMERIC_PRECISION=10,
            NUMERIC_SCALE=2,
            NUMERIC_PREC_RADIX=10,
        )
    column(ITEM, at(ALTERED), 4, "NOTE", -9, 7, DATA_TYPE="WVARCHAR", REMARKS="new")
    column(STAFF, None, 1, "ID", -5, 8, DATA_TYPE="BIGINT")
    column(STAFF, None, 2, "HIRED", 11, 4, DATA_TYPE="TIMESTAMP")
    column(STAFF, None, 3, "BADGE", -3, 6, DATA_TYPE="VARBINARY")
    column(STAFF, None, 4, "_HIDDEN", 4, 1, ATTR_TYPE=3)
    return made
