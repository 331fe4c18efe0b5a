"""Groups of tables in a task, with their own interval, retry limit and automatic baselines."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from ..model.patterns import fits
from .base import Pattern, Settings
from .freshness import Freshness


class GroupSettings(Settings):
    """Tables that are applied together. A table belongs to the first group that names it."""

    tables: list[Pattern] = Field(min_length=1)
    """Its tables: `schema.table`, with `*` and `?` as in file names."""
    freshness: Freshness | None = Field(default=None, json_schema_extra={"shown": "that of the task"})
    """Time for which their changes are gathered before they are applied."""
    retries: int = Field(default=0, ge=0)
    """After this many errors in a row in one of its tables the group is suspended, with the error as the
    reason, and the task continues; 0: never, its tables are retried without end. (A table without a group is
    suspended alone: after three errors, or immediately if a retry cannot help.)"""
    automatic_baseline: bool = False
    """Take a new baseline of a table if only that helps: a column got another type, a table was dropped and
    created again. Otherwise such a table is suspended, and so is an archive, which would lose what it has
    kept."""


def group_of(groups: Mapping[str, GroupSettings], table: str) -> str | None:
    """The name of a table's group; None when it has none.

    >>> groups = {"small": GroupSettings(tables=["s.a*"]), "rest": GroupSettings(tables=["s.*"])}
    >>> [group_of(groups, t) for t in ("s.abc", "s.b", "m.x")]
    ['small', 'rest', None]
    """
    for name, group in groups.items():
        if fits(table, *group.tables):
            return name
    return None
