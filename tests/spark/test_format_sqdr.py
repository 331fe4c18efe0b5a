"""StarQuest SQDR key logs: the conformance suite, and what is special about them."""

from __future__ import annotations

from datetime import datetime

import pytest
from pyspark.sql import functions as F

from tailrace import formats
from tailrace.formats.base import FINER, WHY
from tailrace.formats.sqdr.reader import recount
from tailrace.formats.sqdr.tables import COLUMNS_TABLE, KEYLOG_TABLE
from tailrace.formats.sqdr.text import detail
from tailrace.testing.changes import Image, change_table, comparable_rows, reasons
from tailrace.testing.formats import FormatConformance, full
from tests.spark.literal_tables import table

pytestmark = pytest.mark.spark

FORM = formats.get("sqdr")
TYPES = ", ".join(f"{c.name} {c.type}" for c in KEYLOG_TABLE.columns)
DETAIL = (
    "<detail> <receiver>MYLIB QSQJRN0014</receiver> <user>SQDR91</user> <job>QZRCSRVS\nQUSER 511037</job> "
    "<type>U 70</type> <sequence>00000000000019012714</sequence> <rrn>0</rrn>\n<program>RJRNLAPI</program> </detail>"
)
AT = datetime(2026, 3, 4, 5, 6, 7)


def row(number: int, kind: str | None, **more):
    """A row of a key log of the subscription S1."""
    made = {
        "run_id": "R1",
        "group_id": "G1",
        "subscription_id": "S1",
        "resync_state": 40 + number // 3,
        "change_row_counter": number,
        "change_row_timestamp": AT,
        "change_row_nanosecond": 120_000_001,
        "change_row_type": kind,
        "action_taken": {"U": "M", "B": "D"}.get(kind, kind),
        "result_row_count": 1,
        "flagged_count": 0,
        "keylog_sort": 100 + number,
        "keylog_ts": AT,
        "insert_ts": AT,
    }
    made.update(more)
    return tuple(made.get(c.name) for c in KEYLOG_TABLE.columns)


def image(items: str, dest: str = '<Dest>"SHOP"."ITEM"</Dest>') -> str:
    return f"{dest}<row>{items}</row>"


def log(spark, *rows):
    return table(spark, rows, TYPES)


def columns(spark, *rows):
    kinds = ", ".join(f"{c.name} {c.type}" for c in COLUMNS_TABLE.columns)
    return table(spark, rows, kinds)


def good(spark):
    return {
        "ir_keylog": log(
            spark,
            row(1, "I", after_image=image('ID="1" NAME="a&lt;b" PIC="&#x0AFF"'), change_row_member="M2"),
            row(2, "U", before_key='ID="1"', after_image=image('ID="1" NAME=&xsi:nil="true" PIC="&#x"')),
            row(3, "U", before_key='ID="1"', after_key='ID="2"', after_image=image('ID="2" NAME="" PIC="&#x00"'),
                change_row_log_detail=DETAIL),
            row(4, "D", before_key='ID="2"', result_row_count=0, flagged_count=1),
            row(5, "B", before_key='ID="3"', after_image=image('ID="3" NAME="c"'), flagged_count=1),
            row(6, "T", action_taken="\0", result_row_count=None, flagged_count=1),
            row(7, "I", after_image=image('ID="4" NAME="&#x000A&quot;" PIC=&xsi:nil="true"'), action_taken=None,
                result_error="[ODBC] no", result_row_count=None, flagged_count=1),
            row(8, "U", before_key='ID="4"', after_image='<row>ID="4" NAME="x"</row>', action_taken="U",
                run_id=None, group_id=None, change_row_nanosecond=None, keylog_ts=None),
        ),
        "tailrace_columns": columns(
            spark,
            ("SHOP.ITEM", 1, "ID", "int", True, False),
            ("SHOP.ITEM", 2, "NAME", "string", False, False),
            ("SHOP.ITEM", 3, "PIC", "binary", False, False),
        ),
    }  # fmt: skip


@pytest.mark.slow
class TestSqdr(FormatConformance):
    format = FORM

    def vendor(self, spark):
        return good(spark)

    def rows_again(self, tables):
        return ["ir_keylog"]

    def hostile(self, spark):
        types = good(spark)["tailrace_columns"]
        ok = row(1, "I", after_image=image('ID="9" NAME="z" PIC="&#x00"'))
        other = row(1, "I", after_image=image('ID="9" NAME="y" PIC="&#x00"'))
        far = row(1, "I", resync_state=10**16, after_image=image('ID="9"'))
        odd = row(2, "Q", after_image=image('ID="1"'))
        yield (
            "twice, 17 digits, an unknown type",
            {"ir_keylog": log(spark, ok, other, far, odd), "tailrace_columns": types},
            ("duplicate", "do not fit into a change sequence", "unknown change_row_type Q"),
        )


def test_fractions_finer_than_microseconds_are_cut_and_told(spark):
    fine, plain = (f'ID="1" AT="2026-01-02T03:04:05.{digits}"' for digits in ("1234567", "123456000"))
    rows = row(1, "I", after_image=image(fine)), row(2, "U", before_key='ID="1"', after_image=image(plain))
    options = FORM.options(columns="ID int, AT timestamp_ntz", key="ID")
    ct = FORM.read({"ir_keylog": log(spark, *rows)}, options).changes["SHOP.ITEM"]
    found = ct.df.select("header__change_oper", "AT", FINER).orderBy("header__change_seq").collect()
    at = datetime(2026, 1, 2, 3, 4, 5, 123456)
    assert [tuple(r) for r in found] == [("I", at, True), ("U", at, False)]
    assert reasons(ct) == []


BAD = {
    "no change_row_type": {"kind": None},
    "unknown action_taken Z": {"action_taken": "Z"},
    "no resync_state": {"resync_state": None},
    "below 0": {"change_row_counter": -1},
    "(counter_digits)": {"change_row_counter": 10**8},
    "change_row_nanosecond is not below one second": {"change_row_nanosecond": 10**9},
    "change_row_timestamp is not in whole seconds": {
        "change_row_timestamp": datetime(2026, 1, 1, 0, 0, 0, 5)
    },
    "no after_image": {"after_image": None},
    "delete without a key": {"kind": "D", "before_key": None, "after_image": None},
    "after_image: ID is not valid as int": {"after_image": image('ID="x"')},
    "PIC is not valid as hex octets": {"after_image": image('ID="1" PIC="&#x0"')},
    "there is no column Z": {"after_image": image('ID="1" Z="1"')},
    "quotes do not pair": {"after_image": image('ID="1')},
    "neither after_image nor before_key has ID": {"before_key": None, "after_image": image('NAME="a"')},
    "is not a name": {"after_image": 'ID="1"'},
    "before_key: there is no column Z": {"before_key": 'Z="1"'},
    "after_key: 'ID=1' is not an item": {"after_key": "ID=1"},
}


def test_every_fault_of_a_row_has_its_reason(spark):
    usual = {"kind": "U", "before_key": 'ID="1"', "after_image": image('ID="1" NAME="a" PIC="&#x00"')}
    cases = [usual | more for more in BAD.values()]
    rows = [row(n, run_id=str(n), **case) for n, case in enumerate(cases)]
    tables = good(spark) | {
        "ir_keylog": log(spark, *rows, row(90, "I", run_id="ok", after_image=usual["after_image"]))
    }
    found = {
        r[0]: r[1]
        for r in read(tables).changes["SHOP.ITEM"].df.select("header__native_run_id", WHY).collect()
    }
    for n, words in enumerate(BAD):
        assert words in (found[str(n)] or ""), (words, found[str(n)])
    assert found["ok"] is None


def read(tables, **options):
    return FORM.read(tables, FORM.options(**options))


def test_what_a_key_log_says(spark):
    found = read(good(spark)).changes["SHOP.ITEM"]
    assert (found.key, found.columns) == (["ID"], ["ID", "NAME", "PIC"])
    assert [(oper, there, values) for _, oper, _, there, _, values in comparable_rows(found, headers=[])] == [
        ("I", None, (1, "a<b", b"\x0a\xff")),
        ("U", None, (1, None, b"")),
        ("B", ("ID",), (1, "(absent)", "(absent)")),
        ("U", None, (2, "", b"\x00")),
        ("D", ("ID",), (2, "(absent)", "(absent)")),
        ("D", ("ID", "NAME"), (3, "c", "(absent)")),
        ("T", None, ("(absent)",) * 3),
        ("I", None, (4, '\n"', None)),
        ("U", ("ID", "NAME"), (4, "x", "(absent)")),
    ]
    one = found.df.filter("header__native_change_row_counter = 3 AND header__change_oper = 'U'").collect()[0]
    assert one["header__change_seq"] == "0" * 16 + "00000000041" + "00000003"
    assert one["header__transaction_id"] == "41"
    assert one["header__timestamp"] == datetime(2026, 3, 4, 5, 6, 7, 120_000)
    assert (one["header__user_name"], one["header__recid"]) == ("SQDR91", "0")


@pytest.mark.slow
def test_action_taken_is_null_a_byte_0_or_a_code(spark):
    tables = good(spark)
    tables["ir_keylog"] = (
        tables["ir_keylog"]
        .filter("change_row_counter in (1, 6, 7)")
        .withColumn("action_taken", F.regexp_replace("action_taken", "\0", "0x00"))
    )
    found = read(tables).changes["SHOP.ITEM"]
    assert not reasons(found)
    actions = found.df.orderBy("header__change_seq").select("header__native_action_taken").collect()
    assert [a[0] for a in actions] == ["I", "\0", None]


@pytest.mark.slow
def test_keys_of_all_columns_are_rows_of_a_table_without_key(spark):
    """Each update has its old row, one that changes nothing, too."""
    rows = [
        row(1, "I", after_image=image('ID="1" NAME=&xsi:nil="true"')),
        row(
            2, "U", before_key='ID="1" NAME=&xsi:nil="true"', after_image=image('ID="1" NAME=&xsi:nil="true"')
        ),
        row(3, "D", before_key='ID="1" NAME=&xsi:nil="true"'),
    ]
    found = read({"ir_keylog": log(spark, *rows)}, columns="ID int")
    ct = found.changes["SHOP.ITEM"]
    assert (ct.key, list(found.keyless)) == ([], ["SHOP.ITEM"])
    changes = ct.df.select("header__change_oper", "header__column_mask", "ID", "NAME")
    assert sorted(map(tuple, changes.collect())) == [(oper, None, 1, None) for oper in "BDIU"]
    assert read({"ir_keylog": log(spark, *rows)}, key="ID").changes["SHOP.ITEM"].key == ["ID"]


def test_before_images_have_every_value_that_their_key_text_has(spark):
    tables = good(spark)
    moved = row(1, "U", before_key='ID="1" NAME="north"', after_key='ID="1" NAME="south"',
                after_image=image('ID="1" NAME="south" PIC="&#x00"'))  # fmt: skip
    gone = row(2, "D", before_key='ID="1" NAME=&xsi:nil="true"')
    tables["ir_keylog"] = log(spark, moved, gone)
    rows = comparable_rows(read(tables).changes["SHOP.ITEM"], headers=[])
    assert [(oper, there, values) for _, oper, _, there, _, values in rows] == [
        ("B", ("ID", "NAME"), (1, "north", "(absent)")),
        ("U", None, (1, "south", b"\x00")),
        ("D", ("ID", "NAME"), (1, None, "(absent)")),
    ]


@pytest.mark.slow
def test_a_key_that_only_before_key_has_is_taken_from_there(spark):
    rows = [
        row(1, "D", before_key='ID="1"', after_image=image("")),
        row(2, "D", before_key='ID="2"', after_image='<Dest>"SHOP"."ITEM"</Dest>'),
        row(3, "D", before_key='ID="3"', after_image=image('NAME="a"')),
        row(4, "U", before_key='ID="4"', after_image=image('NAME="z"')),
        row(5, "B", before_key='ID="5" NAME="old"', after_image=image('NAME="a" PIC="&#x00"')),
        row(6, "I", before_key='ID="6"', after_image=image('NAME="a"')),
        row(7, "U", before_key='ID="7"', after_key='ID="8"', after_image=image('NAME="a"')),
        row(8, "D", after_image=image('NAME="a"')),
    ]
    found = read(good(spark) | {"ir_keylog": log(spark, *rows)}).changes["SHOP.ITEM"]
    made = [(oper, there, values) for _, oper, _, there, _, values in comparable_rows(found, headers=[])]
    assert made[:5] == [
        ("D", ("ID",), (1, "(absent)", "(absent)")),
        ("D", ("ID",), (2, "(absent)", "(absent)")),
        ("D", ("ID", "NAME"), (3, "a", "(absent)")),
        ("U", ("ID", "NAME"), (4, "z", "(absent)")),
        ("D", ("ID", "NAME", "PIC"), (5, "a", b"\x00")),
    ]
    why = "neither after_image nor before_key has ID, which is in the key"
    assert reasons(found) == [why] * 3


@pytest.mark.slow
def test_octet_text_has_two_digits(spark):
    ct = change_table(spark, [Image(1, "I", full(1, "a\nb"))])
    options = FORM.options(octet="name")
    tables = FORM.write({"shop.item": ct}, options)
    assert 'name="a&#x0Ab"' in tables["ir_keylog"].collect()[0]["after_image"]
    assert (
        comparable_rows(FORM.read(tables, FORM.options()).changes["shop.item"], headers=[])[0][-1][1]
        == "a\nb"
    )


def test_rows_written_for_other_formats_changes(spark):
    rows = [Image(1, "I", full(1)), Image(2, "B", full(1)), Image(2, "U", full(2)), Image(3, "D", {"id": 2})]
    made = FORM.write({"shop.item": change_table(spark, rows)}, FORM.options())["ir_keylog"].orderBy(
        "keylog_sort"
    )
    first, second, third = made.collect()
    assert first["after_image"] == (
        '<Dest>"shop"."item"</Dest><row>id="1" name="a" amount="12.50" at="2026-03-04T05:06:07.123456" '
        'note=&xsi:nil="true"</row>'
    )
    assert (first["before_key"], first["after_key"]) == (None, None)
    assert (second["before_key"], second["after_key"]) == ('id="1"', 'id="2"')
    assert (third["before_key"], third["after_image"]) == ('id="2"', None)
    assert (first["subscription_id"], first["change_row_nanosecond"]) == ("shop.item", 120_000_000)
    kept = FORM.write({"shop.item": change_table(spark, [Image(1, "B", full(1)), Image(1, "U", full(1, "b"))])},
                      FORM.options())["ir_keylog"].first()  # fmt: skip
    # Whose key stayed has no `after_key`: that is for partitioned subscriptions, open windows and key changes.
    assert (kept["before_key"], kept["after_key"]) == ('id="1"', None)
    # Nothing says what became of them.
    assert {(r["action_taken"], r["result_row_count"]) for r in (first, second, third)} == {(None, None)}


OLD, NEW = {"id": 1, "v": "old"}, {"id": 1, "v": "new"}
OLD_KEY, NEW_KEY = 'id="1" v="old"', 'id="1" v="new"'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "before", "keys", "lost"),
    [
        ([], [], [None, None, NEW_KEY], [2]),
        ([], [Image(2, "B", OLD)], [None, OLD_KEY, NEW_KEY], []),
        (["id"], [], [None, 'id="1"', 'id="1"'], []),
    ],
)
def test_an_updates_new_values_are_no_key_before_it(spark, key, before, keys, lost):
    """Of a table without key an update has the before image that it had, and none that is made up."""
    images = [Image(1, "I", OLD), *before, Image(2, "U", NEW), Image(3, "D", NEW)]
    ct = change_table(spark, images, columns={"id": "int", "v": "string"}, key=key)
    tables = FORM.write({"shop.item": ct}, FORM.options())
    log = tables["ir_keylog"].orderBy("keylog_sort").collect()
    assert [r["before_key"] for r in log] == keys
    assert comparable_rows(read(tables).changes["shop.item"], headers=[]) == comparable_rows(
        ct.with_df(ct.df.withColumn("header__change_mask", F.lit(None).cast("binary"))), headers=[]
    )
    (gap,) = (g for g in FORM.cannot if g.kind == "before_key")
    found = ct.df.select("header__change_seq", gap.lost(ct).alias("lost")).where("lost").collect()
    assert [int(r[0][-19:]) for r in found] == lost


def test_the_vendors_detail_in_columns(spark):
    df = spark.createDataFrame([(DETAIL,), (None,), ("<detail></detail>",)], "d string")
    found = [r[0] for r in df.select(detail(F.col("d"))).collect()]
    assert tuple(found[0]) == (
        "MYLIB", "QSQJRN0014", "SQDR91", "QZRCSRVS", "QUSER", "511037", "U", "70", "00000000000019012714", "0",
        "RJRNLAPI",
    )  # fmt: skip
    assert found[1] is None
    assert set(found[2]) == {None}


def test_user_and_row_number_travel_in_the_detail(spark):
    ct = change_table(spark, [Image(1, "I", full(1))])
    df = ct.df.select("*", F.lit("a<b").alias("header__user_name"), F.lit("17").alias("header__recid"))
    back = read(FORM.write({"shop.item": ct.with_df(df.select(*ct.df.columns[:8], *df.columns[-2:], *ct.columns))},
                           FORM.options()))  # fmt: skip
    one = back.changes["shop.item"].df.collect()[0]
    assert (one["header__user_name"], one["header__recid"]) == ("a<b", "17")


@pytest.mark.slow
def test_flags_are_counted_again(spark):
    rows = [
        row(1, "U", action_taken="M", result_row_count=0, flagged_count=8),  # a pruned log: 7 before it
        row(2, "I", result_row_count=None, result_error="no", flagged_count=9),
        row(3, "D", result_row_count=1, flagged_count=10),  # says one too many
        row(4, "S", flagged_count=9),
        row(5, "D", result_row_count=0, flagged_count=9),  # the window is open
        row(6, "C", action_taken="#", flagged_count=9),  # stale: closes nothing
        row(7, "U", action_taken="M", result_row_count=0, flagged_count=9),
        row(8, "C", flagged_count=0),
        row(9, "D", result_row_count=2, flagged_count=1),
    ]
    found = recount(log(spark, *rows)).orderBy("keylog_sort")
    assert [r[0] for r in found.select("flagged_expected").collect()] == [8, 9, 9, 9, 9, 9, 9, 0, 1]
    assert [r[0] for r in found.filter("flagged_differs").select("keylog_sort").collect()] == [103]
    upsert = [row(1, "U", action_taken="U"), row(2, "D", result_row_count=0)]
    assert recount(log(spark, *upsert)).filter("flagged_differs").count() == 0
    bad = good(spark)
    bad["ir_keylog"] = bad["ir_keylog"].withColumn("flagged_count", F.col("keylog_sort"))
    assert any("flagged_count is not" in w for w in reasons(read(bad, check_flags=True).changes["SHOP.ITEM"]))
