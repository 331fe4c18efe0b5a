"""OpenEdge's tables: the conformance suite, and what is special about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tailrace import formats
from tailrace.formats.base import VendorTable
from tailrace.formats.openedge import tables as oe
from tailrace.formats.shape import few_rows
from tailrace.model import mask
from tailrace.testing.formats import FormatConformance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

OLD, NEW, OTHER = "AAAAAAAAAAAAAAAAAAAAAA", "aaaaaaaaaaaaaaaaaaaaaa", "BBBBBBBBBBBBBBBBBBBBBB"
AT = "2026-01-02 03:04:05.678"
CUSTOMER = {"CustNum": "int", "Name": "string", "Note": "string", "Phones": "string"}


def table(
    spark: SparkSession, form: VendorTable, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] = {}
) -> DataFrame:
    """A vendor's table of literal rows: its own columns as declared (without additions), then `columns`."""
    kinds = {c.name: c.type for c in form.columns if c.name not in oe.ADDED} | dict(columns)
    texts = {c: "string" if kinds[c] == "timestamp" else kinds[c] for c in kinds}
    df = few_rows(spark, texts, [{c: row.get(c) for c in kinds} for row in rows])
    return df.select(*(F.col(f"`{c}`").cast(t).alias(c) for c, t in kinds.items()))


def policy(id: str, name: str, level: int, recid: int, **more: Any) -> dict[str, Any]:
    return {
        "_Policy-Id": id, "_Policy-Name": name, "_Policy-Desc": "all", "_Policy-State": 0, "_Policy-Instance": 0,
        "_Source-File-Recid": recid, "_Area-Ianum": 7, "_Index-Area-Ianum": 8, "_Identifying-Fields": True,
        "_Level": level, "_Change-Table-Owner": "PUB", "_Encrypt-Policy": True, "_Last-Modified": AT,
        "_First-User-Field": 9, "_Misc": "m", **more,
    }  # fmt: skip


def track(seq: int, operation: int, bits: Sequence[int] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "_Policy-Id": NEW, "_Tran-Id": 70 + seq, "_Time-Stamp": AT, "_Change-Sequence": seq, "_Operation": operation,
        "_Change-FieldMap": None if bits is None else bytearray(mask.encode_field_map(bits)), "_Recid": 4711,
        "_Source-Table-Number": 5, "_Partition-Id": 0, "_Tenant-Id": 0, "_Version": 1, "_User-Misc": None,
        "_User-Name": "ann", "_Misc": "x", **more,
    }  # fmt: skip


def image(seq: int, operation: int, *halves: int, **values: Any) -> dict[str, Any]:
    place, element, fragment = halves or (0, 0, 0)
    return {
        "_Tran-Id": 70 + seq, "_Time-Stamp": AT, "_Change-Sequence": seq, "_Continuation-Position": place,
        "_ArrayIndex": element, "_Fragment": fragment, "_Operation": operation, **values,
    }  # fmt: skip


def field(file: int, name: str, place: int, data_type: str, extent: int = 0) -> dict[str, Any]:
    return {
        "_File-Recid": file, "_Field-Name": name, "_Field-Physpos": place, "_Data-Type": data_type, "_Decimals": 0,
        "_Extent": extent, "Recid": file * 100 + place,
    }  # fmt: skip


FILES = [
    {"_File-Number": 5, "_File-Name": "Customer", "_Owner": "PUB", "Recid": 50},
    {"_File-Number": 6, "_File-Name": "CDC_Customer", "_Owner": "PUB", "Recid": 60},
    {"_File-Number": 15, "_File-Name": "Note", "_Owner": "PUB", "Recid": 150},
    {"_File-Number": 16, "_File-Name": "Note_changes", "_Owner": "PUB", "Recid": 160},
]
FIELDS = [
    *(field(50, n, p, t, e) for n, p, t, e in (("CustNum", 2, "integer", 0), ("Name", 3, "character", 0), ("Note", 5, "character", 0), ("Phones", 6, "character", 3))),
    *(field(60, n, p, t, e) for n, p, t, e in (("CustNum", 9, "integer", 0), ("Name", 10, "character", 0), ("Note", 12, "character", 0), ("Phones", 13, "character", 3))),
    field(150, "Id", 2, "int64"), field(160, "Id", 9, "int64"),
]  # fmt: skip
POLICIES = [
    policy(NEW, "now", 3, 50, **{"_Change-Tablename": "CDC_Customer", "_Object-Id": 6}),
    policy(
        OLD, "before", 2, 50, **{"_Change-Tablename": "CDC_Customer", "_Object-Id": 6, "_Policy-Instance": 1}
    ),
    policy(OTHER, "notes", 2, 150, **{"_Change-Tablename": "Note_changes", "_Object-Id": 16}),
]
FIELD_POLICIES = [
    {"_Policy-Id": id, "_Field-Position": place, "_Identifying-Field": rank, "_Field-Recid": recid, "_Misc": "f"}
    for id, place, rank, recid in (
        (NEW, 2, 1, 5002), (NEW, 3, 0, 5003), (NEW, 5, 0, 5005), (NEW, 6, 0, 5006), (OLD, 2, 1, 5002),
        (OLD, 3, 0, 5003), (OTHER, 2, 1, 15002),
    )
]  # fmt: skip
TRACKED = [
    track(1, 1, **{"_Policy-Id": OLD}),
    track(2, 4, [2], **{"_Policy-Id": OLD, "_User-Misc": "applied"}),
    track(3, 4, [4]) | {"_Change-FieldMap": bytearray(b"\x08\x00\x00")},
    track(4, 4, [2]),
    track(5, 2),
    track(6, 1, **{"_Recid": 4712}),
    track(7, 7, **{"_Partition-Id": None, "_Tenant-Id": None}),
    track(
        1,
        1,
        **{"_Source-Table-Number": 15, "_Policy-Id": OTHER, "_Recid": 9, "_Partition-Id": 3, "_Tenant-Id": 2},
    ),
]
IMAGES = [
    image(1, 1, CustNum=1, Name="a"),
    image(2, 4, CustNum=1, Name="b") | {"_Tran-Id": 99, "_Time-Stamp": "2026-01-02 03:04:05.7"},
    image(3, 3, CustNum=1, Note=None),
    image(3, 4, CustNum=1, Note="new"),
    image(4, 3, CustNum=1, Name="b"),
    image(4, 4, CustNum=1, Name=None),
    image(5, 2, CustNum=1, Name=None, Note="new", Phones="1;?;3"),
    image(6, 1, 10, 0, 1, CustNum=2, Name="c", Note="long te"),
    image(6, 1, 13, 0, 0, Note="xt", Phones="a;b~;c;"),
]


def vendor(spark: SparkSession, **changed: Sequence[Mapping[str, Any]]) -> dict[str, DataFrame]:
    """The tables of two source tables; `tracked` and `images` instead of those there are."""
    note = {"_Tran-Id": 71, "_Time-Stamp": AT, "_Change-Sequence": 1, "_Operation": 1, "Id": 3}
    return {
        "PUB._Cdc-Table-Policy": table(spark, oe.TABLE_POLICY, changed.get("policies", POLICIES)),
        "PUB._Cdc-Field-Policy": table(spark, oe.FIELD_POLICY, FIELD_POLICIES),
        "_File": table(spark, oe.FILE_TABLE, FILES),
        "_Field": table(spark, oe.FIELD_TABLE, FIELDS),
        "PUB._Cdc-Change-Tracking": table(spark, oe.TRACKING, changed.get("tracked", TRACKED)),
        "PUB.CDC_Customer": table(spark, oe.CHANGE, changed.get("images", IMAGES), CUSTOMER),
        "PUB.Note_changes": table(spark, oe.CHANGE, [image(1, 1) | note], {"Id": "bigint"}),
    }


@pytest.mark.slow
class TestOpenEdge(FormatConformance):
    format = formats.get("openedge")

    def test_files(self, spark: SparkSession, tmp_path: Path) -> None:
        """Each kind of file is read and written by the other formats' tests, too."""
        super().test_files(spark, tmp_path)

    def vendor(self, spark):
        return vendor(spark)

    def rows_again(self, tables):
        return [n for n in tables if "Change-Tracking" in n or "CDC_" in n]

    def hostile(self, spark):
        few = TRACKED[:-1]  # of one table: each case is a reading of its own

        def bad(**changed):
            tables = vendor(spark, **{"policies": POLICIES[:2], "tracked": few, **changed})
            return {n: df for n, df in tables.items() if n != "PUB.Note_changes"}

        dropped = track(10, 6, **{"_Partition-Id": 3})
        yield (
            "tracking rows",
            bad(tracked=[*few[:2], track(3, 4, [9]), *few[3:], track(9, 0), dropped]),
            ("unknown operation 0", "mask longer", "partition drop of"),
        )
        yield (
            "a gap's bit, a row that is missing",
            bad(tracked=[few[1], track(3, 4, [3]), *few[3:]]),
            ("a bit without a column", "no tracking row for change 1"),
        )
        yield (
            "images that are missing",
            bad(images=[*IMAGES[1:3], *IMAGES[4:-1]]),
            (
                "no row in PUB.CDC_Customer for change 1",
                "before image without its update",
                "half of a split record",
            ),
        )
        yield (
            "images that say otherwise, or twice",
            bad(images=[IMAGES[0] | {"_Operation": 2}, *IMAGES[1:], IMAGES[1] | {"CustNum": 5}]),
            ("change table 2", "duplicate"),
        )
        text = bad()
        for name, column, value in (
            ("PUB.CDC_Customer", "CustNum", "1x"),
            ("PUB._Cdc-Change-Tracking", "_Recid", "r"),
        ):
            text[name] = text[name].withColumn(column, F.lit(value))
        yield "types", text, ("CustNum is not valid as int", "_Recid is not valid as bigint")
