"""Tables that the task file no longer selects, or selects again: capture gives the commands of `tailrace
remove` and `tailrace add`.

Such a table is `TableLifecycle.unlisted`. If the task file selects it again, it is added with a new baseline,
because its changes in between are in no change table. A table that an operator removed is added only by
`tailrace add`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ..apply.required_changes import Needs
from ..config.task import Task
from ..errors import ApplyError
from ..state import commands, streams
from ..state.open_warnings import CAPTURE, OpenWarnings
from .table_selection import KnownTables, is_selected

logger = logging.getLogger("tailrace.capture")

LEFT = "the task file no longer selects it"
BACK = "the task file selects it again"


def find_unlisted(
    task: Task, known: KnownTables, wanted: Collection[str], gone: Collection[str]
) -> list[str]:
    """Returns the tables that the task has had, and that neither its file nor a command selects any more.

    Wanted and dropped tables are not among them.
    """
    had = {*known.baselines, *streams.newest(task).published} - {*wanted, *gone}
    removed = {t for t, one in known.states.items() if one.removed}
    return sorted(t for t in had - removed if not is_selected(task, known.states, t))


def remove_unlisted(task: Task, tables: Collection[str]) -> None:
    """Removes tables from the task as `tailrace remove` does; their targets stay."""
    commands.give(task.commands_path, commands.REMOVE, tables, why=LEFT, who=commands.TASK_FILE)
    cure = "targets stay; `tailrace remove TASK TABLE --drop-target` removes one"
    logger.warning("%s: no longer captured: %s; %s", ", ".join(tables), LEFT, cure)


def add_listed_again(task: Task, known: KnownTables) -> bool:
    """Adds tables that the task file selects again, as `tailrace add` does; returns whether there are any.

    Archives are not added, because a baseline would replace their rows.
    """
    back = _again(task, known, archives=False)
    if back:
        commands.give(task.commands_path, commands.ADD, back, why=BACK, who=commands.TASK_FILE)
    return bool(back)


def warn_of_archives(task: Task, known: KnownTables) -> None:
    """Warns of archives that the task file selects again, as only a command adds them."""
    what = f"not captured, though {BACK}"
    cure = "`tailrace add TASK TABLE` captures it again, and a new baseline replaces the archive's rows"
    waiting = _again(task, known, archives=True)
    OpenWarnings(task, CAPTURE).hold("archives", dict.fromkeys(waiting, what), cure)


def _again(task: Task, known: KnownTables, *, archives: bool) -> list[str]:
    """Returns tables that the task file selected no longer, and selects again: archives with
    rows, or others."""
    listed = sorted(t for t, one in known.states.items() if one.unlisted and task.source.selects(t))
    return [t for t in listed if (task.keeps_changes(t) and _filled(task, known, t)) is archives]


def _filled(task: Task, known: KnownTables, table: str) -> bool:
    """Returns whether a target has rows that a baseline would replace; True if it cannot be queried."""
    if table in known.baselines:
        return True
    try:
        return bool(Needs(task).written([table]))
    except ApplyError:
        return True
