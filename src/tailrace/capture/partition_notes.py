"""The partitions of captured tables that capture has stored as notes.

Each table has its existing partitions (`there`), and the names of partitions that were attached with rows
since its newest baseline was requested (`filled`). Attached partitions that the role may not read are in
`unsure`, with the time. The partitions of a table without a note are stored as they are.
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
"""The maximum number of partitions that a message names."""


class PartitionNotes:
    """The stored partitions of a task's tables."""

    def __init__(self, task: Task) -> None:
        self._notes = Notes(task, "partitions")
        self._tables: dict[str, dict[str, Any]] = self._notes.read()
        self._unidentified: dict[str, str] = {}
        self._foreign: dict[str, str] = {}
        self._open = OpenWarnings(task, CAPTURE)

    @property
    def unidentified(self) -> Mapping[str, str]:
        """Tables whose changes do not identify the changed row, with the reason, as of the last check."""
        return self._unidentified

    def filled(self, source: LogSource, tables: Sequence[str], *, notes: bool = True) -> dict[str, str]:
        """Returns the tables that got partitions with rows, with a message. The result is stored only with
        `notes`."""
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
        """Marks the rows of new partitions as read: a new baseline is requested, or about to be read."""
        self._note({t: one | {"filled": []} for t, one in self._tables.items() if t in tables})

    def unsure(self) -> dict[str, tuple[str, dt.datetime]]:
        """Returns the tables of which rows may be missing, with the reason and the time of the newest
        partition."""
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
    """Returns the first names, and the number of the others.

    >>> _names(["s.a"]), _names(["s.a", "s.b", "s.c", "s.d"])
    ('s.a', 's.a, s.b, s.c and 1 more')
    """
    every = sorted(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
