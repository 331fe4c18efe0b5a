"""Qlik change tables: the conformance suite, masks, headers and bad rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tailrace import formats
from tailrace.errors import FormatError
from tailrace.formats import checks
from tailrace.formats.base import WHY, Options, Tables
from tailrace.formats.qlik.layout import outside
from tailrace.formats.qlik.options import QlikOptions
from tailrace.model import mask
from tailrace.model.change import ChangeTable
from tailrace.testing.changes import Image, change_table, comparable_rows, reasons
from tailrace.testing.formats import FormatConformance, full
from tests.spark.literal_tables import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

QLIK = formats.get("qlik")
HEADS = (
    "header__change_seq string, header__change_oper string, header__change_mask binary, "
    "header__stream_position string, header__operation string, header__transaction_id string, "
    "header__timestamp timestamp"
)
WORDS = {"I": "INSERT", "U": "UPDATE", "D": "DELETE", "B": "BEFOREIMAGE", "T": "TRUNCATE"}


def seq(number: int) -> str:
    return f"2026010112000012{number:019d}"


def row(number: int, oper: str, bits: list[int] | bytes, *values: Any) -> tuple[Any, ...]:
    """A row of a change table with the usual seven headers."""
    octets = bits if isinstance(bits, bytes) else mask.encode(bits)
    said = (f"pos:{number}", WORDS.get(oper, "?"), "0" * 31 + "A", None)
    return (seq(number), oper, bytearray(octets), *said, *values)


def images(ct: ChangeTable) -> list[tuple[Any, ...]]:
    """(change number, operation, names in the mask, values), in order."""
    names = ct.df.columns
    made = []
    for r in ct.df.collect():
        bits = r["header__change_mask"]
        marked = None if bits is None else [names[n] for n in mask.decode(bytes(bits))]
        made.append(
            (int(r["header__change_seq"][-6:]), r["header__change_oper"], marked, *(r[c] for c in ct.columns))
        )
    return sorted(made, key=repr)


class TestConformance(FormatConformance):
    format = QLIK

    def vendor(self, spark: SparkSession) -> dict[str, DataFrame]:
        from datetime import datetime, timezone

        at = datetime(2026, 1, 1, 11, 59, 59, tzinfo=timezone.utc)
        rows = [
            row(1, "I", [8, 9], 1, "a"),
            row(2, "B", [], 1, "a"),
            row(2, "U", [9], 1, None),
            row(3, "T", [], None, None),
            row(4, "D", [8], 1, None),
        ]
        part = "20260101T120000_20260101T130000"
        rows = [(*r[:6], at, part, *r[7:]) for r in rows]
        columns = f"{HEADS}, header__partition_name string, id int, name string"
        loaded = [(f"{n:016d}" + "0" * 19, at, n, f"n{n}") for n in (1, 2)]
        return {
            "dbo.item__ct": table(spark, rows, columns),
            "dbo.item": table(
                spark, loaded, "header__change_seq string, header__timestamp timestamp, id int, name string"
            ),
        }

    def vendor_options(self) -> Options:
        return QlikOptions(key="id")

    def hostile(self, spark: SparkSession) -> Iterator[tuple[str, Tables, str]]:
        good = row(1, "I", [7, 8], 1, "a")
        text = HEADS.replace("binary", "string")
        odd = table(
            spark, [(*good[:2], "0x", *good[3:], 1, "a")][:1], f"{text}, id int, name string, x int, y string"
        )
        yield "mask is no hex", {"dbo.item__ct": odd}, "header__change_mask is not valid as binary"

    def test_bad_rows_get_their_reason(self, spark: SparkSession) -> None:
        """Those of one table in one reading: each row its own."""
        super().test_bad_rows_get_their_reason(spark)
        found = QLIK.read(
            {"dbo.item__ct": table(spark, BAD, f"{HEADS}, id int, name string")}, QlikOptions(key="id")
        )
        ct = checks.together(found.changes["dbo.item"])
        told = {r["id"]: r[WHY] for r in ct.df.select("id", WHY).collect()}
        assert {id: why and why.partition(";")[0] for id, why in told.items()} == WHYS


BAD = [
    row(1, "I", [7, 8], 1, "good"),
    (seq(2), "X", *row(2, "I", [7, 8], 2, "an unknown code")[2:]),
    (seq(3), None, *row(3, "I", [7, 8], 3, "no code")[2:]),
    (seq(4), "D", *row(4, "I", [7, 8], 4, "words differ")[2:]),
    row(5, "I", [7, 9], 5, "a mask that is too long"),
    row(6, "I", [7, 900], 6, "far too long"),
    row(7, "I", [2, 7], 7, "a header marked"),
    ("12", *row(8, "I", [7, 8], 8, "a short sequence")[1:]),
    (seq(9)[:-1] + "a", *row(9, "I", [7, 8], 9, "letters")[1:]),
    ("F" + seq(10)[1:], *row(10, "I", [7, 8], 10, "a letter first")[1:]),
    ("+" + seq(11)[1:], *row(11, "I", [7, 8], 11, "a sign")[1:]),
    (None, *row(12, "I", [7, 8], 12, "no sequence")[1:]),
    row(13, "I", [7, 8], 13, "twice"),
    row(13, "I", [7, 8], 14, "twice"),
    row(15, "B", [], 15, "a lone B"),
    (
        seq(16),
        "X",
        *row(16, "I", [7, 8], 16, "another letter")[2:4],
        "TRUNCATE",
        *row(16, "I", [7, 8], 16, "")[5:],
    ),
]
WHYS: dict[int, str | None] = {
    1: None,
    2: "unknown operation X",
    3: "no change_oper",
    4: "operation INSERT but change_oper D",
    5: "change_mask longer than the columns",
    6: "change_mask longer than the columns",
    7: "change_mask marks header columns",
    8: "change_seq is not 35 digits: 12",
    9: f"change_seq is not 35 digits: {seq(9)[:-1]}a",
    10: f"change_seq is not 35 digits: F{seq(10)[1:]}",
    11: f"change_seq is not 35 digits: +{seq(11)[1:]}",
    12: "no change_seq",
    13: f"duplicate: change {seq(13)} I",
    14: f"duplicate: change {seq(13)} I",
    15: f"before image without its update: change {seq(15)}",
    16: "unknown operation X",
}


# -- masks


@pytest.mark.parametrize("order", ["big", "little"])
def test_changes_whose_masks_nobody_told_get_them_by_the_rule(spark: SparkSession, order: str) -> None:
    changes = [Image(1, "I", full(1)), Image(2, "I", {"id": 2, "note": "n"}), Image(3, "B", full(1)),
               Image(3, "U", full(1, "b")), Image(4, "D", full(1)), Image(5, "T")]  # fmt: skip
    ct = change_table(spark, changes)
    untold = ct.with_df(ct.df.withColumn("header__change_mask", F.lit(None).cast("binary")))
    options = QlikOptions(key="id", mask_order=order)
    back = QLIK.read(QLIK.write({ct.name: untold}, options), options).changes[ct.name]
    every = ("id", "name", "amount", "at", "note")
    assert [(oper, marked) for _, oper, marked, *_ in comparable_rows(back, headers=[])] == [
        ("I", every), ("I", ("id", "note")), ("B", ()), ("U", None), ("D", ("id",)), ("T", None),
    ]  # fmt: skip


@pytest.mark.slow
def test_headers_that_are_missing_move_the_bits(spark: SparkSession) -> None:
    rows = [(seq(1), "B", "", 1, "a"), (seq(1), "U", "0010", 1, None), (seq(2), "I", "18", 2, "b")]
    df = table(
        spark, rows, "`C$_CHANGE_SEQ` string, `c$_oper` string, `c$_change_mask` string, id int, name string"
    )
    ct = QLIK.read({"dbo.item__CT": df}, QlikOptions(key="id")).changes["dbo.item"]
    assert reasons(ct) == []
    assert images(ct) == [
        (1, "B", [], 1, "a"),
        (1, "U", ["name"], 1, None),
        (2, "I", ["id", "name"], 2, "b"),
    ]
    assert [r["header__operation"] for r in ct.df.orderBy("header__change_seq").collect()][-1] == "INSERT"
    options = QlikOptions(prefix="c$_", headers="change_mask", key="id")
    again = QLIK.write({"dbo.item": ct}, options)["dbo.item__ct"]
    assert again.columns == ["c$_change_seq", "c$_change_oper", "c$_change_mask", "id", "name"]
    assert sorted(bytes(r[2]).hex() for r in again.collect()) == ["", "10", "18"]


@pytest.mark.slow
def test_the_byte_order_is_found_by_rows(spark: SparkSession) -> None:
    columns = f"{HEADS}, id int, name string, note string"
    pair = [row(2, "B", b"", 1, "a", None), row(2, "U", mask.encode([8, 9])[::-1] + b"\0\0", 1, "b", "n")]
    inserted = [row(1, "I", mask.encode([7, 8, 9])[::-1], 1, "a", None)]
    for rows in (inserted + pair, pair):
        read = QLIK.read({"dbo.item__ct": table(spark, rows, columns)}, QlikOptions(key="id"))
        ct = read.changes["dbo.item"]
        assert reasons(ct) == []
        assert read.notes == ("dbo.item: masks have their least significant byte first (detected from rows)",)
        assert ("U", ["name", "note"]) in [i[1:3] for i in images(ct)]
    little = QLIK.write({"dbo.item": ct}, QlikOptions(mask_order="little", mask_bytes=4))["dbo.item__ct"]
    assert sorted(bytes(r[2]).hex() for r in little.collect()) == ["00000000", "00030000"]


def test_masks_against_a_model(spark: SparkSession) -> None:
    rng = random.Random(5)
    octets = [rng.randbytes(rng.randint(0, 5)) + bytes(rng.randint(0, 12)) for _ in range(300)]
    df = table(spark, [(bytearray(o),) for o in octets], "m binary")
    width, allowed = 20, range(7, 20)
    asked = [
        F.coalesce(c, F.lit(False))
        for k in (False, True)
        for c, _ in outside(F.col("m"), width, allowed, "m", little=k)
    ]
    for r in df.select("m", *[c.alias(f"c{i}") for i, c in enumerate(asked)]).collect():
        told = []
        for raw in (bytes(r[0]), bytes(r[0])[::-1]):
            marked = mask.decode(raw)
            told += [any(n >= width for n in marked), any(n < 7 for n in marked)]
        assert list(r[1:]) == told, bytes(r[0]).hex()


def test_queue_masks_count_data_columns(spark: SparkSession) -> None:
    columns = f"{HEADS}, id int, name string, note string, header__column_mask binary"
    rows = [(*row(1, "U", b"\x02", 1, "b", None), bytearray(b"\x03"))]
    options = QlikOptions(masks="queue", key="id")
    ct = QLIK.read({"dbo.item__ct": table(spark, rows, columns)}, options).changes["dbo.item"]
    assert reasons(ct) == []
    (found,) = comparable_rows(ct, headers=[])
    assert found[2:4] == (("name",), ("id", "name"))


@pytest.mark.slow
def test_columns_named_like_headers_and_headers_of_nobody(spark: SparkSession) -> None:
    heads = HEADS.replace("header__stream_position string", "header__User string")
    columns = f"{heads}, timestamp string, operation string"
    df = table(spark, [row(1, "U", [3, 8], "a", None), row(2, "U", [7], "b", None)], columns)
    options = QlikOptions(key="timestamp", headers="change_mask,operation")
    ct = QLIK.read({"item": df}, options).changes["item"]
    assert reasons(ct) == []
    assert [i[2] for i in images(ct)] == [["header__native_user", "operation"], ["timestamp"]]
    again = QLIK.write({"item": ct}, options)["item__ct"]
    assert again.columns == [*(f"header__{h}" for h in ("change_seq", "change_oper", "change_mask", "operation")),
                             "header__User", "timestamp", "operation"]  # fmt: skip
    assert [mask.decode(bytes(r[2])) for r in again.orderBy("header__change_seq").collect()] == [[4, 6], [5]]
    assert [r["header__User"] for r in again.collect()] == ["pos:1", "pos:2"]


def test_the_key_option_names_tables_and_columns_that_there_are(spark: SparkSession) -> None:
    df = table(spark, [row(1, "I", b"", 1, "a")], f"{HEADS}, id int, name string")
    with pytest.raises(FormatError, match=r"dbo.item has no column idx\n.*option key\n.*did you mean id\?"):
        QLIK.read({"dbo.item__ct": df}, QlikOptions(key="dbo.item=idx"))
    found = QLIK.read({"dbo.item__ct": df}, QlikOptions(key="dbo.itme=id"))
    assert "option key: there is no table dbo.itme; did you mean dbo.item?" in found.notes
