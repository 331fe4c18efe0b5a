"""What a task records about its source's DDL: decisions of apply, and events that only the catalog shows.

Two small Delta tables under `<home>/control`, only ever added to:

`ddl_decisions`: what apply decided for each change of a layout. Columns: `table`, `change_seq` (where the
new layout begins), `kind`, `attnum` (0: the table itself), `policy` (strings; bigint for `attnum`),
`decided_at`. Events of one kind at one place, as when a table is dropped twice while the source is idle, have
0, -1, -2, ... for `attnum`.

`ddl_events`: tables that were dropped, renamed or made again. Columns: `table`, `relid`, `kind`
(`drop_table`, `rename_table`, `recreate_table`), `new_name`, `new_relid`, `change_seq` (changes with a
smaller one are from before the DDL), `noticed_at`.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ..lake import delta as lake
from ..lake.failpoints import reach
from ..lake.rising import now_after

DECISIONS = pa.schema(
    [
        ("table", pa.string()), ("change_seq", pa.string()), ("kind", pa.string()), ("attnum", pa.int64()),
        ("policy", pa.string()), ("decided_at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
EVENTS = pa.schema(
    [
        ("table", pa.string()), ("relid", pa.int64()), ("kind", pa.string()), ("new_name", pa.string()),
        ("new_relid", pa.int64()), ("change_seq", pa.string()), ("noticed_at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip

Key = tuple[str, str, str, int]
"""Table, change sequence, kind, attnum."""


@dataclass(frozen=True)
class CatalogEvent:
    """A table that was dropped, renamed or recreated."""

    table: str
    relid: int
    kind: str
    change_seq: str
    new_name: str | None = None
    new_relid: int | None = None
    noticed_at: dt.datetime | None = None


def keyed(events: Iterable[CatalogEvent]) -> Iterator[tuple[CatalogEvent, Key]]:
    """Events, in order, with the keys of their decisions.

    >>> [key for _, key in keyed([CatalogEvent("s.t", relid, "drop_table", "1") for relid in (7, 8)])]
    [('s.t', '1', 'drop_table', 0), ('s.t', '1', 'drop_table', -1)]
    """
    found: Counter[tuple[str, str, str]] = Counter()
    for one in events:
        place = one.table, one.change_seq, one.kind
        yield one, (*place, -found[place])
        found[place] += 1


def decisions(path: str) -> dict[Key, str]:
    """All decisions, the newest one for each key: one that was not carried out may be taken anew."""
    if not lake.exists(path):
        return {}
    found: dict[Key, str] = {}
    for r in sorted(lake.read(path).to_pylist(), key=lambda r: r["decided_at"]):
        found[r["table"], r["change_seq"], r["kind"], r["attnum"]] = r["policy"]
    return found


def decided(path: str, made: Iterable[tuple[Key, str]]) -> None:
    """Records decisions."""
    names, made = ("table", "change_seq", "kind", "attnum"), list(made)
    if made:
        now = now_after(path, "decided_at")
        rows = [dict(zip(names, key, strict=True), policy=policy, decided_at=now) for key, policy in made]
        reach("ddl.decision")
        lake.append(path, pa.Table.from_pylist(rows, DECISIONS))


def wanted_names(events: Iterable[CatalogEvent], decisions: Mapping[Key, str]) -> dict[str, str]:
    """The names that targets should have, by table: those of renamed tables whose renaming is not ignored.

    A table that was made again begins under its own name.

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
    if not lake.exists(path):
        return []
    rows = sorted(lake.read(path).to_pylist(), key=lambda r: (r["change_seq"], r["noticed_at"]))
    return [CatalogEvent(**r) for r in rows]


def happened(path: str, new: Iterable[CatalogEvent]) -> None:
    """Records events."""
    if new := list(new):
        now = now_after(path, "noticed_at")
        rows = [dict(vars(one), noticed_at=now) for one in new]
        reach("ddl.event")
        lake.append(path, pa.Table.from_pylist(rows, EVENTS))
