"""Which types a target's columns can take on without the source."""

from __future__ import annotations

import pytest

from tailrace.apply.targets.retype import refuse_retype
from tailrace.change import Column
from tailrace.errors import BaselineNeededError

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
