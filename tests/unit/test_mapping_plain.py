"""Mappings without expressions need no Spark to be looked at; expressions ask for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.apply.checks.mapping import plain_findings
from tailrace.apply.mapping.prepare import mistakes, prepare
from tailrace.apply.mapping.table_map import TableMap
from tailrace.config.task import load
from tailrace.model.change import Column, Relation

pytestmark = pytest.mark.unit
RELATION = Relation(
    7,
    "s",
    "t",
    "f",
    (Column("id", 1, "integer", "int4", "int", key=True), Column("v", 2, "text", "text", "string")),
)


class AskedError(Exception):
    """Spark was asked for."""


def spark() -> Any:
    raise AskedError


def test_names_constants_and_a_key() -> None:
    wanted = TableMap("s.t", "all.t", columns={"word": "v"}, constants={"site": "eu"})
    made = prepare(spark, wanted, RELATION).relation
    assert [(c.name, c.type, c.key) for c in made.columns] == [
        ("id", "int", True),
        ("word", "string", False),
        ("site", "string", True),
    ]


def test_what_is_wrong_without_an_expression() -> None:
    found = mistakes(spark, TableMap("s.t", "s.t", drop=("id",)), RELATION)
    assert found == ["the key column 'id' is left out: name the target's key"]


def test_a_column_to_leave_out_that_is_gone_does_no_harm() -> None:
    made = prepare(spark, TableMap("s.t", "s.u", drop=("gone",)), RELATION).relation
    assert [c.name for c in made.columns] == [c.name for c in RELATION.columns]


@pytest.mark.parametrize("words", [{"where": "id > 1"}, {"columns": {"twice": "id * 2"}}])
def test_an_expression_asks_for_spark(words: dict[str, Any]) -> None:
    with pytest.raises(AskedError):
        prepare(spark, TableMap("s.t", "s.t", **words), RELATION)


def test_a_second_copy_of_a_column_is_a_column_of_its_own() -> None:
    made = prepare(spark, TableMap("s.t", "s.u", columns={"one": "v", "two": "v"}), RELATION).relation
    numbers = {c.name: c.attnum for c in made.columns}
    assert numbers["one"] == 2 and len(set(numbers.values())) == 3


@pytest.mark.parametrize(
    ("eu", "us", "said"),
    [
        ("", "soft_delete: gone", "without columns of rules, us.item in soft_delete with gone"),
        (
            "soft_delete: gone_eu",
            "soft_delete: gone",
            "in soft_delete with gone_eu, us.item in soft_delete with gone",
        ),
        ("soft_delete: gone", "soft_delete: gone", None),
        ("mode: strict", "", None),
    ],
)
def test_sources_of_one_target_have_one_mark(tmp_path: Path, eu: str, us: str, said: str | None) -> None:
    file, shared = tmp_path / "t.yaml", "target: all.item, constants: {site: '@SCHEMA'}"
    words = "".join(f"  {name}.item: {{{shared}, {more}}}\n" for name, more in (("eu", eu), ("us", us)))
    file.write_text(f"name: t\nsource: {{url: 'postgresql://x@localhost/x'}}\ntarget: lake\ntables:\n{words}")
    source = cast("Any", SimpleNamespace(relation=lambda _: RELATION))
    found = plain_findings(load(file), source, ["eu.item", "us.item"])
    assert [(one.level, one.where, one.what) for one in found] == (
        []
        if said is None
        else [("error", "all.item", f"eu.item is applied {said}: sources of all.item add the same columns")]
    )
