"""Named points at each durable write where a test can end, fail or pause a process; off otherwise.

`TAILRACE_FAIL=name[:nth[:kill|error|pause]]` turns one on, in a process and those that it starts: the `nth`
time (1 by default) that a process comes to the place it is killed with SIGKILL (the default), gets an
`InjectedError`, or stands still for `PAUSE_S` seconds. Each process counts for itself.
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
    "log.committed": "capture, after it; the source has not been told",
    "log.acknowledged": "capture, after the source has been told",
    "streams.record": "capture, before a row of `streams`",
    "capture.slot": "capture, when the slot is created and nothing is read",
    "windows.opened": "an open window: the rows are the target, but that is not recorded",
    "windows.mark": "an open window is recorded, its token not written",
    "windows.token": "the token is in LOG, but not recorded",
    "windows.close": "the token is recorded, but the baseline is not closed",
    "baseline.part": "a process that reads a baseline, before it finishes a part",
    "baseline.quarantine": "before the bad values of a baseline are quarantined",
    "baseline.land": "apply leaves the target alone, its rows are the old ones",
    "baseline.landed": "its rows are the new ones, but the baseline is not recorded",
    "baselines.record": "before a row of `baselines`",
    "orders.give": "before an order is written",
    "ddl.event": "before DDL events are recorded",
    "ddl.decision": "before decisions on them are recorded",
    "ddl.history": "before rows of `attrep_ddl_history`",
    "rename.target": "a target's new name is ordered, it still has the old one",
    "rename.moved": "it has the new one, but that is not recorded",
    "membership.dropped": "a removed table's target is gone, but that is not recorded",
    "drop.targets": "the targets of a dropped task are gone, what the source keeps is not",
    "drop.source": "what the source keeps is gone, the task's folders are not",
    "store.layout": "before a change table gets columns",
    "store.retype": "before a change table is rewritten with other types",
    "store.behind": "before a table records that it is complete after a gap in LOG",
    "store.part": "a store task, before it finishes its parts",
    "store.quarantine": "before the bad values of a batch are quarantined",
    "store.change_table": "before each change table of a batch",
    "store.stored": "after the last one, before `stored`",
    "store.tracking": "before TRACKING",
    "store.tracked": "behind it",
    "apply.exceptions": "before exceptions",
    "apply.layout": "before a target is changed to a new layout",
    "delta.local": "before the commit of a merge that writes files anew",
    "delta.merged": "behind it",
    "delta.distributed": "before a MERGE or replace by key of Spark",
    "delta.distributed.done": "behind it",
    "delta.load": "before the commit of a mapped table's baseline",
    "delta.rewrite": "before the commit of a table rewritten with a new layout",
    "postgresql.commit": "the last thing in the transaction of a batch",
    "postgresql.committed": "behind it",
    "postgresql.land": "the last thing in the transaction that makes a baseline the target",
    "keylog.parts": "after the target, before the key log's parts are collected",
    "keylog.flush": "before the key log's commit",
    "keylog.flushed": "behind it",
    "apply.mapped": "before a row of `mapped`",
    "apply.staging": "before a staging table is removed",
    "apply.errors": "before a row of `errors`",
    "apply.record": "targets have the slice, `applied` does not",
    "apply.recorded": "behind `applied`",
    "control.change": "before a control table of the key log is rewritten",
    "control.consumers": "before the consumers of a task or a key log are rewritten",
    "maintain.trim": "before old records or changes are removed from a table",
    "maintain.compact": "before files are compacted",
    "history.exchange": "a history has the events of a batch, its versions do not",
    "history.columns": "the events of a history have a new column, its versions do not",
    "history.forget": "before events of a history are taken out",
    "ledger.replace": "`stored` or `applied` is rolled up or trimmed in new files, before their commit",
    "maintain.forget": "before an unneeded commit is deleted from a table's log",
    "maintain.vacuum": "before files are deleted",
}
"""Name -> what has been done at that point, and what has not."""


class InjectedError(TailraceError):
    """What `error` raises."""


@dataclass
class _Armed:
    name: str
    left: int
    action: str


def parse(text: str) -> tuple[str, int, str]:
    """The name, the count and the action in the variable's value.

    >>> parse("log.commit"), parse("log.commit:3:error")
    (('log.commit', 1, 'kill'), ('log.commit', 3, 'error'))
    """
    name, _, rest = text.partition(":")
    number, _, action = rest.partition(":")
    if name not in POINTS or not (number or "1").isdigit() or (action or ACTIONS[0]) not in ACTIONS:
        raise ConfigError(
            f"{text!r} is not a fail point",
            where=VARIABLE,
            hint=f"name[:nth[:{'|'.join(ACTIONS)}]], where name is one of {', '.join(POINTS)}",
        )
    return name, int(number or 1), action or ACTIONS[0]


_armed = _Armed(*parse(os.environ[VARIABLE])) if os.environ.get(VARIABLE) else None


def arm(text: str | None) -> None:
    """Turns a fail point on in this process, as the variable does; None turns it off."""
    global _armed  # noqa: PLW0603 - one per process, like the variable
    _armed = _Armed(*parse(text)) if text else None


def armed() -> bool:
    """Whether a fail point is on and has not been reached as often as required."""
    return _armed is not None and _armed.left > 0


def reach(name: str) -> None:
    """Marks that the process has reached a fail point."""
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
