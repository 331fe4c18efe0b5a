"""SQDR's columns and keys: declared in `tailrace_columns`, or named by options."""

from __future__ import annotations

import pytest

from tailrace.errors import FormatError
from tailrace.formats.base import WHY

from .test_format_sqdr import columns, image, log, read, row

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
    assert found.notes[0].startswith("S1 has no column LINE (option key): its key stays ID; tables have keys")


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
