"""What capture knows of the partitions of its tables: `<home>/control/partitions.json`.

Per table the partitions that there are (`there`), and the names of those that were attached with rows since
its newest baseline was asked for (`filled`), or of which nobody may look whether they were (`unsure`, with
the time). A table that is not in the file, because it is new or an earlier release has captured it, has its
partitions noted as they are.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..config.task import Task
from ..lake import json_files
from ..sources import base
from ..sources.base import LogSource
from ..state.capture_gaps import UNSENT_ROWS

logger = logging.getLogger("tailrace.capture")

ATTACHED = UNSENT_ROWS + " ({}): a new baseline has them"
UNSURE = (
    "a partition was attached, and the role may not read whether it had rows, which were never sent then ({})"
)
LEFT = "partitions were detached or dropped ({}), and their rows stay in the target"
CURE = "`tailrace resync TASK {}` takes a new baseline of it"
_NAME = "partitions"
_NAMED = 3
"""How many partitions a message names."""


class PartitionNotes:
    """The partitions of a task's tables, as they were noted last."""

    def __init__(self, task: Task) -> None:
        self._folder = f"{task.home}/control"
        found = json_files.read(self._folder, _NAME) or {}
        self._tables: dict[str, dict[str, Any]] = found.get("tables", {})
        self._unidentified: dict[str, str] = {}
        self._foreign: dict[str, str] = {}

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
        self._say_foreign(now)
        if notes:
            self._note(new)
        return {t: ATTACHED.format(_names(one["filled"])) for t, one in new.items() if one["filled"]}

    def _say_foreign(self, now: Mapping[str, base.Partitions]) -> None:
        """Warns of foreign tables among the partitions, once a process."""
        for table, one in now.items():
            said = base.FOREIGN_PARTITIONS.format(_names(one.foreign)) if one.foreign else ""
            if said and said != self._foreign.get(table):
                logger.warning("%s: %s", table, said, extra={"table": table})
            self._foreign[table] = said

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
        if all(self._tables.get(t) == one for t, one in new.items()):
            return
        before, self._tables = self._tables, {**self._tables, **new}
        json_files.write(self._folder, _NAME, {"tables": self._tables})
        for table, one in new.items():
            _say(table, before.get(table, one), one)


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


def _say(table: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    stay = {key.split()[0] for key in now["there"]}
    left = [name for key, name in before["there"].items() if key.split()[0] not in stay]
    unsure = [name for name, at in now["unsure"].items() if before["unsure"].get(name) != at]
    for what, names in ((LEFT, left), (UNSURE, unsure)):
        if names:
            said = what.format(_names(names))
            logger.warning("%s: %s; %s", table, said, CURE.format(table), extra={"table": table})


def _names(names: Iterable[str]) -> str:
    """The first names, and how many more there are.

    >>> _names(["s.a"]), _names(["s.a", "s.b", "s.c", "s.d"])
    ('s.a', 's.a, s.b, s.c and 1 more')
    """
    every = sorted(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
