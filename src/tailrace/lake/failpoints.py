"""Named points beside each durable write at which a test can kill, fail or pause a process.

`TAILRACE_FAIL=name[:nth[:kill|error|pause]]` activates one in a process and its children. The `nth` time (1
by default) that a process reaches it, the process is killed with SIGKILL (the default), gets an
`InjectedError`, or pauses for `PAUSE_S` seconds. Each process counts separately.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from ..errors import ConfigError, TailraceError

VARIABLE = "TAILRACE_FAIL"
PAUSE_S = 3.0
ACTIONS = ("kill", "error", "pause")

POINTS: dict[str, str] = {
    "log.relations": "capture, before the relation history",
    "log.commit": "capture, before a commit of LOG; its layouts are written",
    "log.committed": "capture, after the commit, before the source is acknowledged",
    "log.acknowledged": "capture, after the source is acknowledged",
    "streams.record": "capture, before a row of `streams`",
    "capture.slot": "capture, after the slot is created, before anything is read",
    "windows.opened": "an open window: the target has the rows, but this is not recorded",
    "windows.mark": "an open window is recorded, but its token is not written",
    "windows.token": "the token is in LOG, but not recorded",
    "windows.close": "the token is recorded, but the baseline is not closed",
    "baseline.part": "a process that reads a baseline, before it finishes a part",
    "baseline.quarantine": "before the bad values of a baseline are quarantined",
    "baseline.land": "apply does not write to the target, which has the old rows",
    "baseline.landed": "the target has the new rows, but the baseline is not recorded",
    "baselines.record": "before a row of `baselines`",
    "commands.give": "before a command is written",
    "state.note": "before a note about a table is written",
    "ddl.event": "before DDL events are recorded",
    "ddl.decision": "before decisions on them are recorded",
    "ddl.history": "before rows of `attrep_ddl_history`",
    "rename.target": "a target's new name is recorded, but it still has the old one",
    "rename.moved": "the target has the new name, but this is not recorded",
    "membership.dropped": "a removed table's target is deleted, but this is not recorded",
    "drop.targets": "the targets of a dropped task are deleted, the source's slot is not",
    "drop.source": "the source's slot is deleted, the task's folders are not",
    "store.layout": "before a change table gets columns",
    "store.retype": "before a change table is rewritten with other types",
    "store.behind": "before a table records that it is complete after a gap in LOG",
    "store.part": "a store task, before it finishes its parts",
    "store.quarantine": "before the bad values of a batch are quarantined",
    "store.change_table": "before each change table of a batch",
    "store.stored": "after the last change table, before `stored`",
    "store.tracking": "before TRACKING",
    "store.tracked": "after TRACKING",
    "apply.exceptions": "before exceptions",
    "apply.layout": "before a target is changed to a new layout",
    "delta.local": "before the commit of a merge that rewrites files",
    "delta.merged": "after the commit of a merge that rewrites files",
    "delta.distributed": "before Spark's MERGE",
    "delta.distributed.done": "after Spark's MERGE",
    "delta.load": "before the commit of a mapped table's baseline",
    "delta.rewrite": "before the commit of a table rewritten with a new layout",
    "postgresql.commit": "at the end of a batch's transaction, before its commit",
    "postgresql.committed": "after the commit of a batch",
    "postgresql.land": "at the end of the transaction of a baseline, before its commit",
    "keylog.parts": "after the target, before the key log's parts are collected",
    "keylog.flush": "before the key log's commit",
    "keylog.flushed": "after the key log's commit",
    "apply.mapped": "before a row of `mapped`",
    "apply.staging": "before a staging table is removed",
    "apply.errors": "before a row of `errors`",
    "apply.record": "targets have the batch, `applied` does not",
    "apply.recorded": "after `applied`",
    "control.change": "before a control table of the key log is rewritten",
    "control.consumers": "before the consumers of a task or a key log are rewritten",
    "maintain.trim": "before old records or changes are removed from a table",
    "maintain.compact": "before files are compacted",
    "history.exchange": "a history's events have a batch, its versions do not",
    "history.columns": "a history's events have a new column, its versions do not",
    "history.forget": "before events of a history are removed",
    "ledger.replace": "new files of `stored` or `applied` are written, before their commit",
    "maintain.forget": "before an unneeded commit is deleted from a table's log",
    "maintain.vacuum": "before files are deleted",
}
"""Fail points by name: the state at that point."""


class InjectedError(TailraceError):
    """Raised by the action `error`."""


@dataclass
class _Armed:
    name: str
    left: int
    action: str


def parse(text: str) -> tuple[str, int, str]:
    """Returns the name, the count and the action in the variable's value.

    >>> parse("log.commit"), parse("log.commit:3:error")
    (('log.commit', 1, 'kill'), ('log.commit', 3, 'error'))
    """
    name, _, rest = text.partition(":")
    number, _, action = rest.partition(":")
    if name not in POINTS or not (number or "1").isdigit() or (action or ACTIONS[0]) not in ACTIONS:
        raise ConfigError(
            f"{text!r} is not a fail point",
            where=VARIABLE,
            hint=f"use name[:nth[:{'|'.join(ACTIONS)}]], where name is one of {', '.join(POINTS)}",
        )
    return name, int(number or 1), action or ACTIONS[0]


_armed = _Armed(*parse(os.environ[VARIABLE])) if os.environ.get(VARIABLE) else None


def arm(text: str | None) -> None:
    """Activates a fail point in this process, as the variable does; None deactivates it."""
    global _armed  # noqa: PLW0603 - one per process, like the variable
    _armed = _Armed(*parse(text)) if text else None


def armed() -> bool:
    """Returns whether a fail point is active and will still fire."""
    return _armed is not None and _armed.left > 0


def reach(name: str) -> None:
    """Marks that the process has reached a fail point, and fires it if it is due."""
    if _armed is not None and _armed.name == name:
        _met(_armed)


def _met(one: _Armed) -> None:
    one.left -= 1
    if one.left:
        return
    if one.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if one.action == "error":
        raise InjectedError(f"fail point {one.name}", where=VARIABLE, hint="unset it")
    time.sleep(PAUSE_S)
