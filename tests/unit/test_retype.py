"""Which types a target's columns can take on without the source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.apply.targets.retype import refuse_new_key, refuse_retype
from tailrace.errors import BaselineNeededError
from tailrace.model.change import Column, Relation

pytestmark = pytest.mark.unit


def column(source: str, kind: str, lake: str) -> Column:
    return Column("v", 2, source, kind, lake)


TEXT, INT, WIDE = (
    column("text", "text", "string"),
    column("integer", "int4", "int"),
    column("bigint", "int8", "bigint"),
)
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
    ],
    ids=lambda v: v.source_type if isinstance(v, Column) else str(v),
)
def test_what_becomes_what(old: Column, new: Column, as_text: bool, goes: bool) -> None:
    if goes:
        refuse_retype("s.t", old, new, as_text=as_text)
        return
    with pytest.raises(
        BaselineNeededError, match=f"from {old.source_type} to {new.source_type}".replace("(", r"\(")
    ):
        refuse_retype("s.t", old, new, as_text=as_text)


def test_a_key_that_older_rows_have_no_value_of() -> None:
    a, b = (Column(n, k, "integer", "int4", "int", key=n == "a") for k, n in enumerate("ab", 1))
    before = Relation(1, "s", "t", "d", (a, b))
    refuse_new_key(before, before.with_columns([replace(a, key=False), replace(b, key=True)]))
    for attnum in (3, -1):
        with pytest.raises(BaselineNeededError, match="'a' is new and part of the row key"):
            refuse_new_key(before, before.with_columns([replace(a, attnum=attnum), b]))
