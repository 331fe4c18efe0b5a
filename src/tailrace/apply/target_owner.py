"""The owner of a target: one task. Other tasks are refused before they write.

A Delta or Iceberg target stores its owner in the property `tailrace.owner`; a database has a table with the
source of each task name. The owner is the task's name with the identity of its source, as two tasks may have
the same name. A target that several sources feed (`constants` in the key) has no owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from ..config.task import Task
from ..errors import ApplyError, ConfigError, TargetLostError
from ..lake.table import LakeTables
from ..sources.base import Finding
from ..state import streams
from ..state.baselines import Baseline
from ..targets.multi_source import TargetLocation
from ..targets.postgresql import task_names
from ..targets.postgresql.connection import Database, open_session
from ..targets.task_tables import target_tables
from .mapping.table_map import applied_places

OWNER = "tailrace.owner"
"""The property of a target that names its owner."""
_APP = "tailrace/"
_TAKE = "give this task another target (`target`), or take the table over: `tailrace take-over TASK %s`"


def source_of(task: Task, identity: Mapping[str, str] | None = None) -> str:
    """The identity of a task's source as one text, by default from its newest stream; may be empty."""
    known = streams.server_of(streams.newest(task).identity if identity is None else identity)
    return "/".join(text for _, text in sorted(known.items()))


def owner_of(task: Task, identity: Mapping[str, str] | None = None) -> str:
    """The text that names a task as the owner of targets: its name and its source."""
    return f"{task.name} {source_of(task, identity)}".rstrip()


def is_same(one: str, other: str) -> bool:
    """Whether two owners are the same task, as far as their sources are known.

    >>> is_same("shop a/7", "shop a/7"), is_same("shop a/7", "shop"), is_same("shop a/7", "shop b/7")
    (True, True, False)
    """
    (name, _, source), (named, _, its) = one.partition(" "), other.partition(" ")
    return name == named and (source == its or not source or not its)


def claim(tables: LakeTables, path: str, owner: str) -> None:
    """Sets the owner of a target that has none.

    Raises:
        ApplyError: another task owns it.
    """
    present = recorded(tables, path)
    if present is None:
        set_owner(tables, path, owner)
    elif not is_same(present, owner):
        raise ApplyError(_belongs(path, present), where=path, hint=_TAKE % "TABLE")


def set_owner(tables: LakeTables, path: str, owner: str) -> None:
    """Sets the owner of a target, also if it has another one."""
    tables.set_property(path, OWNER, owner)


def recorded(tables: LakeTables, path: str) -> str | None:
    """The owner of a target; None if it has none."""
    with tables.opened(path) as now:
        return now.properties.get(OWNER)


def claim_targets(task: Task, tables: Sequence[str]) -> None:
    """Sets the task as the owner of its existing targets that have none; not in a database."""
    if task.target.database:
        return
    owner, lake_tables = owner_of(task), target_tables(task)
    for place in applied_places(task, tables).values():
        if not place.partition and lake_tables.exists(path := lake_tables.name(place.target)):
            claim(lake_tables, path, owner)


def owner_findings(
    task: Task, tables: Sequence[str], owner: str, baselines: Mapping[str, Baseline]
) -> list[Finding]:
    """Errors for targets that belong to another task; none while a database cannot be reached."""
    if not task.target.database:
        places = applied_places(task, tables).items()
        found = dict[str, str | None]()
        with suppress(TargetLostError):  # `target_findings` reports it
            found = {t: other_owner(task, at, owner, baselines.get(t)) for t, at in places}
        return [
            Finding("error", _belongs(target_tables(task).name(place.target), other), t, _TAKE % t, t)
            for t, place in places
            if (other := found.get(t))
        ]
    at, (name, _, source) = Database.of(task.target.database), owner.partition(" ")
    with suppress(ApplyError), open_session(at, at.label) as on:
        if (error := task_names.refused(on, at, name, source)) is not None:
            return [Finding("error", error.what, at.label, error.hint or "")]
    return []


def refuse_other(task: Task, place: TargetLocation, taken: Baseline) -> None:
    """Raises ConfigError if a target that had the baseline of a task belongs to another task."""
    if other := other_owner(task, place, owner_of(task), taken):
        path = target_tables(task).name(place.target)
        raise ConfigError(_belongs(path, other), where=taken.table, hint=_TAKE % taken.table)


def other_owner(task: Task, place: TargetLocation, owner: str, taken: Baseline | None) -> str | None:
    """The other task that a target belongs to; None if it belongs to no other task.

    A target without an owner belongs to the tasks that have written to it since the task's own baseline
    (`taken`).
    """
    tables = target_tables(task)
    path = tables.name(place.target)
    if not tables.exists(path):
        return None
    if (present := recorded(tables, path)) is not None:
        return None if is_same(present, owner) else present
    apps = tables.applications(path, taken.version if taken else None)
    others = {name for app in apps if app.startswith(_APP) and (name := _other(task, place, app))}
    return ",".join(sorted(others)) or None


def _other(task: Task, place: TargetLocation, app: str) -> str | None:
    """The other task that an app id belongs to; None if it is this task, or writes other rows."""
    name, _, part = app.removeprefix(_APP).partition("/")
    return None if name == task.name or (part and place.partition) else name


def _belongs(path: str, owner: str) -> str:
    name, _, source = owner.partition(" ")
    name = name.replace(",", ", ")
    return f"the target {path} belongs to the task {name}" + (f" (source {source})" if source else "")
