"""`tailrace pause | resume | resync | add | remove`: orders for single tables, checked before they are
given.

An order is a row of the task's orders table (`state/orders.py`). A running task picks it up within about
two seconds; otherwise it takes effect at the next start.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ..apply.applied_places import applied_places
from ..apply.needs import Needs
from ..apply.target_checks import refuse_to_drop
from ..apply.target_owner import own, owner_of
from ..capture.ddl_watch import moved_tables
from ..capture.table_selection import drop_targets, gets_identity, select_tables, wanted_tables
from ..config.policies import MEDIUM
from ..config.task import Task
from ..errors import ConfigError
from ..lake import delta as lake
from ..lake import json_files, log
from ..model.nearest import meant
from ..model.patterns import fits, fitting
from ..sources import open_source
from ..sources.base import LeftOut
from ..state import ledger, live, orders, streams
from ..state.orders import ADD, DROP, PAUSE, REMOVE, RESUME, RESYNC, TableControl


@dataclass(frozen=True)
class OrderResult:
    """The result of a command.

    Attributes:
        action: the order.
        tables: the tables that it was given for.
        passed: tables that the patterns fit and that need no such order: why not.
        order: number of the last order; 0 for a dry run, or when nothing was to be ordered.
        running: which halves of the task run: they take it in; else it holds from the next start on.
        dropped: tables whose target is gone already.
    """

    action: str
    tables: list[str]
    passed: dict[str, str] = field(default_factory=dict)
    order: int = 0
    dry_run: bool = False
    running: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def order(
    task: Task,
    action: str,
    patterns: Sequence[str],
    *,
    why: str = "",
    dry_run: bool = False,
    drop_target: bool = False,
    replace_archives: bool = False,
) -> OrderResult:
    """Gives an order for all tables that match the patterns (`schema.table`, `*`, `?`).

    Args:
        task: the task, running or not.
        action: `pause`, `resume`, `resync`, `add` or `remove`.
        patterns: which tables; for `add` those of the source, else those of the task.
        why: the reason, for whoever looks at the status.
        dry_run: only say what would be ordered.
        drop_target: `remove` only: the target goes, too.
        replace_archives: `resync` and `add` only: archives may lose what they have kept.

    Raises:
        ConfigError: a pattern fits no table, or a table cannot be ordered so.
    """
    baselines = ledger.read_baselines(task.control_path("baselines"))
    states = orders.of_task(task.orders_path, baselines)
    if action == ADD:
        chosen, passed = _joining(task, states, patterns)
    else:
        mine = matching(known(task, states), patterns, task.name)
        reasons = {t: _passed(action, states.get(t, TableControl(t)), drop_target) for t in mine}
        chosen = [t for t, reason in reasons.items() if reason is None]
        passed = {t: reason for t, reason in reasons.items() if reason is not None}
    if action == RESYNC:
        _have_targets(task, chosen)
    if action in (RESYNC, ADD) and not replace_archives:
        _refuse_archives(task, chosen)
    running = [half for half in ("capture", "pipeline") if live.locked(task.run_path, half)]
    if drop_target and chosen:
        refuse_to_drop(task, chosen)
    if dry_run or not chosen:
        return OrderResult(action, chosen, passed, 0, dry_run, running)
    reason = why or f"ordered with tailrace {action}"
    number = orders.give(task.orders_path, action, chosen, why=reason, who=user())
    gone: list[str] = []
    if drop_target:
        number = orders.give(task.orders_path, DROP, chosen, why=reason, who=user())
        gone = _drop_now(task)
    return OrderResult(action, chosen, passed, number, False, running, [t for t in gone if t in chosen])


def begin_anew(
    task: Task, *, why: str = "", dry_run: bool = False, replace_archives: bool = False
) -> OrderResult:
    """Orders a new stream and new baselines of all tables; what the source has logged since is given up.

    Capture does it when it starts: apply is told that targets wait for their baselines, the old slot is
    dropped, a new one is made, and the tables are read in its snapshot. Gives the stream's number as `order`.

    Raises:
        ConfigError: the task runs, or has read nothing yet; archives would lose what they have kept, unless
            `replace_archives` says that they may.
    """
    baselines = ledger.read_baselines(task.control_path("baselines"))
    states = orders.of_task(task.orders_path, baselines)
    mine = [t for t in known(task, states) if states.get(t, TableControl(t)).member != "removed"]
    if not replace_archives:
        _refuse_archives(task, mine)
    if dry_run:
        live.refuse(task.run_path, "capture")
        streams.refuse_unread(task)
        return OrderResult(RESYNC, mine, {}, 0, dry_run)
    reason = why or "ordered with tailrace resync --new-stream"
    return OrderResult(RESYNC, mine, {}, streams.give_up(task, who=user(), why=reason))


def take_over(task: Task, patterns: Sequence[str]) -> list[str]:
    """Makes the Delta targets of tables this task's own, whoever's they were; returns the tables.

    Raises:
        ConfigError: the target is a database, or no target matches.
    """
    if task.target.database:
        raise ConfigError(
            "tables of a database are taken over there",
            where=task.name,
            hint="`tailrace check` says of each what to do",
        )
    source = open_source(task)
    try:
        owner = owner_of(task, streams.newest(task).identity or source.identity())
        places = applied_places(task, source.tables(patterns))
    finally:
        source.close()
    paths = {t: path for t, at in places.items() if lake.exists(path := task.target_path(at.target))}
    if not paths:
        raise ConfigError(f"no table that matches {', '.join(patterns)} has a target", where=task.target.path)
    for path in paths.values():
        own(path, owner)
    return sorted(paths)


def _have_targets(task: Task, chosen: Sequence[str]) -> None:
    if low := [t for t in chosen if task.policy(t).level < MEDIUM]:
        raise ConfigError(
            f"{', '.join(low)} has no target, because of its policy: no baseline is needed",
            where=f"policies of {task.name}",
            hint="raise its level to 2 or 3",
        )


def _refuse_archives(task: Task, tables: Iterable[str]) -> None:
    """Raises ConfigError for archives that have been filled: a baseline replaces what a target has."""
    archives = [t for t in tables if task.keeps_changes(t)]
    if archives and (kept := sorted(Needs(task).filled(archives))):
        raise ConfigError(
            f"{', '.join(kept)}: a new baseline replaces all changes that the archive has kept by the "
            "source's current rows",
            where=task.name,
            hint="copy or rename the target first if they are still needed, then add --replace-archives",
        )


def user() -> str:
    """The user who gives an order."""
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return "unknown"


def known(task: Task, states: Mapping[str, TableControl]) -> list[str]:
    """All tables that the task has, or had: captured, ordered, or with a baseline."""
    captured = (json_files.read(task.run_path, "capture") or {}).get("tables") or []
    taken = ledger.read_baselines(task.control_path("baselines"))
    return sorted({*captured, *taken, *log.history(task.relations_path), *states})


def tables_of(task: Task) -> list[str]:
    """The tables that the task has, or had."""
    return known(
        task, orders.of_task(task.orders_path, ledger.read_baselines(task.control_path("baselines")))
    )


def captured_of(task: Task) -> list[str]:
    """The tables that the task has, without those that were removed."""
    states = orders.of_task(task.orders_path, ledger.read_baselines(task.control_path("baselines")))
    return [t for t in known(task, states) if t not in states or states[t].member != "removed"]


def matching(there: Sequence[str], patterns: Iterable[str], task: str) -> list[str]:
    """The tables that match patterns, sorted; ConfigError for a pattern that matches none.

    >>> matching(["s.a", "s.b", "m.c"], ["s.*"], "shop")
    ['s.a', 's.b']
    """
    found: set[str] = set()
    for pattern in patterns:
        mine = fitting(there, pattern)
        if not mine:
            hint = meant(pattern, there) or "`tailrace status` lists its tables"
            raise ConfigError(f"no table of the task matches {pattern!r}", where=task, hint=hint)
        found |= set(mine)
    return sorted(found)


def _passed(action: str, state: TableControl, drop_target: bool) -> str | None:
    """Why a table does not need such an order; None if it does."""
    removed = state.member == "removed"
    if removed and not (action == REMOVE and drop_target):
        return "it is removed; `tailrace add` brings it back" if action != REMOVE else "it is removed already"
    if action == PAUSE and state.held:
        return f"it is {state.held} already: {state.why}"
    if action == RESUME and not state.held:
        return "it is neither paused nor suspended"
    return None


def _joining(
    task: Task, states: Mapping[str, TableControl], patterns: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    source = open_source(task)
    try:
        moved = moved_tables(task, source)
        known = {one.now: one.known for one in moved.renamed}
        left = source.left_out()
        wanted = sorted({known.get(t, t) for t in select_tables(source, task, patterns, (), left)})
        there = set(wanted_tables(source, task, states, moved, left))
    finally:
        source.close()
    if not wanted:
        raise ConfigError(
            f"no table of the source matches {', '.join(patterns)}",
            where=task.name,
            hint="write schema.table",
        )
    _refuse_left_out(task, left, [t for t in wanted if t not in there])
    passed = {t: one.why for t, one in left.items() if t not in wanted and fits(t, *patterns)}
    passed |= {t: "it is captured already" for t in wanted if t in there}
    return [t for t in wanted if t not in there], passed


def _refuse_left_out(task: Task, left: Mapping[str, LeftOut], tables: Sequence[str]) -> None:
    """Raises ConfigError for tables that can never be captured, or not as they are."""
    bad = {t: left[t] for t in tables if t in left and not gets_identity(task, t, left[t])}
    if bad:
        raise ConfigError(
            "; ".join(f"{t} cannot be captured: {one.why}" for t, one in bad.items()),
            where=task.name,
            hint="; ".join(dict.fromkeys(one.cure for one in bad.values())),
        )


def _drop_now(task: Task) -> list[str]:
    """Removes the targets in this process if capture does not run; otherwise capture does it."""
    try:
        with live.lock(task.run_path, "capture", patient=False):
            baselines = ledger.read_baselines(task.control_path("baselines"))
            return drop_targets(task, orders.of_task(task.orders_path, baselines))
    except ConfigError:
        return []
