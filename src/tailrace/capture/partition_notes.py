"""What capture knows of the partitions of its tables, as notes.

Per table the partitions that exist (`there`), and the names of those that were attached with rows since its
newest baseline was asked for (`filled`), or whose rows the role may not read (`unsure`, with the time). A
table without a note has its partitions noted as they are.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..config.task import Task
from ..sources import base
from ..sources.base import LogSource
from ..state.capture_gaps import UNSENT_ROWS
from ..state.notes import Notes
from ..state.open_warnings import CAPTURE, OpenWarnings

ATTACHED = UNSENT_ROWS + " ({}): a new baseline has them"
UNSURE = (
    "a partition was attached, and the role may not read whether it had rows, which were never sent then ({})"
)
LEFT = "partitions were detached or dropped ({}), and their rows stay in the target"
CURE = "`tailrace resync TASK {}` takes a new baseline of it"
_NAMED = 3
"""How many partitions a message names."""


class PartitionNotes:
    """The partitions of a task's tables, as they were noted last."""

    def __init__(self, task: Task) -> None:
        self._notes = Notes(task, "partitions")
        self._tables: dict[str, dict[str, Any]] = self._notes.read()
        self._unidentified: dict[str, str] = {}
        self._foreign: dict[str, str] = {}
        self._open = OpenWarnings(task, CAPTURE)

    @property
    def unidentified(self) -> Mapping[str, str]:
        """Why changes of tables do not say which row they change, as of the last look."""
        return self._unidentified

    def filled(self, source: LogSource, tables: Sequence[str], *, notes: bool = True) -> dict[str, str]:
        """The tables that got partitions with rows, and what that means. What the look has found is kept, but
        without `notes`."""
        now = source.partitions(tables, {t: one["there"] for t, one in self._tables.items()})
        new = {t: _after(self._tables.get(t), one) for t, one in now.items()}
        others = {t: why for t, why in self._unidentified.items() if t not in tables}
        self._unidentified = others | {t: one.unidentified for t, one in now.items() if one.unidentified}
        others = {t: names for t, names in self._foreign.items() if t not in tables}
        self._foreign = others | {t: _names(one.foreign) for t, one in now.items() if one.foreign}
        if notes:
            said = {t: base.FOREIGN_PARTITIONS.format(names) for t, names in self._foreign.items()}
            self._open.hold("foreign partitions", said)
            self._note(new)
        return {t: ATTACHED.format(_names(one["filled"])) for t, one in new.items() if one["filled"]}

    def settled(self, tables: Collection[str]) -> None:
        """A new baseline of these tables was asked for, or is about to be read."""
        self._note({t: one | {"filled": []} for t, one in self._tables.items() if t in tables})

    def unsure(self) -> dict[str, tuple[str, dt.datetime]]:
        """The tables of which rows may be missing, why, and since when."""
        return {
            t: (UNSURE.format(_names(one["unsure"])), dt.datetime.fromisoformat(max(one["unsure"].values())))
            for t, one in self._tables.items()
            if one["unsure"]
        }

    def _note(self, new: Mapping[str, dict[str, Any]]) -> None:
        new = {t: one for t, one in new.items() if self._tables.get(t) != one}
        before, self._tables = self._tables, {**self._tables, **new}
        self._notes.write(new)
        for table, one in new.items():
            self._say(table, before.get(table, one), one)

    def _say(self, table: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        stay = {key.split()[0] for key in now["there"]}
        left = [name for key, name in before["there"].items() if key.split()[0] not in stay]
        unsure = [name for name, at in now["unsure"].items() if before["unsure"].get(name) != at]
        for what, names in ((LEFT, left), (UNSURE, unsure)):
            if names:
                self._open.happened("partitions", table, what.format(_names(names)), CURE.format(table))


def _after(before: Mapping[str, Any] | None, now: base.Partitions) -> dict[str, Any]:
    known = before or {"filled": [], "unsure": {}}
    at = dt.datetime.now(dt.timezone.utc).isoformat()
    names = {} if before is None else {name: now.there.get(key) for key, name in before["there"].items()}
    unsure = {new: since for name, since in known["unsure"].items() if (new := names.get(name))}
    filled = [*known["filled"], *(n for n in now.filled if n not in known["filled"])]
    return {
        "there": dict(now.there),
        "filled": filled,
        "unsure": unsure | dict.fromkeys(now.unsure, at),
    }


def _names(names: Iterable[str]) -> str:
    """The first names, and how many more there are.

    >>> _names(["s.a"]), _names(["s.a", "s.b", "s.c", "s.d"])
    ('s.a', 's.a, s.b, s.c and 1 more')
    """
    every = sorted(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
