"""SQDR's tables, columns and keys: declared in `tailrace_columns`, named by options, or found in the texts."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from tailrace.errors import FormatError
from tailrace.formats.base import WHY
from tailrace.model.change import ChangeTable
from tailrace.testing.changes import reasons

from .test_format_sqdr import FORM, columns, good, image, log, read, row

pytestmark = pytest.mark.spark

TYPED = [("SHOP.ITEM", 1, "ID", "int", True, False), ("SHOP.ITEM", 2, "PIC", "binary", False, False)]


@pytest.mark.parametrize(
    ("subscriptions", "declared", "names"),
    [
        ("AB", ["SHOP.ITEM"], ["SHOP.ITEM@A", "SHOP.ITEM@B"]),
        ("AB", ["SHOP.ITEM@A", "SHOP.ITEM@B"], ["SHOP.ITEM@A", "SHOP.ITEM@B"]),
        # The other one has no changes yet.
        ("A", ["SHOP.ITEM@A", "SHOP.ITEM@B"], ["SHOP.ITEM@A", "SHOP.ITEM@B"]),
    ],
)
def test_subscriptions_of_one_destination_have_the_declared_columns(spark, subscriptions, declared, names):
    rows = [row(1, "I", after_image=image('ID="1" PIC="&#x0AFF"'), subscription_id=s) for s in subscriptions]
    types = columns(spark, *[(name, *column[1:]) for name in declared for column in TYPED])
    found = read({"ir_keylog": log(spark, *rows), "tailrace_columns": types})
    assert sorted(found.changes) == names
    for name, s in zip(names, subscriptions, strict=False):
        ct = found.changes[name]
        (one,) = ct.df.select("header__native_subscription_id", "ID", "PIC", WHY).collect()
        assert (ct.key, tuple(one)) == (["ID"], (s, 1, b"\x0a\xff", None))


@pytest.mark.parametrize(
    ("option", "given", "typed"),
    [
        ("key", "ID,pc", False),
        ("key", "ID,pc", True),
        ("columns", "ID int, pc binary", True),
        ("octet", "pc", True),
    ],
)
def test_options_that_name_a_column_which_is_not_there(spark, option, given, typed):
    tables = {"ir_keylog": log(spark, row(1, "I", after_image=image('ID="1" PIC="2"')))}
    if typed:
        tables["tailrace_columns"] = columns(spark, *TYPED)
    with pytest.raises(
        FormatError, match=rf"SHOP.ITEM has no column pc\n.*option {option}\n.*did you mean PIC"
    ):
        read(tables, **{option: given})


def test_options_may_name_columns_that_no_row_has_yet(spark):
    """A row may leave a column out, and other tables have no rows."""
    tables = {"ir_keylog": log(spark, row(1, "I", after_image=image('ID="1" PIC="2"')))}
    found = read(tables, key="ID", columns="ID int, LINE int", octet="PCI")
    assert found.notes == (
        "option columns: no row has a column LINE so far",
        "option octet: no row has a column PCI so far; did you mean PIC?",
    )


def test_a_key_may_have_a_column_that_no_row_has_yet(spark):
    """Of a subscription that only deletes the texts have the key alone."""
    found = read({"ir_keylog": log(spark, row(1, "D", before_key='ID="1"'))}, key="ID,LINE")
    assert found.changes["S1"].key == ["ID"]
    assert found.notes[0].startswith(
        "S1 has no column LINE (option key): its key stays ID; give the keys of single tables"
    )


def two_tables(spark):
    return {
        "ir_keylog": log(
            spark,
            row(1, "I", after_image=image('ID="1" V="a"', '<Dest>"S"."ITEM"</Dest>'), subscription_id="1"),
            row(2, "D", before_key='ID="1"', subscription_id="1"),
            row(
                3,
                "I",
                after_image=image('ID="1" LINE="1" V="a"', '<Dest>"S"."LINE"</Dest>'),
                subscription_id="2",
            ),
        )
    }


def test_a_table_that_lacks_a_column_of_the_named_key_keeps_its_own(spark):
    found = read(two_tables(spark), key="ID,LINE")
    assert {n: ct.key for n, ct in found.changes.items()} == {"S.ITEM": ["ID"], "S.LINE": ["ID", "LINE"]}
    assert [n.partition(";")[0] for n in found.notes] == [
        "S.ITEM has no column LINE (option key): its key stays ID"
    ]


def test_keys_of_several_tables(spark):
    found = read(two_tables(spark), key="S.ITEM=ID,V; S.LINE=LINE; S.ELSE=X")
    assert {n: ct.key for n, ct in found.changes.items()} == {"S.ITEM": ["ID", "V"], "S.LINE": ["LINE"]}
    assert found.notes == ("option key: there is no table S.ELSE; did you mean S.LINE or S.ITEM?",)
    with pytest.raises(FormatError, match=r"S.LINE has no column LNE\n.*option key\n.*did you mean LINE"):
        read(two_tables(spark), key="S.LINE=ID,LNE")


@pytest.mark.slow
def test_columns_are_found_in_the_texts_when_nothing_tells_them(spark):
    extra = good(spark)["ir_keylog"].withColumn("before_key_edited", F.lit("x"))
    renamed = extra.withColumnsRenamed({c: c.upper() for c in extra.columns})
    signals = log(
        spark, row(9, "S"), row(10, "C", action_taken="#"), row(11, "A"), row(12, "R", action_taken=None)
    )
    found = read({"IR_KEYLOG": renamed, "ir_keylog_2": signals})
    assert list(found.changes) == ["SHOP.ITEM"]
    ct = found.changes["SHOP.ITEM"]
    assert (ct.key, ct.columns) == (["ID"], ["ID", "NAME", "PIC"])
    # Text, as nothing says that PIC is binary; what is no Unicode escape is named.
    assert any("PIC is not valid as Unicode text" in why for why in reasons(ct))
    typed = read({"ir_keylog": renamed}, columns="ID int, PIC binary").changes["SHOP.ITEM"]
    assert not reasons(typed)
    assert dict(typed.df.dtypes)["PIC"] == "binary"
    # Rows that change no row are kept aside as they came.
    assert sorted(r["change_row_type"] for r in found.pending["ir_keylog"].collect()) == ["A", "C", "R", "S"]


@pytest.mark.slow
def test_a_subscription_that_only_deletes_and_one_destination_of_two(spark):
    rows = [
        row(1, "D", before_key='K="1" L="2"', subscription_id="S9"),
        row(2, "I", after_image=image('ID="1"'), subscription_id="S2"),
        row(2, "I", after_image=image('ID="2"'), subscription_id="S3"),
    ]
    found = read({"ir_keylog": log(spark, *rows)})
    assert sorted(found.changes) == ["S9", "SHOP.ITEM@S2", "SHOP.ITEM@S3"]
    assert found.changes["S9"].key == ["K", "L"]
    assert any("SHOP.ITEM" in note for note in found.notes)
    again = FORM.write(found.changes, FORM.options())["ir_keylog"]
    assert sorted(map(tuple, again.select("subscription_id", "before_key", "after_image").collect()), key=str) == [
        ("S2", None, image('ID="1"')), ("S3", None, image('ID="2"')), ("S9", 'K="1" L="2"', None),
    ]  # fmt: skip


def test_an_at_sign_in_a_table_name_is_part_of_it(spark):
    """It is usual on AS/400; names that several subscriptions got come with their own `<Dest>`."""
    changes = read({"ir_keylog": log(spark, row(1, "I", after_image=image('ID="1"')))}).changes["SHOP.ITEM"]
    bare = changes.df.drop(*[c for c in changes.df.columns if "native" in c])
    ct = ChangeTable(bare, ["ID"], ["ID"], name="SHOP.IT@S1")
    (one,) = FORM.write({"SHOP.IT@S1": ct}, FORM.options())["ir_keylog"].collect()
    assert (one["subscription_id"], one["after_image"]) == (
        "SHOP.IT@S1",
        image('ID="1"', '<Dest>"SHOP"."IT@S1"</Dest>'),
    )
