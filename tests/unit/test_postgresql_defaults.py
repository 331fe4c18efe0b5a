"""A column that a PostgreSQL target gets, with the value that its older rows have at the source."""

from __future__ import annotations

import pytest

from tailrace.model.change import Column, Relation
from tailrace.targets.postgresql.layout import column_steps

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("kind", "missing", "default"),
    [
        ("array<string>", "{}", "'{}'::text[]"),
        ("array<string>", '{a,NULL,"b \\"c\\\\",""}', 'E\'{"a",NULL,"b \\\\"c\\\\\\\\",""}\'::text[]'),
        ("array<int>", "{1,NULL}", "'{\"1\",NULL}'::integer[]"),
        ("array<binary>", '{"\\\\x00ff"}', "E'{\"\\\\\\\\x00ff\"}'::bytea[]"),
        ("array<date>", "{infinity}", "'{\"9999-12-31\"}'::date[]"),
        ("string", "{1,NULL}", "'{1,NULL}'::integer[]"),
        ("binary", "\\x00ff", "E'\\\\x00ff'::bytea"),
    ],
)
def test_a_default_is_that_of_the_source(kind: str, missing: str, default: str) -> None:
    element = {"array<binary>": "bytea", "array<date>": "date", "array<string>": "text"}.get(kind, "integer")
    words = ("bytea", "bytea") if kind == "binary" else (f"{element}[]", "array")
    new = Column("v", 2, *words, kind, missing=missing)
    have = Relation(7, "shop", "item", "d", (Column("id", 1, "integer", "int4", "int", True),))
    assert column_steps(have, have.with_columns([*have.columns, new]), {}) == [
        f'ADD COLUMN "v" {default.partition("::")[2]} DEFAULT {default}',
        'ALTER COLUMN "v" DROP DEFAULT',
    ]
