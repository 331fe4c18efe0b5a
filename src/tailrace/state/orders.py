"""Control of single tables: orders given by an operator, a policy or tailrace itself, and the resulting
state.

`<home>/control/orders` is a small Delta table that is only ever added to; both processes of a task look at it
every second or so. Nothing else says whether a table is paused, suspended, asked for or removed, so it holds
after any restart. Its columns:

| column | type | meaning |
| --- | --- | --- |
| `number` | bigint | 1, 2, 3, ...: a later order has a larger one |
| `ordered_at` | timestamp (UTC) | when |
| `table` | string | `schema.table` |
| `action` | string | a name in `ACTIONS` |
| `why` | string | the reason, in words |
| `who` | string | the user of the command; of tailrace: `apply`, `ddl`, `capture`, `store`, `check` |
| `baseline` | bigint | `land`: the number of the baseline; `pause`: 1, as it holds on under a suspension |
| `target` | string | `rename`, `renamed` only: the name that the target gets, or has got |

A table that asks for a baseline gets one: the `baselines` record names the order that it answers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from ..errors import OvertakenError, TailraceError
from ..lake import delta as lake
from ..lake import json_files, removed
from ..lake.failpoints import reach
from . import live

PAUSE, SUSPEND, RESUME, RESYNC, ADD, REMOVE = "pause", "suspend", "resume", "resync", "add", "remove"
RESYNC_EXACT, DROP, DROPPED, LAND = "resync_exact", "drop", "dropped", "land"
RENAME, RENAMED, ANEW = "rename", "renamed", "anew"
PAUSED, SUSPENDED = "paused", "suspended"
BASELINES = (RESYNC, RESYNC_EXACT, ADD, ANEW)
"""Actions that ask for a baseline."""
_WHILE_FOLLOWED = (PAUSE, SUSPEND, RESUME, RESYNC, RESYNC_EXACT, ANEW)
"""Actions that are nothing to a table that was removed, perhaps by a command at the same moment."""
CAPTURE = "capture"
"""Who gave an order: the capture process."""
TASK_FILE = "the task file"
"""Who gave `remove` and `add`: capture, because of what the task file selects."""
ACTIONS: dict[str, str] = {
    PAUSE: "apply leaves the table alone until `resume`; its changes are kept",
    SUSPEND: "the same, ordered by tailrace: the reason says what has to be repaired",
    RESUME: "apply takes the changes that waited, then goes on",
    RESYNC: "a new baseline replaces the target at once; it ends a suspension",
    RESYNC_EXACT: "the same in an exact window, whatever `baseline.window` says, if the source can",
    ADD: "the table is captured, after a baseline, whatever `source.tables` says",
    REMOVE: "the table is no longer captured; its target stays",
    DROP: "the same, and its target is removed",
    DROPPED: "its target has been removed",
    LAND: "the rows of a baseline are about to become the target: apply waits until they have",
    RENAME: "its target is about to be renamed: apply waits until it is",
    RENAMED: "it has",
    ANEW: "changes of the table are lost: apply waits until a new baseline has replaced the target",
}
"""Action -> what it does."""

SCHEMA = pa.schema(
    [
        ("number", pa.int64()), ("ordered_at", pa.timestamp("us", "UTC")), ("table", pa.string()),
        ("action", pa.string()), ("why", pa.string()), ("who", pa.string()), ("baseline", pa.int64()),
        ("target", pa.string()),
    ]
)  # fmt: skip
APP = "tailrace/orders"
_HELD = {PAUSE: PAUSED, SUSPEND: SUSPENDED}
_LASTS = 1
"""In `baseline` of a pause: it holds on under a suspension. (Earlier releases ended it with that; the tables
that went on then are to go on now.)"""
_TRIES = 100


@dataclass(frozen=True)
class Order:
    """One order; see the module."""

    number: int
    at: dt.datetime
    table: str
    action: str
    why: str = ""
    who: str = ""
    baseline: int = 0
    target: str = ""


@dataclass(frozen=True)
class TableControl:
    """The state of one table that results from the orders.

    Attributes:
        member: `file` (as the task file says), `added` or `removed`.
        unlisted: it was removed because the task file selects it no longer: it comes back with the file.
        held: `paused`, `suspended` or, when nobody told apply to leave its changes alone, empty.
        pause: the order that paused it, which holds on under a suspension; None: it is not paused.
        why, who, since: of what holds it, of its removal, or of the order that asks for a baseline.
        wanted: number of the newest order that asks for a baseline and has none yet; 0: none does.
        exact: that baseline is to be read in an exact window.
        landing: number of the baseline that is about to replace the target; 0: none is.
        gap: changes are missing between its target and what is captured now: it was removed for a while, or
            the source's log was lost.
        dropped: number of the order that its target is to go; 0: it stays.
        gone: it is gone.
        target: the name of its target; empty: the table's own, or the one its mapping says.
        moving: the name that its target is about to get; empty: it keeps the one it has.
        move: number of the order that says so; 0: none does.
    """

    table: str
    member: str = "file"
    unlisted: bool = False
    held: str = ""
    pause: Order | None = None
    why: str = ""
    who: str = ""
    since: dt.datetime | None = None
    wanted: int = 0
    exact: bool = False
    landing: int = 0
    gap: bool = False
    dropped: int = 0
    gone: bool = False
    target: str = ""
    moving: str = ""
    move: int = 0

    @property
    def busy(self) -> bool:
        """Whether capture is changing its target: a baseline replaces it, or it is being renamed."""
        return bool(self.landing or self.moving)

    @property
    def superseded(self) -> bool:
        """Whether the baseline that it has is to get into its target no more: another one comes, or none."""
        return bool(self.wanted or self.landing or self.gap or self.member == "removed")

    @property
    def waits(self) -> bool:
        """Whether apply leaves the table's changes alone."""
        return bool(self.held or self.gap or self.busy)


class Answered(Protocol):
    """The part of a baseline that orders depend on."""

    @property
    def order(self) -> int:
        """Number of the newest order of its table when it began; 0 if there was none."""

    @property
    def number(self) -> int:
        """The baseline's own number: 1, 2, 3, ... of its table."""


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
    """Writes an order for each table, all at once; returns the number of the last one.

    Raises:
        TailraceError: others give orders without a pause, or the task is dropped meanwhile.
    """
    wanted = list(tables)
    for _ in range(_TRIES if wanted else 0):
        there, now = lake.progress(path, APP), dt.datetime.now(dt.timezone.utc)
        orders = [
            {"number": n, "ordered_at": now, "table": t, "action": action, "why": why, "who": who,
             "baseline": _LASTS if action == PAUSE else baseline, "target": target}
            for n, t in enumerate(wanted, max(there, 0) + 1)
        ]  # fmt: skip
        upto = max(there, 0) + len(orders)
        try:
            with removed.told(path):
                _write(path, orders, there, upto)
            return upto
        except (
            OvertakenError,
            CommitFailedError,
        ):  # another process used these numbers, or created the table
            continue
    if wanted:
        raise TailraceError(
            "other orders come faster than this one can be written", where=path, hint="run the command again"
        )
    return newest(path)


def _write(path: str, orders: Sequence[Mapping[str, Any]], there: int, upto: int) -> None:
    reach("orders.give")
    if lake.exists(path):  # perhaps created by an earlier release
        lake.add_columns(path, list(SCHEMA))
    lake.append(path, pa.Table.from_pylist(orders, SCHEMA), progress={APP: upto}, after={APP: there})


def suspend(path: str, table: str, why: str, *, who: str = "apply") -> int:
    """Suspends a table: its changes wait until it is resumed or gets a new baseline."""
    return give(path, SUSPEND, [table], why=why, who=who)


def resync(path: str, table: str, why: str, *, who: str = "apply", exact: bool = False) -> int:
    """Requests a new baseline of a table; it ends a suspension. Changes keep flowing in the meantime."""
    return give(path, RESYNC_EXACT if exact else RESYNC, [table], why=why, who=who)


def heard(run: str, number: int) -> bool:
    """Whether apply has acknowledged an order: the pipeline with that folder of live files has picked it up,
    or it is not running and will read orders before it begins."""
    return (
        not live.locked(run, "pipeline", sure=True)
        or int((json_files.read(run, "pipeline") or {}).get("orders", 0)) >= number
    )


def newest(path: str) -> int:
    """The number of the newest order; 0 if there is none."""
    return max(lake.progress(path, APP), 0)


def read(path: str) -> list[Order]:
    """All orders, in order; empty if there are none."""
    if not lake.exists(path):
        return []
    with removed.told(path):
        return parsed(lake.read(path))


def parsed(rows: pa.Table) -> list[Order]:
    """The rows of an orders table, in order."""
    return [
        Order(
            r["number"], r["ordered_at"], r["table"], r["action"], r["why"] or "", r["who"] or "",
            r["baseline"] or 0, r.get("target") or "",
        )
        for r in sorted(rows.to_pylist(), key=lambda r: r["number"])
    ]  # fmt: skip


def states(orders: Iterable[Order], baselines: Mapping[str, Answered]) -> dict[str, TableControl]:
    """The state of each table that the orders name, given the newest baseline of each table.

    >>> at = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    >>> orders = [Order(1, at, "s.t", "suspend", "n became text", "ddl"), Order(2, at, "s.t", "resync")]
    >>> found = states(orders, {})["s.t"]
    >>> found.held, found.why, found.wanted, found.waits
    ('suspended', 'n became text', 2, True)
    """
    found: dict[str, TableControl] = {}
    for one in orders:
        before = found.get(one.table, TableControl(one.table))
        found[one.table] = followed(before, one, baselines.get(one.table))
    return found


def of_task(path: str, baselines: Mapping[str, Answered]) -> dict[str, TableControl]:
    """The same for an orders table."""
    return states(read(path), baselines)


def paused(path: str, baselines: Mapping[str, Answered]) -> dict[str, TableControl]:
    """The tables whose changes wait, and why."""
    return {t: one for t, one in of_task(path, baselines).items() if one.waits}


def target_names(states: Mapping[str, TableControl]) -> dict[str, str]:
    """The names of targets that differ from their tables' names.

    >>> target_names({"s.t": TableControl("s.t", target="s.u"), "s.v": TableControl("s.v")})
    {'s.t': 's.u'}
    """
    return {t: one.target for t, one in states.items() if one.target}


def followed(state: TableControl, one: Order, taken: Answered | None) -> TableControl:
    """The state of a table after an order, given its newest baseline."""
    said: dict[str, Any] = {"why": one.why, "who": one.who, "since": one.at}
    if state.member == "removed" and one.action in _WHILE_FOLLOWED:
        return state
    if one.action in (PAUSE, SUSPEND):
        stays = one.action == PAUSE and state.held == SUSPENDED
        if one.action == PAUSE and (one.baseline == _LASTS or not stays):
            state = replace(state, pause=one)
        elif state.pause is not None and state.pause.baseline != _LASTS:
            state = replace(state, pause=None)
        return state if stays else replace(state, **said, held=_HELD[one.action])
    if one.action in BASELINES:
        return _asked(state, said, one, taken is not None and taken.order >= one.number)
    if one.action in (LAND, DROP, DROPPED, RENAME, RENAMED):
        return _at_target(state, one, taken)
    if one.action == REMOVE:
        unlisted = one.who == TASK_FILE
        state = replace(state, **said, member="removed", unlisted=unlisted)
        return replace(state, held="", pause=None, wanted=0, landing=0, gap=True)
    return _free(state)


def _at_target(state: TableControl, one: Order, taken: Answered | None) -> TableControl:
    """Orders about the target itself."""
    if one.action == LAND:
        return replace(state, landing=0 if taken and taken.number >= one.baseline else one.baseline)
    if one.action == RENAME:
        return replace(state, moving=one.target, move=one.number)
    if one.action == RENAMED:
        return replace(state, moving="", move=0, target="" if one.target == one.table else one.target)
    if one.action == DROPPED:
        return replace(state, dropped=0, gone=True)
    return replace(state, dropped=one.number)


def _asked(state: TableControl, said: Mapping[str, Any], one: Order, answered: bool) -> TableControl:
    if one.action == ADD:
        member = "file" if one.who == TASK_FILE else "added"
        state = replace(state, member=member, unlisted=False, dropped=0, gone=False)
    if one.action == ANEW:
        state = replace(state, gap=True)
    if not answered:
        exact = state.exact or one.action == RESYNC_EXACT
        return replace(state, **({} if state.held else said), wanted=one.number, exact=exact)
    state = replace(state, wanted=0, exact=False, gap=state.gap and one.action not in (ADD, ANEW))
    if state.pause is None:
        return _free(state)
    pause = state.pause  # a baseline ends a suspension, not the pause under it
    return replace(state, held=PAUSED, why=pause.why, who=pause.who, since=pause.at)


def _free(state: TableControl) -> TableControl:
    return replace(state, held="", pause=None, why="", who="", since=None)
