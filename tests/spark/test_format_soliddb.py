"""solidDB's log extracts: the conformance suite, and what is solidDB's own."""

from __future__ import annotations

import base64
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tailrace import formats
from tailrace.errors import FormatError
from tailrace.formats import checks, convert, file_reader, file_writer, shape
from tailrace.formats.base import RAW, WHY, Options, Read
from tailrace.formats.soliddb import log as soliddb_log
from tailrace.formats.soliddb.pairs import NO_START
from tailrace.formats.soliddb.reader import FIELDS, RECORDS, TABLES
from tailrace.model import mask
from tailrace.model.change import PREFIX
from tailrace.operate import vendor_apply
from tailrace.testing.changes import TABLE, Image, change_table, reasons
from tailrace.testing.formats import HISTORIES, FormatConformance
from tailrace.wire import soliddb_address

from .soliddb_rows import ITEM, OPTIONS, Log, at, item, sample, tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.model.change import ChangeTable

pytestmark = pytest.mark.spark
FORMAT = formats.get("soliddb")


def options(**more: str) -> Any:
    return formats.options(FORMAT, {**OPTIONS, **more})


@pytest.mark.slow
class TestSolidDB(FormatConformance):
    format = FORMAT

    def vendor(self, spark: SparkSession) -> dict[str, DataFrame]:
        return tables(spark, sample())

    def vendor_options(self) -> Options:
        return options()

    def test_files(self, spark: SparkSession, tmp_path: Path) -> None:
        """Each kind of file is read and written by the other formats' tests, too."""
        super().test_files(spark, tmp_path)

    def test_bad_rows_get_their_reason(self, spark: SparkSession) -> None:
        """All bad rows in one log: reading it once is cheaper than once for each."""
        found = self.read(tables(spark, hostile()), options()).changes
        said = {
            name: sorted(why for why in reasons(checks.together(ct)) if why) for name, ct in found.items()
        }
        assert said == {
            "SHOP.ITEM": sorted(
                [
                    "DATA ends in column 3", "bytes left over after the last column",
                    "PRICE is not valid as DFLOAT of type decimal(10,2)", "column 2 refers to a blob outside DATA",
                    f"before image without its update: change {seq(at(97, 5000))}",
                    f"before image without its update: change {seq(at(98, 56))}",
                    "before image of another row than the update's",
                    *[f"duplicate: change {seq(at(99, 5000))} I"] * 2,
                    "its transaction has no COMMIT, although its TRXID starts again",
                ]
            ),
            "HR.STAFF": [],
            RECORDS: sorted(
                [
                    "a row record without DATA", "RELID 4711 is in no SYS_TABLES with SYS_COLUMNS",
                    "LOGADDR has 19 bytes, not 20 or 28", "LOGADDR has 28 bytes, others have 20", "no LOGADDR",
                    "LOGADDR does not fit into 35 digits", "no RECID",
                    "RECNAME DBE_LOGREADER_LOG_REC_UPDATE is not that of RECID 1", "a row record without DATA; a NOP record with values",
                ]
            ),
            TABLES: [],
            FIELDS: [],
        }  # fmt: skip
        bad = found[RECORDS].df.filter(f"{WHY} = 'no RECID'").select(RAW, WHY).collect()
        assert '"RELID":10003' in bad[0][RAW]


def hostile() -> Log:
    """One bad record in each transaction, a good one next to it."""
    good, other = item(1, "a", "1.5", None), item(2, "a", "1.5", None)
    log = Log()
    log.position = 10
    for record in (
        (1, None, ITEM),
        (1, good, 4711),
        (1, good[:-2], ITEM),
        (1, good + b"\1a", ITEM),
        (1, item(1, "a", "x", None), ITEM),
        (1, good[:5] + b"\xff\1\0\0\0", ITEM),
        (1, good, ITEM, {"LOGADDR": b"\1" * 19}),
        (1, good, ITEM, {"LOGADDR": b"\1" * 28}),
        (1, good, ITEM, {"LOGADDR": None}),
        (1, good, ITEM, {"LOGADDR": b"\xff" * 20}),
        (1, good, ITEM, {"RECNAME": "DBE_LOGREADER_LOG_REC_UPDATE"}),
        (1, good, ITEM, {"FLAGS": 0}),
        (None, good, ITEM),
    ):
        log.transaction((1, good, ITEM), record)
    log.position = 96
    log.transaction((5, good, ITEM, {"LOGADDR": at(97, 5000)}))
    log.transaction((5, good, ITEM), (5, other, ITEM), (3, good, ITEM), (3, other, ITEM))
    twice = {"LOGADDR": at(99, 5000)}
    log.transaction((1, good, ITEM, twice), (1, other, ITEM, twice))
    log.transaction((1, good, ITEM), commit=False, TRXID=7)
    log.transaction((1, good, ITEM), TRXID=7)
    return log


def seq(address: bytes) -> str:
    return soliddb_address.sequence_of(address)


def read(spark: SparkSession, log: Log, **more: str) -> Read:
    return FORMAT.read(tables(spark, log), options(**more))


def rows(ct: ChangeTable) -> list[tuple[Any, ...]]:
    """Operation, transaction, and values of the good rows, in order."""
    names = [PREFIX + "change_oper", PREFIX + "transaction_id", *ct.columns]
    found = ct.df.filter(f"{WHY} is null").orderBy(PREFIX + "change_seq", PREFIX + "change_oper")
    return [tuple(r) for r in found.select(*[shape.quoted(n) for n in names]).collect()]


def test_what_the_sample_says(spark: SparkSession) -> None:
    found = read(spark, sample()).changes
    d = Decimal
    assert rows(found["SHOP.ITEM"]) == [
        ("I", "661", 1, "bolt", d("1.50"), None),
        ("I", "661", 2, None, None, None),
        ("B", "662", 1, "bolt", d("1.50"), None),
        ("U", "662", 1, "Bolt", d("1.75"), None),
        ("U", "662", 2, "", d("2.00"), None),
        ("B", "663", 1, "Bolt", d("1.75"), None),
        ("U", "663", 7, "Bolt", d("1.75"), None),
        ("B", "663", 2, "", d("2.00"), None),
        ("U", "663", 8, "", d("2.00"), None),
        ("D", "663", 7, "Bolt", d("1.75"), None),
        ("I", "665", 9, "nut", d("0.10"), "é🚀"),
        ("I", "665", 10, "n", d("0.10"), ""),
        ("T", "667", None, None, None, None),
    ]
    masks = {r[0] for r in found["SHOP.ITEM"].df.select(PREFIX + "column_mask").collect()}
    start = found["SHOP.ITEM"].ordinal("ID")
    assert {None if m is None else tuple(mask.decode(bytes(m))) for m in masks} == {
        None, tuple(range(start, start + 3)),
    }  # fmt: skip
    hired = [str(r[3]) for r in rows(found["HR.STAFF"])]
    assert hired == ["2024-02-29 10:11:12"] * 2
    kinds = found[RECORDS].df.groupBy("RECID").count().collect()
    assert {r[0]: r[1] for r in kinds} == {4: 1, 6: 1, 7: 7, 9: 1, 12: 7, 13: 1}


def test_statements(spark: SparkSession) -> None:
    found = read(spark, sample()).changes[RECORDS]
    said = soliddb_log.statements(found).orderBy("LOGADDR").drop("LOGADDR", "TRXID").collect()
    assert [tuple(r) for r in said] == [
        (None, 6, None, None, None, "ALTER TABLE ITEM ..."),
        (ITEM, 13, 22, "alter table", "ITEM", None),
    ]


@pytest.mark.slow
def test_capture_off(spark: SparkSession) -> None:
    """Under one policy; all are in tests/unit/test_soliddb_others.py."""
    policy, want, log = "skip-deletes", ["I"], Log()
    records = ((1, item(1, "a", "1"), ITEM), (4, item(1, "a", "1"), ITEM, {"STMTTRXID": 8}))
    log.transaction(*records, flags=0x41)
    found = read(spark, log, capture_off=policy)
    assert [r[0] for r in rows(found.changes["SHOP.ITEM"])] == want
    kept = [r["RECID"] for r in found.changes[RECORDS].df.orderBy("LOGADDR").collect()]
    assert [k for k in kept if k in (1, 4)] == [k for k, o in ((1, "I"), (4, "D")) if o not in want]


def test_an_unfinished_tail_waits_and_idle_rows_say_nothing(spark: SparkSession) -> None:
    log = Log()
    log.transaction((1, item(1, "a", "1"), ITEM))
    nothing = dict.fromkeys(("RECNAME", "TRXID", "STMTTRXID", "RELID", "LOGADDR", "DATA"))
    log.record(0, **nothing | {"FLAGS": 0})
    log.record(0, **nothing | {"FLAGS": 2})
    log.transaction((1, item(2, "b", "1"), ITEM), (13, b"\0\0\0\x11X", 77), commit=False)
    found = read(spark, log)
    assert [r[2] for r in rows(found.changes["SHOP.ITEM"])] == [1]
    waiting = found.pending["SYS_LOG"].orderBy("LOGADDR").collect()
    assert [r["RECID"] for r in waiting] == [7, 1, 13]
    assert sorted(r["RECID"] for r in found.changes[RECORDS].df.collect()) == [7, 12]


def test_a_column_that_is_added_again_has_none_of_its_old_values(spark: SparkSession) -> None:
    log = Log()
    log.transaction((1, item(1, "a", "1.00", "old"), ITEM), (1, item(2, "b", "1.00", "old"), ITEM))
    log.transaction((1, item(3, "c", "1.00", "new"), ITEM))
    found = tables(spark, log)
    columns = found["SYS_COLUMNS"].filter(f"REL_ID <> {ITEM} or FROM_LOGADDR is not null")
    again = F.when(F.col("COLUMN_NAME") == "NOTE", -1).otherwise(F.col("ID"))
    found["SYS_COLUMNS"] = columns.withColumn("FROM_LOGADDR", F.lit(None).cast("binary")).unionByName(
        columns.filter(f"REL_ID = {ITEM}").withColumns({"FROM_LOGADDR": F.lit(at(2)), "ID": again})
    )
    ct = FORMAT.read(found, options()).changes["SHOP.ITEM"]
    got = ct.df.orderBy(PREFIX + "change_seq").select(
        "ID", "NOTE", PREFIX + "native_DATA", PREFIX + "column_mask"
    )
    assert [(*r[:2], None if r[2] is None else bytes(r[2])) for r in got.collect()] == [
        (1, None, item(1, "a", "1.00", "old")), (2, None, item(2, "b", "1.00", "old")), (3, "new", None),
    ]  # fmt: skip
    assert [r[3] is None for r in got.collect()] == [False, False, True]


@pytest.mark.slow
def test_overlapping_transactions_of_28_bytes_without_start(spark: SparkSession) -> None:
    log = Log()
    log.transaction((1, item(1, "a", "1"), ITEM, {"TRXID": 5}), (1, item(2, "a", "1"), ITEM), TRXID=6)
    log.record(12, TRXID=5, LOGADDR=at(3))
    log.record(1, item(3, "a", "1"), ITEM, TRXID=5, LOGADDR=at(4))
    for row in log.rows:
        row["LOGADDR"] += b"\0" * 8
    found = read(spark, log, starts="optional")
    assert [r[1:3] for r in rows(found.changes["SHOP.ITEM"])] == [("5", 1), ("6", 2)]
    assert [r["TRXID"] for r in found.pending["SYS_LOG"].collect()] == [5]
    found = read(spark, log)
    assert reasons(found.changes["SHOP.ITEM"]) == [NO_START]
    assert [r["TRXID"] for r in found.pending["SYS_LOG"].collect()] == [5]


@pytest.mark.slow
def test_layout_b_base64_and_made_metadata(spark: SparkSession, tmp_path: Path) -> None:
    ct = change_table(spark, HISTORIES["key change"])
    given = formats.options(FORMAT, {"row_layout": "B", "binary": "base64", "logaddr_bytes": "28"})
    assert FORMAT.save is not None
    FORMAT.save(FORMAT.write({TABLE: ct}, given), str(tmp_path), "csv", given)
    found = FORMAT.read(file_reader.load(spark, str(tmp_path)), given)
    assert sorted(found.changes) == [RECORDS, TABLE]
    assert found.changes[TABLE].key == ["id"]
    assert [r[0] for r in rows(found.changes[TABLE])] == ["I", "B", "U"]
    assert found.changes[RECORDS].df.count() == 0
    with (next((tmp_path / "SYS_LOG").glob("*.csv"))).open() as file:
        assert len(base64.b64decode(file.read().splitlines()[1].split(",")[6])) == 28


@pytest.mark.slow
def test_tables_without_columns_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    item = change_table(spark, [Image(2, "I", {"id": 1})], columns={"id": "int"})
    bare = [Image(1, "I", {}), Image(3, "U", {}), Image(4, "D", {})]
    bare_too = change_table(spark, bare, columns={}, key=[], name="PUB.Bare")
    tables = {f"{ct.name}__ct": ct.df for ct in (item, bare_too)}
    file_writer.save(tables, str(tmp_path / "in"), "parquet")
    source = convert.side("tailrace", str(tmp_path / "in"), {"key": f"{TABLE}=id"})
    report = convert.convert(spark, source, convert.side("soliddb", str(tmp_path / "out"), {}, "csv"))
    assert report.tables["PUB.Bare"].lost["no_columns"] == 3
    assert "no_columns" not in report.tables[TABLE].lost
    assert report.written == {"SYS_LOG": 3, "SYS_TABLES": 1, "SYS_COLUMNS": 1}


def test_a_sequence_without_35_digits_is_an_error(spark: SparkSession) -> None:
    ct = change_table(spark, [Image(1, "I", {"id": 1})])
    short = ct.with_df(ct.df.withColumn(PREFIX + "change_seq", shape.reasons([])))
    with pytest.raises(Exception, match="not fit into a LOGADDR"):
        FORMAT.write({TABLE: short}, options())["SYS_LOG"].collect()


@pytest.mark.slow
def test_a_bad_row_of_a_system_table_is_named_before_its_effects(spark: SparkSession, tmp_path: Path) -> None:
    made = tables(spark, sample())
    made["SYS_COLUMNS"] = made["SYS_COLUMNS"].withColumn("NUMERIC_PRECISION", F.lit("x"))
    place = str(tmp_path / "in")
    file_writer.save(made, place, "csv")
    cause = r"bad row in _SYSTEM\.SYS_COLUMNS: NUMERIC_PRECISION is not valid as int"
    with pytest.raises(FormatError, match=cause):
        vendor_apply.run(spark, place, "soliddb", OPTIONS, str(tmp_path / "lake"))
