"""`tailrace pause | resume | resync | add | remove`: checks and gives commands for single tables.

A command is a row of `<home>/control/commands` (`state.commands`). A running task picks it up within about
two seconds; otherwise it takes effect at the next start.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ..apply.checks.target import refuse_to_drop
from ..apply.mapping.table_map import applied_places
from ..apply.required_changes import Needs
from ..apply.target_owner import owner_of, set_owner
from ..capture.ddl_watch import moved_tables
from ..capture.table_selection import drop_targets, gets_identity, select_tables, wanted_tables
from ..config.policies import MEDIUM
from ..config.task import Task
from ..errors import ConfigError
from ..lake import json_files, log
from ..model.nearest import meant
from ..model.patterns import fits, fitting
from ..sources import open_source
from ..sources.base import LeftOut
from ..state import commands, lifecycle, live, streams
from ..state.commands import ADD, DROP, PAUSE, REMOVE, RESUME, RESYNC
from ..state.lifecycle import TableLifecycle, TableStates
from ..targets.task_tables import target_tables


@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    Attributes:
        action: the command.
        tables: the tables that it was given for.
        passed: tables that match the patterns and need no such command, with the reason.
        order: the number of the last command; 0 for a dry run, or if no table needs it.
        running: the processes of the task that run and follow it; without them it takes effect at the next
            start.
        dropped: tables whose target has been removed already.
    """

    action: str
    tables: list[str]
    passed: dict[str, str] = field(default_factory=dict)
    order: int = 0
    dry_run: bool = False
    running: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Returns it for `--json`."""
        return asdict(self)


def give(
    task: Task,
    action: str,
    patterns: Sequence[str],
    *,
    why: str = "",
    dry_run: bool = False,
    drop_target: bool = False,
    replace_archives: bool = False,
) -> CommandResult:
    """Gives a command for all tables that match the patterns (`schema.table`, `*`, `?`).

    Args:
        task: the task, running or not.
        action: `pause`, `resume`, `resync`, `add` or `remove`.
        patterns: the tables; for `add` those of the source, otherwise those of the task.
        why: the reason, which `status` shows.
        dry_run: returns the tables without giving the command.
        drop_target: `remove` only: the target is removed as well.
        replace_archives: `resync` and `add` only: archives may lose the changes that they have kept.

    Raises:
        ConfigError: a pattern matches no table, or the command does not apply to a table.
    """
    states = lifecycle.read(task)
    if action == ADD:
        chosen, passed = _joining(task, states, patterns)
    else:
        mine = matching(known(task, states), patterns, task.name)
        reasons = {t: _passed(action, states[t], drop_target) for t in mine}
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
        return CommandResult(action, chosen, passed, 0, dry_run, running)
    reason = why or f"ordered with tailrace {action}"
    number = commands.give(task.commands_path, action, chosen, why=reason, who=user())
    gone: list[str] = []
    if drop_target:
        number = commands.give(task.commands_path, DROP, chosen, why=reason, who=user())
        gone = _drop_now(task)
    return CommandResult(action, chosen, passed, number, False, running, [t for t in gone if t in chosen])


def renew_stream(
    task: Task, *, why: str = "", dry_run: bool = False, replace_archives: bool = False
) -> CommandResult:
    """Requests a new stream and new baselines of all tables. Changes in the source's log since then are lost.

    Capture creates them when it starts: targets wait for their baselines, the old slot is dropped, a new one
    is created, and the tables are read in its snapshot. The result has the stream's number as `order`.

    Raises:
        ConfigError: the task runs, or has read nothing yet; or archives would lose changes without
            `replace_archives`.
    """
    states = lifecycle.read(task)
    mine = [t for t in known(task, states) if not states[t].removed]
    if not replace_archives:
        _refuse_archives(task, mine)
    if dry_run:
        live.refuse(task.run_path, "capture")
        streams.refuse_unread(task)
        return CommandResult(RESYNC, mine, {}, 0, dry_run)
    reason = why or "ordered with tailrace resync --new-stream"
    return CommandResult(RESYNC, mine, {}, streams.give_up(task, who=user(), why=reason))


def take_over(task: Task, patterns: Sequence[str]) -> list[str]:
    """Makes this task the owner of the targets of tables; returns the tables.

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
    tables = target_tables(task)
    paths = {t: path for t, at in places.items() if tables.exists(path := tables.name(at.target))}
    if not paths:
        raise ConfigError(f"no table that matches {', '.join(patterns)} has a target", where=task.target.path)
    for path in paths.values():
        set_owner(tables, path, owner)
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
    """Returns the user who gives a command."""
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return "unknown"


def known(task: Task, states: TableStates) -> list[str]:
    """Returns all tables that the task has or had: captured, named by a command, or with a baseline."""
    captured = (json_files.read(task.run_path, "capture") or {}).get("tables") or []
    return sorted({*captured, *log.history(task.relations_path), *states})


def tables_of(task: Task) -> list[str]:
    """Returns the tables that the task has or had."""
    return known(task, lifecycle.read(task))


def captured_of(task: Task) -> list[str]:
    """Returns the tables that the task has, without removed ones."""
    states = lifecycle.read(task)
    return [t for t in known(task, states) if not states[t].removed]


def matching(there: Sequence[str], patterns: Iterable[str], task: str) -> list[str]:
    """Returns the tables that match patterns, sorted; ConfigError for a pattern that matches none.

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


def _passed(action: str, state: TableLifecycle, drop_target: bool) -> str | None:
    """Returns why a table does not need a command; None if it does."""
    removed = state.removed
    if removed and not (action == REMOVE and drop_target):
        return "it is removed; `tailrace add` brings it back" if action != REMOVE else "it is removed already"
    if action == PAUSE and state.held:
        return f"it is {state.held} already: {state.why}"
    if action == RESUME and not state.held:
        return "it is neither paused nor suspended"
    return None


def _joining(task: Task, states: TableStates, patterns: Sequence[str]) -> tuple[list[str], dict[str, str]]:
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
            return drop_targets(task, lifecycle.read(task))
    except ConfigError:
        return []
