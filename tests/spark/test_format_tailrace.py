"""tailrace's own tables as a format: the conformance suite, and what is special about them."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from tailrace import formats
from tailrace.errors import FormatError
from tailrace.formats import checks
from tailrace.testing.changes import Image, change_table, comparable_rows, reasons
from tailrace.testing.formats import HISTORIES, FormatConformance, full

pytestmark = pytest.mark.spark


class TestTailrace(FormatConformance):
    format = formats.get("tailrace")

    def vendor(self, spark):
        return {"shop.item__ct": change_table(spark, HISTORIES["pairs"] + [Image(4, "D", {"id": 1})]).df}

    def options(self, changes):
        kinds = {}
        for ct in changes.values():
            kinds |= {c: ct.df.schema[c].dataType.simpleString() for c in ct.columns}
        text = ", ".join(f"{c} {k}" for c, k in kinds.items() if " " not in c)
        return self.format.options(key="id", columns=text)

    def hostile(self, spark):
        good = self.vendor(spark)["shop.item__ct"]
        seq, oper, mask = (f"header__change_{x}" for x in ("seq", "oper", "mask"))
        yield "unknown code", {"a__ct": good.withColumn(oper, F.lit("Q"))}, "unknown operation Q"
        yield "long mask", {"a__ct": good.withColumn(mask, F.unhex(F.lit("FF0000")))}, "mask longer"
        other = good.withColumn("note", F.lit("another"))
        yield "no sequence", {"a__ct": good.withColumn(seq, F.lit(None).cast("string"))}, "no change_seq"
        yield "twice", {"a__ct": good.union(other.filter(f"{oper} = 'I'"))}, "duplicate"
        twice = good.union(other.filter(f"{oper} = 'U'"))
        yield "B of two U", {"a__ct": twice}, "the other half of its update is a duplicate"
        twice = good.union(other.filter(f"{oper} = 'B'"))
        yield "U of two B", {"a__ct": twice}, "the other half of its update is a duplicate"
        yield "lone B", {"a__ct": good.filter(f"{oper} = 'B'")}, "before image without its update"


def test_masks_move_when_headers_are_missing(spark):
    ct = change_table(spark, [Image(1, "U", full(1), ["note"])])
    few = ct.df.select("header__change_seq", "header__change_oper", *ct.columns)
    form = formats.get("tailrace")
    # Bit 6 is `note` when there are two headers.
    few = few.withColumn("header__change_mask", F.unhex(F.lit("80")))
    found = form.read(
        {"shop.item__ct": few.select(*few.columns[:2], "header__change_mask", *ct.columns)}, form.options()
    )
    assert comparable_rows(found.changes["shop.item"])[0][2] == ("note",)


def test_a_sequence_that_runs_backwards(spark):
    ct = change_table(spark, [Image(n, "I", full(n)) for n in (1, 2, 3)])
    bad = ct.df.withColumn(
        "header__change_seq",
        F.when(F.col("id") == 3, F.regexp_replace("header__change_seq", ".$", "1")).otherwise(
            F.col("header__change_seq")
        ),
    )
    assert reasons(checks.in_order(ct)) == []
    found = reasons(checks.in_order(ct.with_df(bad)))
    assert len(found) == 1
    assert "its number is not greater" in found[0]


def test_vendors_headers_keep_their_letter_case(spark):
    ct = change_table(spark, [Image(1, "I", full(1))])
    names = ["header__native__Policy-Id", "header__native_LOGADDR", "HEADER__USER_NAME"]
    df = ct.df.withColumns({n: F.lit("x") for n in names})
    form = formats.get("tailrace")
    found = form.read({"shop.item__ct": df}, form.options()).changes["shop.item"]
    assert {"native__Policy-Id", "native_LOGADDR", "user_name"} <= set(found.headers)


def test_options_name_tables_and_columns_that_there_are(spark):
    rows = [Image(1, "I", full(1))]
    tables = {f"{n}__ct": change_table(spark, rows).df for n in ("shop.item", "shop.line")}
    form = formats.get("tailrace")
    found = form.read(tables, form.options(key="shop.item=id; shop.lien=name", columns="nmae string"))
    assert {n: ct.key for n, ct in found.changes.items()} == {"shop.item": ["id"], "shop.line": []}
    assert found.notes == (
        "option columns: no table has a column nmae",
        "option key: there is no table shop.lien; did you mean shop.line or shop.item?",
    )
    with pytest.raises(FormatError, match=r"shop.item has no column ID\n.*option key\n.*did you mean id"):
        form.read(tables, form.options(key="ID"))
