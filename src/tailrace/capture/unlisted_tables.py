"""Tables that the task file selects no longer, or selects again: capture gives the orders that an operator
would give with `tailrace remove` and `tailrace add`.

Such a table is `TableLifecycle.unlisted`: it comes back with the task file, and then with a new baseline,
because its changes in between are in no change table. What an operator removes only `add` brings back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ..apply.needs import Needs
from ..config.task import Task
from ..errors import ApplyError
from ..state import commands, streams
from ..state.open_warnings import CAPTURE, OpenWarnings
from .table_selection import Known, chosen

logger = logging.getLogger("tailrace.capture")

LEFT = "the task file does not select it any more"
BACK = "the task file selects it again"


def left_out(task: Task, known: Known, wanted: Collection[str], gone: Collection[str]) -> list[str]:
    """The tables that the task has had, and that neither its file nor an order selects any more: not those
    that are `wanted`, nor those that are gone."""
    had = {*known.baselines, *streams.newest(task).published} - {*wanted, *gone}
    removed = {t for t, one in known.states.items() if one.removed}
    return sorted(t for t in had - removed if not chosen(task, known.states, t))


def leave(task: Task, tables: Collection[str]) -> None:
    """Removes tables from the task as `tailrace remove` does: their targets stay."""
    commands.give(task.commands_path, commands.REMOVE, tables, why=LEFT, who=commands.TASK_FILE)
    cure = "targets stay; `tailrace remove TASK TABLE --drop-target` removes one"
    logger.warning("%s: no longer captured: %s; %s", ", ".join(tables), LEFT, cure)


def come_back(task: Task, known: Known) -> bool:
    """Adds tables that the task file selects again as `tailrace add` does, but no archives: a baseline
    replaces what they have kept. Returns whether there are any."""
    back = _again(task, known, archives=False)
    if back:
        commands.give(task.commands_path, commands.ADD, back, why=BACK, who=commands.TASK_FILE)
    return bool(back)


def warn_of_archives(task: Task, known: Known) -> None:
    """Says which archives the task file selects again, and that only an order brings them back."""
    what = f"not captured, though {BACK}"
    cure = "`tailrace add TASK TABLE` captures it again, and a new baseline replaces what the archive has"
    waiting = _again(task, known, archives=True)
    OpenWarnings(task, CAPTURE).hold("archives", dict.fromkeys(waiting, what), cure)


def _again(task: Task, known: Known, *, archives: bool) -> list[str]:
    """Tables that left with the task file, and that it selects again: archives that have rows, or others."""
    listed = sorted(t for t, one in known.states.items() if one.unlisted and task.source.selects(t))
    return [t for t in listed if (task.keeps_changes(t) and _filled(task, known, t)) is archives]


def _filled(task: Task, known: Known, table: str) -> bool:
    """Whether a target has rows that a baseline would replace; it counts as one that has while it cannot be
    asked."""
    if table in known.baselines:
        return True
    try:
        return bool(Needs(task).written([table]))
    except ApplyError:
        return True
