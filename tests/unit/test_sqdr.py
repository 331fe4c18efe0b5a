"""What of the SQDR format needs no Spark: recognising tables, names in `<Dest>`, SQL texts, the declaration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import formats
from tailrace.errors import ConfigError, UnsupportedError
from tailrace.formats.sqdr import text as sqdr_text
from tailrace.formats.sqdr.columns import _name_in, names_of
from tailrace.formats.sqdr.tables import ACTIONS, CHANGES, COLUMNS_TABLE, KEYLOG_TABLE, SIGNALS

pytestmark = pytest.mark.unit

FORM = formats.get("sqdr")
ITEM = sqdr_text.dest("SHOP.ITEM")


def test_twenty_columns_ten_types_twelve_actions():
    assert len(KEYLOG_TABLE.columns) == 20
    assert sorted([*CHANGES, *SIGNALS]) == sorted("BDUIRSTAXC")
    assert sorted(ACTIONS) == sorted("DMUITSAXC#\0?")


def test_key_logs_are_recognised_in_any_spelling():
    names = [c.name for c in KEYLOG_TABLE.columns]
    assert FORM.knows(names) == FORM.knows([n.upper() for n in names]) == 1.0
    assert FORM.knows([n.replace("_", "") for n in names]) == 1.0
    assert FORM.knows([c.name for c in COLUMNS_TABLE.columns]) == 1.0
    assert FORM.knows(["header__change_seq", "header__change_oper", "id"]) == 0.0


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=3).map(
        ".".join
    )
)
def test_a_destination_is_read_as_it_was_written(name):
    if name.startswith(".") or name.endswith("."):
        return  # an empty identifier
    assert _name_in(sqdr_text.dest(name)) == name


def test_no_table_has_two_subscriptions():
    notes: list[str] = []
    item, old = sqdr_text.dest("SHOP.ITEM"), sqdr_text.dest("SHOP.OLD")
    found = names_of({"1": [old, item], "2": [item], "3": [], None: ["<Dest>odd</Dest>"]}, notes, {})
    assert found == {"1": "SHOP.ITEM@1", "2": "SHOP.ITEM@2", "3": "3", None: "ir_keylog"}
    assert notes == [
        "subscription 1 wrote to SHOP.OLD, SHOP.ITEM",
        "several subscriptions wrote to SHOP.ITEM: each has a change table",
    ]


@pytest.mark.parametrize(
    ("given_names", "there", "names"),
    [
        ({"31": "SHOP.ITEM"}, {"31": []}, {"31": "SHOP.ITEM"}),
        ({"31": "SHOP.ITEM@31", "32": "SHOP.ITEM@32"}, {"31": [ITEM]}, {"31": "SHOP.ITEM@31"}),
        ({"31": "SHOP.ITEM"}, {"32": [ITEM]}, {"32": "SHOP.ITEM@32"}),
        ({"31": "SHOP.ITEM@31"}, {"33": [ITEM]}, {"33": "SHOP.ITEM@33"}),
        ({"31": "SHOP.ITEM"}, {"31": [ITEM], "32": [ITEM]}, {"31": "SHOP.ITEM", "32": "SHOP.ITEM@32"}),
        ({"31": "SHOP.OLD"}, {"31": [ITEM], "32": [ITEM]}, {"31": "SHOP.OLD", "32": "SHOP.ITEM"}),
    ],
)
def test_subscriptions_keep_the_names_that_they_are_given(given_names, there, names):
    assert names_of(there, [], given_names) == names


def test_a_given_name_and_another_destination_are_said():
    notes: list[str] = []
    names_of({"31": [ITEM], "32": [ITEM]}, notes, {"31": "SHOP.OLD", "32": "SHOP.ITEM@32"})
    assert notes == [
        "subscription 31 writes to SHOP.ITEM, but its changes stay in SHOP.OLD; the option "
        "subscriptions can rename it"
    ]


def test_given_names_of_subscriptions():
    made = formats.options(FORM, {"subscriptions": "31=SHOP.ITEM; 32 = a=b;"})
    assert made.subscriptions == {"31": "SHOP.ITEM", "32": "a=b"}  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"31=SHOP\.ITEM; 32=SHOP\.LINE"):
        formats.options(FORM, {"subscriptions": "SHOP.ITEM"})


def test_types_without_a_text_are_refused():
    with pytest.raises(UnsupportedError, match="no lake type"):
        sqdr_text.field_of("v", "map<string,int>")


def test_options_are_checked():
    with pytest.raises(ConfigError, match="counter_digits"):
        formats.options(FORM, {"counter_digits": "19"})
    with pytest.raises(ConfigError, match="has no option 'keys'"):
        formats.options(FORM, {"keys": "id"})
