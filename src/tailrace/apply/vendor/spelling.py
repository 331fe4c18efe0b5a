"""Names of columns that changes spell otherwise than their target: letter case tells no columns apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ...model.change import ChangeTable
from ...targets.base import Target


def spelled(target: Target, table: str, changes: ChangeTable) -> ChangeTable:
    """The changes, with the names of columns as the target of `table` spells them."""
    names = spellings(changes.columns, target.columns(table)) if target.exists(table) else {}
    if not names:
        return changes
    columns, key = ([names.get(c, c) for c in some] for some in (changes.columns, changes.key))
    return replace(changes, df=changes.df.withColumnsRenamed(names), columns=columns, key=key)


def spellings(columns: Sequence[str], there: Collection[str]) -> dict[str, str]:
    """The columns that are `there` in another letter case, and how; not one that could be several.

    >>> spellings(["ID", "Note", "v"], ["id", "Note", "V", "v"])
    {'ID': 'id'}
    >>> spellings(["note"], ["Note", "NOTE"])
    {}
    """
    known: dict[str, list[str]] = {}
    for name in there:
        known.setdefault(name.lower(), []).append(name)
    new = ((c, known.get(c.lower(), [])) for c in columns if c not in there)
    return {c: names[0] for c, names in new if len(names) == 1 and names[0] not in columns}
