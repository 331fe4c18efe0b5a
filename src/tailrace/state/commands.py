"""Commands for single tables, given by an operator, a policy or tailrace itself.

The append-only table `<home>/control/commands` has a row for each; both processes of a task read it every
second or so. Nothing else says whether a table is paused, suspended, asked for or removed (`lifecycle`), so
it holds after any restart. Its columns:

| column | type | meaning |
| --- | --- | --- |
| `number` | bigint | 1, 2, 3, ...: a later command has a larger one |
| `at` | timestamp (UTC) | when |
| `table` | string | `schema.table` |
| `action` | string | a name in `ACTIONS` |
| `why` | string | the reason |
| `who` | string | the user of the command; of tailrace: `apply`, `ddl`, `capture`, `store`, `check` |
| `baseline` | bigint | `land` only: the number of the baseline |
| `target` | string | `rename`, `renamed` only: the name that the target gets, or has got |
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..lake import json_files
from . import live
from .declarations import COMMANDS
from .state_table import StateTable

PAUSE, SUSPEND, RESUME, RESYNC, ADD, REMOVE = "pause", "suspend", "resume", "resync", "add", "remove"
RESYNC_EXACT, DROP, DROPPED, LAND = "resync_exact", "drop", "dropped", "land"
RENAME, RENAMED, ANEW = "rename", "renamed", "anew"
BASELINES = (RESYNC, RESYNC_EXACT, ADD, ANEW)
"""Actions that ask for a baseline."""
CAPTURE = "capture"
"""Who gave a command: the capture process."""
TASK_FILE = "the task file"
"""Who gave `remove` and `add`: capture, because of what the task file selects."""
ACTIONS: dict[str, str] = {
    PAUSE: "apply leaves the table alone until `resume`; its changes are kept",
    SUSPEND: "the same, by tailrace itself: the reason says what has to be repaired",
    RESUME: "apply takes the changes that waited, then continues",
    RESYNC: "a new baseline replaces the target at once; it ends a suspension",
    RESYNC_EXACT: "the same in an exact window, whatever `baseline.window` says, if the source can",
    ADD: "the table is captured, after a baseline, whatever `source.tables` says",
    REMOVE: "the table is no longer captured; its target stays",
    DROP: "the same, and its target is removed",
    DROPPED: "its target has been removed",
    LAND: "the rows of a baseline are about to become the target: apply waits until they have",
    RENAME: "its target is about to be renamed: apply waits until it is",
    RENAMED: "its target has been renamed",
    ANEW: "changes of the table are lost: apply waits until a new baseline has replaced the target",
}
"""Action -> what it does."""


@dataclass(frozen=True)
class Command:
    """One command; see the module."""

    number: int
    at: dt.datetime
    table: str
    action: str
    why: str = ""
    who: str = ""
    baseline: int = 0
    target: str = ""

    @staticmethod
    def parse(row: Mapping[str, Any]) -> Command:
        """The command in a row of the table."""
        texts = (row["why"] or "", row["who"] or "")
        where = (row["number"], row["at"], row["table"], row["action"])
        return Command(*where, *texts, row["baseline"] or 0, row["target"] or "")


def give(
    path: str,
    action: str,
    tables: Iterable[str],
    *,
    why: str,
    who: str,
    baseline: int | None = None,
    target: str | None = None,
) -> int:
    """Writes a command for each table, all at once; returns the number of the last one.

    Raises:
        TailraceError: other processes give commands without a pause, or the task is dropped meanwhile.
    """
    said = {"action": action, "why": why, "who": who, "baseline": baseline, "target": target}
    return _table(path).append({"table": table, **said} for table in tables)


def suspend(path: str, table: str, why: str, *, who: str = "apply") -> int:
    """Suspends a table: its changes wait until it is resumed or gets a new baseline."""
    return give(path, SUSPEND, [table], why=why, who=who)


def resync(path: str, table: str, why: str, *, who: str = "apply", exact: bool = False) -> int:
    """Requests a new baseline of a table; it ends a suspension. Changes keep flowing in the meantime."""
    return give(path, RESYNC_EXACT if exact else RESYNC, [table], why=why, who=who)


def heard(run: str, number: int) -> bool:
    """Whether apply has acknowledged a command: the pipeline with that folder of live files has picked it up,
    or it is not running and will read commands before it begins."""
    return (
        not live.locked(run, "pipeline", sure=True)
        or int((json_files.read(run, "pipeline") or {}).get("commands", 0)) >= number
    )


def newest(path: str) -> int:
    """The number of the newest command; 0 if the table is empty."""
    return _table(path).newest


def read(path: str) -> list[Command]:
    """All commands, in order."""
    return _table(path).rows()


def _table(path: str) -> StateTable[Command]:
    return StateTable(path, COMMANDS, Command.parse)
