"""Which types a target's columns can take on without the source."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tailrace.errors import BaselineNeededError
from tailrace.model.change import Column, Relation
from tailrace.targets.layout_changes import refuse_new_key, refuse_retype

pytestmark = pytest.mark.unit


def column(source: str, kind: str, lake: str) -> Column:
    return Column("v", 2, source, kind, lake)


TEXT, INT, WIDE = (
    column("text", "text", "string"),
    column("integer", "int4", "int"),
    column("bigint", "int8", "bigint"),
)


def time(kind: str, digits: int) -> Column:
    zone = "with" if kind.endswith("tz") else "without"
    words = f"{kind.removesuffix('tz')}({digits}) {zone} time zone"
    return column(words, kind, "timestamp" if kind.endswith("tz") else "timestamp_ntz")


def array(elements: str) -> Column:
    return column(f"{elements}[]", "array", "string")


JSON, NUMERIC = column("jsonb", "jsonb", "string"), column("numeric", "numeric", "string")


@pytest.mark.parametrize(
    ("old", "new", "as_text", "goes"),
    [
        (INT, WIDE, True, True),
        (WIDE, INT, True, False),
        (INT, TEXT, True, True),
        (INT, TEXT, False, False),
        (INT, NUMERIC, True, True),
        (INT, JSON, True, False),
        (TEXT, column("varchar(9)", "varchar", "string"), False, True),
        (JSON, TEXT, True, False),
        (TEXT, INT, True, False),
        # modifiers
        (time("timestamp", 6), time("timestamp", 0), True, False),
        (time("timestamp", 0), time("timestamp", 3), True, True),
        (time("timestamptz", 3), column("timestamp with time zone", "timestamptz", "timestamp"), True, True),
        (
            column("time without time zone", "time", "string"),
            column("time(0) without time zone", "time", "string"),
            True,
            False,
        ),
        (
            column("interval", "interval", "string"),
            column("interval day to hour", "interval", "string"),
            True,
            False,
        ),
        (
            column("interval day to hour", "interval", "string"),
            column("interval", "interval", "string"),
            True,
            True,
        ),
        (
            column("interval(3)", "interval", "string"),
            column("interval day to second(3)", "interval", "string"),
            True,
            False,
        ),
        (
            column("numeric(50,2)", "numeric", "string"),
            column("numeric(50,1)", "numeric", "string"),
            True,
            False,
        ),
        (
            column("numeric(50,2)", "numeric", "string"),
            column("numeric(60,2)", "numeric", "string"),
            True,
            True,
        ),
        (
            column("numeric(10,2)", "numeric", "decimal(10,2)"),
            column("numeric(50,1)", "numeric", "string"),
            True,
            False,
        ),
        (column("numeric(10,2)", "numeric", "decimal(10,2)"), NUMERIC, True, True),
        (
            column("numeric(10,2)", "numeric", "decimal(38,9)"),
            column("numeric(10,1)", "numeric", "decimal(38,9)"),
            True,
            False,
        ),
        (
            column("numeric(10,2)", "numeric", "decimal(38,9)"),
            column("numeric(12,4)", "numeric", "decimal(38,9)"),
            True,
            True,
        ),
        (INT, column("numeric(50,2)", "numeric", "string"), True, False),
        (INT, column("numeric(50)", "numeric", "string"), True, True),
        (NUMERIC, column("numeric(50,2)", "numeric", "string"), True, False),
        (column("character(3)", "bpchar", "string"), column("character(5)", "bpchar", "string"), True, False),
        (column("varchar(9)", "varchar", "string"), column("varchar(5)", "varchar", "string"), True, True),
        (array("integer"), array("bigint"), True, True),
        (array("bigint"), array("integer"), True, False),
        (array("integer"), array("numeric"), True, True),
        (array("integer"), array("numeric(9,2)"), True, False),
        (array("timestamp(3) without time zone"), array("timestamp(0) without time zone"), True, False),
        (array("timestamp without time zone"), array("timestamp with time zone"), True, False),
        (array("interval"), array("interval hour"), True, False),
        (array("text"), array("character varying(5)"), True, True),
        (column("mood", "enum", "string"), column("temper", "enum", "string"), True, True),
    ],
    ids=lambda v: v.source_type if isinstance(v, Column) else str(v),
)
def test_what_becomes_what(old: Column, new: Column, as_text: bool, goes: bool) -> None:
    if goes:
        refuse_retype("s.t", old, new, as_text=as_text)
        return
    with pytest.raises(BaselineNeededError, match=re.escape(f"from {old.source_type} to {new.source_type}")):
        refuse_retype("s.t", old, new, as_text=as_text)


@pytest.mark.parametrize(
    ("old", "new", "said", "hint"),
    [
        pytest.param(
            Column("a", 2, "integer", "int4", "string"),
            Column("a9", 2, "integer", "int4", "int"),
            "column 'a9' (integer at the source) changed from string to int here: it was called 'a' before, "
            "and `types` goes by names",
            "give it its type under its new name (`types: {s.t.a9: string}`), or leave it at int; ",
            id="renamed",
        ),
        pytest.param(
            Column("a", 2, "integer", "int4", "string"),
            Column("a", 2, "integer", "int4", "int"),
            "column 'a' (integer at the source) changed from string to int here: `types` gave it another type "
            "before",
            "",
            id="types were edited",
        ),
        pytest.param(
            Column("a", 2, "integer", "int4", "string"),
            Column("a9", 2, "bigint", "int8", "int"),
            "column 'a9' changed from integer to bigint",
            "",
            id="another type at the source",
        ),
        pytest.param(
            Column("a", 2, "mood", "enum", "string"),
            Column("a", 2, "mood", "composite", "string"),
            "column 'a' changed from mood to another type of that name",
            "",
            id="another type of the same name",
        ),
    ],
)
def test_it_says_which_types_differ(old: Column, new: Column, said: str, hint: str) -> None:
    with pytest.raises(BaselineNeededError) as error:
        refuse_retype("s.t", old, new, as_text=True)
    kept = "its earlier values cannot be converted without the source"
    assert error.value.what == f"{said}; {kept}"
    assert error.value.hint == f"{hint}`tailrace resync` takes a new baseline of the table"


def test_a_key_that_older_rows_have_no_value_of() -> None:
    a, b = (Column(n, k, "integer", "int4", "int", key=n == "a") for k, n in enumerate("ab", 1))
    before = Relation(1, "s", "t", "d", (a, b))
    refuse_new_key(before, before.with_columns([replace(a, key=False), replace(b, key=True)]))
    for attnum in (3, -1):
        with pytest.raises(BaselineNeededError, match="'a' is new and part of the row key"):
            refuse_new_key(before, before.with_columns([replace(a, attnum=attnum), b]))
