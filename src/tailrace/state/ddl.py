"""Records about the source's DDL: decisions of apply, and events that only the catalog shows.

`ddl_decisions` has what apply decided for each change of a layout: `change_seq` is where the new layout
begins, `attnum` 0 means the table itself. Events of one kind at one change sequence, as when a table is
dropped twice while the source is idle, have 0, -1, -2, ... for `attnum`.

`ddl_events` has tables that were dropped, renamed or created again (`kind`: `drop_table`, `rename_table`,
`recreate_table`): changes with a smaller `change_seq` are from before the DDL.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..model.positions import ChangeSeq
from .declarations import DDL_DECISIONS, DDL_EVENTS
from .state_table import StateTable

Key = tuple[str, ChangeSeq, str, int]
"""Table, change sequence, kind, attnum."""


@dataclass(frozen=True)
class CatalogEvent:
    """A table that was dropped, renamed or recreated."""

    table: str
    relid: int
    kind: str
    change_seq: ChangeSeq
    new_name: str | None = None
    new_relid: int | None = None
    noticed_at: dt.datetime | None = None


def keyed(events: Iterable[CatalogEvent]) -> Iterator[tuple[CatalogEvent, Key]]:
    """Events, in order, with the keys of their decisions.

    >>> [key for _, key in keyed([CatalogEvent("s.t", relid, "drop_table", "1") for relid in (7, 8)])]
    [('s.t', '1', 'drop_table', 0), ('s.t', '1', 'drop_table', -1)]
    """
    found: Counter[tuple[str, ChangeSeq, str]] = Counter()
    for one in events:
        place = one.table, one.change_seq, one.kind
        yield one, (*place, -found[place])
        found[place] += 1


def decisions(path: str) -> dict[Key, str]:
    """The newest decision for each key: one that was not carried out may be made again."""
    return _decisions(path).latest()


def record_decisions(path: str, made: Iterable[tuple[Key, str]]) -> None:
    """Records decisions."""
    key = DDL_DECISIONS.key
    _decisions(path).append(dict(zip(key, values, strict=True), policy=policy) for values, policy in made)


def wanted_names(events: Iterable[CatalogEvent], decisions: Mapping[Key, str]) -> dict[str, str]:
    """The names that targets should have, by table: those of renamed tables whose renaming is not ignored.

    A table that was created again begins under its own name.

    >>> there = CatalogEvent("s.t", 7, "rename_table", "1", "s.u")
    >>> back = CatalogEvent("s.t", 8, "recreate_table", "2")
    >>> said = {("s.t", "1", "rename_table", 0): "apply", ("s.t", "2", "recreate_table", 0): "apply"}
    >>> wanted_names([there], said), wanted_names([there, back], said)
    ({'s.t': 's.u'}, {'s.t': 's.t'})
    """
    found: dict[str, str] = {}
    for one, key in keyed(events):
        policy = decisions.get(key, "ignore")
        if policy == "ignore":
            continue
        if one.kind == "rename_table" and one.new_name:
            found[one.table] = one.new_name
        elif one.kind == "recreate_table" and one.table in found:
            found[one.table] = one.table
    return found


def events(path: str) -> list[CatalogEvent]:
    """All events, in order."""
    return sorted(_events(path).rows(), key=lambda one: one.change_seq)


def record_events(path: str, new: Iterable[CatalogEvent]) -> None:
    """Records events."""
    _events(path).append({k: v for k, v in vars(one).items() if k != "noticed_at"} for one in new)


def _decisions(path: str) -> StateTable[str]:
    return StateTable(path, DDL_DECISIONS, lambda row: str(row["policy"]))


def _events(path: str) -> StateTable[CatalogEvent]:
    names = [name for name, _ in DDL_EVENTS.columns]
    return StateTable(
        path, DDL_EVENTS, lambda row: CatalogEvent(**{n: row[n] for n in names}, noticed_at=row["at"])
    )
