"""Several sources of one target: what they must keep."""

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
    return {target: many for target, many in found.items() if len(many) > 1}


def clashes(many: Sequence[Prepared]) -> list[str]:
    """What keeps sources from feeding one target together, in sentences."""
    first = many[0]
    return constants_clash([one.map for one in many]) + [
        f"{one.map.source} and {first.map.source} make other columns of {one.map.target}"
        for one in many
        if _shape(one) != _shape(first)
    ]


def marks_clash(target: str, rules: Mapping[str, Rules]) -> list[str]:
    """What keeps the rules of sources (by name) from filling one target together, in a sentence a source: a
    mark, or an archive's columns, tell of all of its rows what they are.

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
