"""Tables without a replica identity: once such a table is published, its UPDATEs and DELETEs fail.

None is published, and a table that loses its identity later leaves the publication and is suspended. With
`identity: full` it gets one instead.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from ..config import logs
from ..config.policies import MEDIUM
from ..config.task import Task
from ..sources.base import Finding, LeftOut, LogSource
from ..state import orders
from ..state.orders import TableControl
from .table_selection import MovedTables, gets_identity, is_selected

logger = logging.getLogger("tailrace.capture")
LOST = "it cannot stay in the publication: "
_AGAIN = "then `tailrace resync TASK {}`"


class ReplicaIdentities:
    """Tables that wildcards leave out, and captured tables without a replica identity.

    Attributes:
        left: the source's reasons for tables that no wildcard selects, by current name.
        lost: captured tables that cannot stay in the stream, by the name under which they are known.
        waits: tables that are to get an identity, with the reason why they have none yet.
    """

    def __init__(self) -> None:
        self.left: Mapping[str, LeftOut] = {}
        self.lost: set[str] = set()
        self.waits: Mapping[str, str] = {}
        self._said: Mapping[str, str] = {}
        self._due = False

    def without(
        self,
        task: Task,
        states: Mapping[str, TableControl],
        moved: MovedTables,
        had: Collection[str],
        wanted: Sequence[str],
    ) -> list[str]:
        """Returns the wanted tables except those without a replica identity now, and suspends these with a
        reason.

        Args:
            had: tables that the task has captured.
        """
        now = {one.known: one.now for one in moved.renamed}
        before, self.lost = self.lost, set()
        for table in sorted({*had, *before}):
            name, state = now.get(table, table), states.get(table, TableControl(table))
            one = self.left.get(name)
            if one is None or not one.identity or state.member == "removed":
                continue
            if table not in now and table in moved.left:  # another table has this name
                continue
            if (gets_identity(task, table, one) and not one.by_owner) or not is_selected(task, states, table):
                continue
            self.lost.add(table)
            why = f"{LOST}{one.why}; {one.cure}; {_AGAIN.format(table)}"
            if table not in before:
                logger.warning("%s: %s", table, why, extra={"table": table})
            told = state.held == orders.SUSPENDED and state.why == why
            if task.policy(table).level >= MEDIUM and not told:
                orders.suspend(task.orders_path, table, why, who="capture")
        self._due = self.lost != before
        return [t for t in wanted if t not in self.lost]

    def due(self, task: Task, wanted: Sequence[str]) -> bool:
        """Returns whether a table has to leave the stream, or a wanted one has to get its identity."""
        return self._due or any(t in self.left and gets_identity(task, t, self.left[t]) for t in wanted)

    def give(self, source: LogSource, task: Task, tables: Sequence[str]) -> None:
        """Sets REPLICA IDENTITY FULL on the tables with that setting."""
        before, self.waits = self.waits, self._given(source, task, tables)
        for table, why in self.waits.items():
            if before.get(table) != why:
                said = "%s does not have REPLICA IDENTITY FULL yet: %s"
                logger.warning(said, table, why, extra={"table": table})

    def _given(self, source: LogSource, task: Task, tables: Sequence[str]) -> Mapping[str, str]:
        wanted = [t for t in tables if task.table(t).identity == "full"]
        return source.identify(wanted) if wanted else {}

    def say(self, task: Task) -> None:
        """Logs which tables wildcards leave out, if there are new ones."""
        before, self._said = self._said, left_out_reasons(task, self.left)
        new = {t: self.left[t] for t in self._said if t not in before}
        for one in left_out_notes(new):
            if one.level == "warning":
                logger.warning("%s; fix: %s", one.what, one.cure)
            else:
                logs.event("%s", one.what)


def left_out_reasons(task: Task, left: Mapping[str, LeftOut]) -> dict[str, str]:
    """Returns the tables that the wildcards of a task leave out, with the reason."""
    return {name: left[name].why for name in _of_wildcards(task, left)}


def _of_wildcards(task: Task, left: Mapping[str, LeftOut]) -> Iterable[str]:
    for name, one in sorted(left.items()):
        if (
            name not in task.source.tables
            and task.source.selects(name)
            and not gets_identity(task, name, one)
        ):
            yield name


def left_out_findings(task: Task, left: Mapping[str, LeftOut]) -> list[Finding]:
    """Returns a finding for each reason for which the wildcards of a task leave out tables."""
    return left_out_notes({name: left[name] for name in _of_wildcards(task, left)})


def left_out_notes(left: Mapping[str, LeftOut]) -> list[Finding]:
    """Returns tables that wildcards leave out as findings: a warning for those that a setting would include.

    >>> views = {"s.v": LeftOut("a view", "list its tables"), "s.w": LeftOut("a view", "list its tables")}
    >>> [(one.level, one.what) for one in left_out_notes(views)]
    [('note', 'wildcards leave out s.v, s.w: a view')]
    """
    by_why: dict[tuple[str, bool], list[str]] = {}
    for name, one in left.items():
        by_why.setdefault((one.why, one.identity), []).append(name)
    return [
        Finding(
            "warning" if identity else "note",
            f"wildcards leave out {', '.join(names)}: {why}",
            "source.tables",
            left[names[0]].cure,
        )
        for (why, identity), names in by_why.items()
    ]


def identity_errors(task: Task, source: LogSource, tables: Sequence[str]) -> list[Finding]:
    """Returns errors for tables that cannot be published.

    They have no replica identity, and `identity: full` is not set, or the role may not set it.
    """
    found = []
    left = source.left_out() if tables else {}
    for table in tables:
        one = left.get(table)
        if one is None or not one.identity:
            continue
        if not gets_identity(task, table, one):
            found.append(Finding("error", one.why, table, one.cure, table))
        elif one.by_owner:
            what = f"{one.why}; only its owner can set it, so `identity: full` does not"
            found.append(Finding("error", what, table, one.by_owner, table))
    return found
