"""Checks of several sources that feed one target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...engine.rules import Rules
from ...targets.rule_columns import added_by
from .prepare import Prepared
from .static_checks import constants_clash
from .table_map import TableMap


def shared(maps: Sequence[TableMap]) -> dict[str, list[TableMap]]:
    """Targets that more than one source feeds."""
    found: dict[str, list[TableMap]] = {}
    for one in maps:
        found.setdefault(one.target, []).append(one)
    return {target: maps for target, maps in found.items() if len(maps) > 1}


def clashes(mappings: Sequence[Prepared]) -> list[str]:
    """The reasons why sources cannot feed one target together."""
    first = mappings[0]
    return constants_clash([one.map for one in mappings]) + [
        f"{one.map.source} and {first.map.source} give {one.map.target} different columns"
        for one in mappings
        if _shape(one) != _shape(first)
    ]


def marks_clash(target: str, rules: Mapping[str, Rules]) -> list[str]:
    """The reasons, by source, why several rules cannot be used for one target: they add different columns.

    >>> plain, marks = Rules(), Rules.of("soft_delete", {}, "gone")
    >>> marks_clash("all.item", {"eu.item": plain, "us.item": marks})
    ['eu.item is applied without columns of rules, us.item in soft_delete with gone: sources of all.item add \
the same columns']
    >>> marks_clash("all.item", {"eu.item": plain, "us.item": Rules.of("strict", {})})
    []
    """
    first, *others = rules
    return [
        f"{first} is applied {_mode(rules[first])}, {other} {_mode(rules[other])}: sources of {target} add "
        "the same columns"
        for other in others
        if added_by(rules[other]) != added_by(rules[first])
    ]


def _mode(rules: Rules) -> str:
    added = ", ".join(added_by(rules))
    return f"in {rules.mode} with {added}" if added else "without columns of rules"


def _shape(one: Prepared) -> list[tuple[str, str, bool]]:
    return [(c.name, c.type, c.key) for c in one.relation.columns]
