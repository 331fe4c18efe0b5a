"""Several sources of one target: what they must keep."""

from __future__ import annotations

from collections.abc import Sequence

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


def _shape(one: Prepared) -> list[tuple[str, str, bool]]:
    return [(c.name, c.type, c.key) for c in one.relation.columns]
