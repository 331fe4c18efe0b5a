"""Names in a task file that fit nothing are said, with what was meant."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import pytest

from tailrace.config.task import Task
from tailrace.lake import log
from tailrace.model.change import Column, Relation
from tailrace.model.sequence import FIRST
from tailrace.operate.name_checks import name_findings
from tailrace.sources.base import LogSource

pytestmark = pytest.mark.unit
THERE = ("hr.pay", "shop.item", "shop.orders")


class Source:
    """Has three tables, each with the columns id and name."""

    def tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        return [t for t in THERE if any(fnmatchcase(t, p) for p in patterns)]

    def relation(self, table: str) -> Relation:
        columns = tuple(Column(n, i, "text", "text", "string") for i, n in enumerate(("id", "name")))
        return Relation(7, *table.split("."), "d", columns)


def found(tmp: Any, **settings: Any) -> list[tuple[str, str, str, str]]:
    source = {"url": "postgresql://db/shop", "tables": ["shop.*"], **settings.pop("source", {})}
    task = Task.model_validate({"name": "t", "source": source, **settings}, context={"folder": tmp})
    captured = [t for t in THERE if t.startswith("shop.")]
    findings = name_findings(task, cast(LogSource, Source()), captured, {"shop.gone"})
    return [(f.level, f.where, f.what, f.cure) for f in findings]


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"tables": {"shop.itm": {"mode": "strict"}}}, "tables"),
        ({"groups": {"big": {"tables": ["shop.item", "shop.itm"]}}}, "groups.big"),
        ({"policies": {"shop.itm": 2}}, "policies"),
        ({"types": {"shop.itm.id": "string"}}, "types"),
        ({"source": {"exclude": ["shop.itm"]}}, "source.exclude"),
    ],
)
def test_a_table_that_is_not_there_is_an_error(tmp_path: Any, settings: dict[str, Any], where: str) -> None:
    ((level, at, what, cure),) = found(tmp_path, **settings)
    assert (level, at) == ("error", where)
    assert what.startswith("there is no table shop.itm") and "did you mean shop.item" in cure


@pytest.mark.parametrize(("section", "value"), [("policies", 0), ("types", "string")])
def test_columns_are_not_named_by_patterns(tmp_path: Any, section: str, value: Any) -> None:
    """It would mean nothing: what is to be left out would be kept."""
    assert found(tmp_path, **{section: {"shop.*.ssn": value}}) == [
        ("error", section, "no table matches shop.*.ssn", "name each column in full, schema.table.column")
    ]


def test_patterns_of_tables_with_a_dot_in_their_names(tmp_path: Any) -> None:
    for pattern in ("shop.order.*", "shop.*"):
        assert [f[0] for f in found(tmp_path, policies={pattern: 2})] in ([], ["warning"])


@pytest.mark.parametrize("section", ["policies", "types"])
def test_a_column_that_is_not_there_is_an_error(tmp_path: Any, section: str) -> None:
    value: Any = 1 if section == "policies" else "string"
    said = found(tmp_path, **{section: {"shop.item.nmae": value, "shop.item.id": value}})
    assert said == [("error", section, "shop.item has no column nmae", "did you mean name?")]


def test_a_column_that_keeps_its_level_under_another_name_is_a_warning(tmp_path: Any) -> None:
    was = Relation(7, "shop", "item", "d", (Column("secret", 1, "text", "text", "string"),))
    log.record_layouts(str(tmp_path / "state" / "relations"), [log.Layout(was, bytes(20), FIRST)])
    home = str(tmp_path / "state")
    said = found(tmp_path, policies={"shop.item.secret": 1, "shop.item.id": 1}, home=home)
    assert said == [
        (
            "warning", "policies", "column 'name' of shop.item keeps level 1: it was called 'secret' before",
            "to give it another level, name it (`shop.item.name: 3`)",
        )
    ]  # fmt: skip
    assert not found(tmp_path, policies={"shop.item.secret": 1, "shop.item.name": 3}, home=home)


def test_a_pattern_that_fits_nothing_is_a_warning(tmp_path: Any) -> None:
    said = found(tmp_path, tables={"shp.*": {}, "shop.*": {}}, source={"tables": ["shop.*", "log.*"]})
    assert [(level, what) for level, _, what, _ in said] == [
        ("warning", "no table matches log.*"), ("warning", "no table matches shp.*"),
    ]  # fmt: skip
    assert said[1][3].startswith("did you mean shop.*")


def test_a_table_of_others_is_a_warning_and_one_that_is_gone_none(tmp_path: Any) -> None:
    said = found(tmp_path, tables={"hr.pay": {}, "shop.gone": {}})
    assert [(level, what) for level, _, what, _ in said] == [
        ("warning", "hr.pay is not captured by this task"),
    ]


def test_what_is_excluded_is_said_to_be(tmp_path: Any) -> None:
    said = found(tmp_path, source={"tables": ["hr.*", "hr.pay", "shop.*"], "exclude": ["hr.*"]})
    assert said == [
        ("warning", "source.tables", what, "remove it from there, or from the other setting")
        for what in (
            "`source.exclude` leaves out all tables that match hr.*", "`source.exclude` leaves out hr.pay",
        )
    ]  # fmt: skip


def test_what_fits_is_not_said(tmp_path: Any) -> None:
    assert found(
        tmp_path,
        source={"exclude": ["hr.*"]},
        tables={"shop.item": {}, "*.orders": {}},
        policies={"shop.*": 2, "shop.item.name": 1},
        types={"shop.orders.id": "string"},
        groups={"all": {"tables": ["shop.*"]}},
    ) == []  # fmt: skip
