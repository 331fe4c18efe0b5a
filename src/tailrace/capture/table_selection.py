"""Which tables a task captures: those in the task file, plus those added and minus those removed by orders;
and what happens to the targets of removed tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..apply.target_checks import refuse_to_drop
from ..config.task import Task
from ..errors import ApplyError
from ..lake import delta as lake
from ..lake import log
from ..lake.failpoints import reach
from ..sources.base import LeftOut, LogSource, Renamed
from ..state import commands, lifecycle
from ..state.baselines import Baseline
from ..state.lifecycle import TableStates
from .snapshot_sink import landings

TAKE_BACK = "`tailrace add TASK {}` takes the order back"
History: TypeAlias = Mapping[str, Sequence[log.Layout]]
"""The relation history by table."""


class Known:
    """The lifecycles of a task's tables; read again only if there is something new."""

    def __init__(self, task: Task) -> None:
        self._task, self._paths = task, (task.commands_path, task.control_path("baselines"))
        self._versions: tuple[int, ...] = ()
        self.baselines: dict[str, Baseline] = {}
        self.states = TableStates()

    def look(self) -> bool:
        """Reads what is new; returns whether there was anything."""
        versions = tuple(map(lake.version, self._paths))
        if versions == self._versions:
            return False
        self.states = lifecycle.read(self._task)
        self.baselines, self._versions = self.states.baselines, versions
        return True


@dataclass(frozen=True)
class Moved:
    """What happened to tables that the task knows.

    Attributes:
        gone: names of known tables that nothing has now.
        left: names to be left out: those of tables that are known by another one, and of tables made again
            that are to be ignored.
        renamed: known tables that have another name now; their changes go on under the first one.
        old: tables whose known name another one has taken, under a name of their own: followed no longer.
    """

    gone: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    renamed: tuple[Renamed, ...] = ()
    old: tuple[Renamed, ...] = ()


def called_now(source: LogSource, relids: Sequence[int]) -> tuple[dict[int, str], set[str]] | None:
    """The current names of relations, and all names in use, as of one moment; None if unknown."""
    now = source.names(relids) if relids else None
    while now is not None:
        there = set(source.tables(["*.*"]))
        before, now = now, source.names(relids)
        if now == before:
            return now, there
    return None


def newest(history: History, baselines: Mapping[str, Baseline]) -> dict[str, int]:
    """The newest relation of each known table: its baseline's, if it has one."""
    found = {table: layouts[-1].relation.relid for table, layouts in history.items()}
    return found | {t: one.relation.relid for t, one in baselines.items() if t in found}


def moved(
    source: LogSource, history: History, baselines: Mapping[str, Baseline], ignored: Callable[[str], bool]
) -> Moved:
    """What the source's catalog says about known tables; from now on the source uses their known names.

    `ignored`: whether a table that is made again is to be left out.
    """
    last = newest(history, baselines)
    relids = {one.relation.relid: t for t, layouts in history.items() for one in layouts}
    relids |= {relid: t for t, relid in last.items()}
    found = called_now(source, list(relids))
    if found is None:
        return Moved()
    now, there = found
    for (
        table,
        layouts,
    ) in history.items():  # recreated, and its first changes have been read, but not its baseline
        again = layouts[-1].relation.relid
        if now.get(again) == table and now.get(last[table]) != table and not ignored(table):
            last[table] = again
    taken = there - set(now.values())  # under names that the task does not know
    away = {t for t, relid in last.items() if now.get(relid) != t}
    renamed = [
        Renamed(last[t], t, now[last[t]])
        for t in sorted(away)
        if last[t] in now and (t not in taken or ignored(t))
    ]
    own = {one.relid for one in renamed} | {last[t] for t in last.keys() - away}
    old = [Renamed(r, f"{relids[r]}, relation {r}", name) for r, name in now.items() if r not in own]
    left = {one.now for one in (*renamed, *old)} | {t for t in away & taken if ignored(t)}
    # The stream may have used another name for a moment, and reports it with the table's first change.
    seen = {one.relation.relid for layouts in history.values() for one in layouts}
    unseen = [Renamed(r, t, t) for t, r in last.items() if r not in seen and now.get(r) == t]
    source.called([*renamed, *old, *unseen])
    return Moved(frozenset(away - there), frozenset(left), tuple(renamed), tuple(old))


def members(
    source: LogSource,
    task: Task,
    states: TableStates,
    moved: Moved = Moved(),
    left: Mapping[str, LeftOut] | None = None,
) -> list[str]:
    """The tables that exist and should be captured, sorted.

    ConfigError for a table that the task file names and that never was there; one that is gone, or was added
    by an order, is left out. `left`: what the source's `left_out` says, if that is known already.
    """
    # A table that was removed, or is gone, may still be in the task file.
    patterns = [p for p in task.source.tables if not states[p].removed and p not in moved.gone]
    named = [t for t in selected(source, task, patterns, task.source.exclude, left) if t not in moved.left]
    # Selected by the name under which they are known, or by the one that they have now.
    named += [
        one.known for one in moved.renamed if any(chosen(task, states, t) for t in (one.known, one.now))
    ]
    out = {*named, *moved.left}  # one relation has one name
    added = [t for t, one in states.items() if one.member == "added" and t not in out]
    found = source.tables([_if_there(t) for t in added]) if added else []
    return sorted(t for t in {*named, *found} if not states[t].removed)


def selected(
    source: LogSource,
    task: Task,
    patterns: Sequence[str],
    exclude: Sequence[str] = (),
    left: Mapping[str, LeftOut] | None = None,
) -> list[str]:
    """The tables that patterns select, sorted: names, and by wildcards those that are not left out.

    ConfigError for a name that is not there.
    """
    found = source.tables(patterns, exclude)
    if set(found) <= set(patterns):
        return found
    left = source.left_out() if left is None else left
    return [t for t in found if t in patterns or t not in left or completed(task, t, left[t])]


def completed(task: Task, table: str, one: LeftOut) -> bool:
    """Whether a table that no wildcard selects is selected, because it is to get a replica identity."""
    return one.identity and task.table(table).identity == "full"


def chosen(task: Task, states: TableStates, table: str) -> bool:
    """Whether an order adds a table, or the task file selects it by the name under which it is known."""
    if states[table].member == "added":
        return True
    return task.source.selects(table)


def _if_there(table: str) -> str:
    """A pattern for exactly this name: unlike a name, a pattern need not match anything."""
    return "".join(f"[{c}]" if c in "*?[." else c for c in table)  # its dot alone makes it one


def drop_targets(
    task: Task,
    states: TableStates,
    busy: Collection[str] = (),
    waits: dict[str, str] | None = None,
) -> list[str]:
    """Removes the targets of removed tables for which this was ordered, once apply has acknowledged it and
    no baseline of them is running (`busy`); returns these tables. For the capture process, or if there is
    none.

    `waits`: keeps why targets cannot be removed now, by table.

    Raises:
        ApplyError: a target cannot be removed, and nobody waits.
    """
    gone = [
        t for t, one in states.items()
        if one.dropped and one.removed and t not in busy and not one.moving
        and commands.heard(task.run_path, one.dropped)
    ]  # fmt: skip
    dropped = []
    if waits is not None:
        waits.clear()
    for table in gone:
        try:
            refuse_to_drop(task, [table])
            landings(task)(table).drop(table)
        except ApplyError as error:
            if waits is None:
                raise
            waits[table] = f"its target is not removed yet: {error}"
            continue
        reach("membership.dropped")
        commands.give(task.commands_path, commands.DROPPED, [table], why="", who="capture")
        dropped.append(table)
    return dropped
