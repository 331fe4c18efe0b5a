"""Several sources of one target: what they must keep."""

from __future__ import annotations

from collections.abc import Sequence

from .mapping import Prepared
from .table_map import TableMap


def shared(maps: Sequence[TableMap]) -> dict[str, list[TableMap]]:
    """Targets that more than one source feeds."""
    found: dict[str, list[TableMap]] = {}
    for one in maps:
        found.setdefault(one.target, []).append(one)
    return {target: many for target, many in found.items() if len(many) > 1}


def clashes(many: Sequence[Prepared]) -> list[str]:
    """What keeps sources from feeding one target together, in sentences."""
    wrong = []
    first, seen = many[0], dict[tuple[tuple[str, str], ...], str]()
    for one in many:
        mine, name = one.partition, one.map.source
        if not mine:
            wrong.append(
                f"{name} feeds {one.map.target} with others: its key needs a constant that tells its rows"
            )
        if (other := seen.setdefault(tuple(sorted(mine.items())), name)) != name and mine:
            wrong.append(f"{name} and {other} feed {one.map.target} under the same constants: {mine}")
        if sorted(mine) != sorted(first.partition):
            wrong.append(f"{name} and {first.map.source} have other constants in the key of {one.map.target}")
        if _shape(one) != _shape(first):
            wrong.append(f"{name} and {first.map.source} make other columns of {one.map.target}")
    return wrong


def _shape(one: Prepared) -> list[tuple[str, str, bool]]:
    return [(c.name, c.type, c.key) for c in one.relation.columns]
