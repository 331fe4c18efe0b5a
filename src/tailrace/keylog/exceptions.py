"""What operators look at besides the targets: changes that were skipped, tables that are suspended.

Both are Delta tables in Qlik's shape (spec/qlik.md §5), in the folder of the targets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ..engine.rules import CONFLICTS
from ..formats.qlik.control import TABLES
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..model.change import split
from ..model.positions import order_key
from ..model.sequence import NUMBER_DIGITS, WIDTH, make_many
from ..model.types import arrow_type
from ..state import commands
from ..state.state_table import KeyedTable, Row

AT_CHANGE = " at change_seq "
"""Between a conflict's kind and its change, in the reason of a suspension."""
EXCEPTIONS, SUSPENDED = "attrep_apply_exceptions", "attrep_suspended_tables"
_SERVER = "tailrace"
_OWNED = ("TASK_NAME", "TABLE_OWNER", "TABLE_NAME")


def _schema(name: str) -> pa.Schema:
    return pa.schema([pa.field(c.name, arrow_type(c.type)) for c in TABLES[name].columns])


def _whole(owner: str, name: str) -> str:
    """A table's name, wherever it was split."""
    return f"{owner}.{name}" if owner else name


def _is(task: str, table: str) -> str:
    """The rows of a task's table, in SQL, wherever its name was split into owner and name."""
    whose, owner, name = _OWNED
    mine, both = (t.replace("'", "''") for t in (task, table))
    whole = f"CASE WHEN {owner} = '' THEN {name} ELSE {owner} || '.' || {name} END"
    return f"{whose} = '{mine}' AND {whole} = '{both}'"


class Exceptions:
    """`attrep_apply_exceptions` below a folder: one row a change that was flagged and skipped.

    Written before the target's own commit, each table under its own progress. What is there of changes after
    the one that the target has reached is of an attempt that did not come through: a batch that comes again
    takes it back before it adds what it finds, for the target's rows may be others by then.
    """

    def __init__(self, root: str, task: str) -> None:
        self.path, self._task = f"{root.rstrip('/')}/{EXCEPTIONS}", task

    def reached(self, table: str) -> int:
        """The change number up to which a table's exceptions are there."""
        return order_key(lake.progress(self.path, self._name(table)))

    def counted(self, table: str, reached: int, kinds: Iterable[str]) -> dict[str, int]:
        """How many conflicts of each kind were kept when a target had reached a change number."""
        kinds, name = list(kinds), self._name(table)
        names = [f"{name}/{kind}{which}" for which in ("", "/before") for kind in kinds]
        after, *found = lake.progresses(self.path, [f"{name}/after", *names])
        mine = found[len(kinds) :] if after == reached + 1 else found  # the batch comes again
        return {kind: n or 0 for kind, n in zip(kinds, mine, strict=False)}

    def begin(
        self, table: str, kinds: Iterable[str], *, baseline: int | None = None, suspension: int | None = None
    ) -> None:
        """Counts a table's conflicts anew; with the number of a `baseline`, or of a `suspension`,
        once for each that has a larger one."""
        kinds, name = list(kinds), self._name(table)
        if not kinds:
            return
        lake.create(self.path, _schema(EXCEPTIONS))
        what = "baseline" if baseline is not None else "suspension" if suspension is not None else "anew"
        mark, since = f"{name}/{what}", suspension if baseline is None else baseline
        before = order_key(lake.progress(self.path, mark))
        number = before + 1 if since is None else since
        if number > before:
            zeros = {f"{name}/{k}{which}": 0 for k in kinds for which in ("", "/before")}
            lake.commit(self.path, [], progress={**zeros, mark: number})

    def take_back(self, table: str, after: int, counted: Mapping[str, int]) -> None:
        """Takes exceptions of changes after a number back, if there are any; `counted`: kind -> conflicts up
        to there."""
        if self.reached(table) <= after:
            return
        number = f"right(ERROR, {NUMBER_DIGITS})"
        wanted = f"{_is(self._task, table)} AND {number} >= '{after + 1:0{NUMBER_DIGITS}d}'"
        lake.retried(lambda: DeltaTable(self.path).delete(wanted))
        mine = self._name(table)
        counts = {f"{mine}/{k}{which}": n for k, n in counted.items() for which in ("", "/before")}
        lake.commit(self.path, [], progress={**counts, mine: after}, begin=True)

    def keep(
        self,
        files: Sequence[lake.AddedFile],
        table: str,
        upto: int,
        *,
        after: int,
        counts: Mapping[str, tuple[int, int]],
    ) -> None:
        """Adds parts made of `made`. `counts`: kind -> conflicts before the batch, which begins after the
        change `after`, and with it."""
        if self.reached(table) >= upto:
            return
        reach("apply.exceptions")
        lake.create(self.path, self.schema)
        lake.commit(self.path, list(files), progress=self._progress(table, upto, after, counts))

    def keep_rows(
        self,
        rows: pa.Table,
        table: str,
        upto: int,
        *,
        after: int,
        counts: Mapping[str, tuple[int, int]],
    ) -> None:
        """The same with rows, of the columns in `rows_schema`; runs in tasks too."""
        if self.reached(table) >= upto:
            return
        progress = self._progress(table, upto, after, counts)
        reach("apply.exceptions")
        lake.append(self.path, self.made(rows, table), progress=progress)

    def part(self, rows: pa.Table, table: str) -> lake.AddedFile:
        """Writes such rows to a part that belongs to nothing until `keep`."""
        (part,) = lake.write_part(self.path, self.made(rows, table))
        return part

    def made(self, rows: pa.Table, table: str) -> pa.Table:
        """Rows of a key log, in the columns of `rows_schema`, as exceptions: `STATEMENT` is the change, its
        operation and its image, or its key; `ERROR` the conflict."""
        owner, name = split(table)
        text = pc.coalesce(rows["after_image"], rows["before_key"], "")
        parts = (rows[n].to_numpy() for n in ("resync_state", "change_row_counter"))
        seq = pa.array(make_many(*parts).view(f"S{WIDTH}").ravel()).cast(pa.string())
        one = {
            "TASK_NAME": self._task,
            "TABLE_OWNER": owner,
            "TABLE_NAME": name,
            "ERROR_TIME": datetime.now(timezone.utc),
        }
        made = {
            "STATEMENT": pc.binary_join_element_wise(rows["change_row_type"], text, " "),
            "ERROR": pc.binary_join_element_wise(rows["result_error"], seq, ", change_seq "),
        }
        columns = [
            made[f.name] if f.name in made else pa.repeat(pa.scalar(one[f.name], f.type), rows.num_rows)
            for f in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return _schema(EXCEPTIONS)

    @property
    def rows_schema(self) -> pa.Schema:
        """The columns of a key log that exceptions are made of."""
        numbers = ("resync_state", "change_row_counter")
        texts = ("change_row_type", "result_error", "before_key", "after_image")
        return pa.schema([*[(n, pa.int64()) for n in numbers], *[(n, pa.string()) for n in texts]])

    def _progress(
        self, table: str, upto: int, after: int, counts: Mapping[str, tuple[int, int]]
    ) -> dict[str, int]:
        mine = self._name(table)
        progress = {mine: upto}
        if counts:
            progress[f"{mine}/after"] = after + 1
        for kind, (before, now) in counts.items():
            progress |= {f"{mine}/{kind}/before": before, f"{mine}/{kind}": now}
        return progress

    def _name(self, table: str) -> str:
        return f"{self._task}/exceptions/{table}"


class Holds(Protocol):
    """Which tables take no changes."""

    def reason(self, table: str) -> str | None:
        """Why a table is suspended; None when it is not."""

    def suspend(self, table: str, reason: str) -> None:
        """Suspends a table."""

    def newest(self, table: str) -> int | None:
        """The number of a table's newest suspension for a conflict, which may be over; 0: it had none; None:
        they have no numbers, and `Suspensions.resume` sees to the counts."""


class Suspensions:
    """`attrep_suspended_tables` below a folder: the tables that take no changes, and why."""

    def __init__(self, root: str, task: str, resumed: Collection[str] = ()) -> None:
        self.path, self._task = f"{root.rstrip('/')}/{SUSPENDED}", task
        self._root, self._resumed = root, frozenset(resumed)

    def without(self, tables: Iterable[str]) -> Suspensions:
        """The same as if these tables had been resumed; nothing is written."""
        return Suspensions(self._root, self._task, frozenset(tables))

    def reason(self, table: str) -> str | None:
        """Why a table is suspended; None when it is not."""
        if table in self._resumed:
            return None
        mine = [r for r in self._table.rows() if self._is_of(r, table)]
        return str(mine[-1]["suspend_reason"]) if mine else None

    def suspend(self, table: str, reason: str) -> None:
        """Suspends a table."""
        owner, name = split(table)
        values = [_SERVER, self._task, owner, name, reason, datetime.now(timezone.utc)]
        row = dict(zip(_schema(SUSPENDED).names, values, strict=True))
        self._table.change(lambda rows: [*rows, row])

    def newest(self, table: str) -> None:
        """They have no numbers."""

    def resume(self, table: str) -> bool:
        """Takes a table's suspension away, and counts its conflicts anew; gives whether it had one."""
        if self.reason(table) is None:
            return False
        kept = Exceptions(self._root, self._task)
        if lake.exists(kept.path):  # a kill may have come between its suspension and this
            kept.begin(table, CONFLICTS)
        self._table.change(lambda rows: [r for r in rows if not self._is_of(r, table)])
        return True

    @property
    def _table(self) -> KeyedTable:
        return KeyedTable(self.path, _schema(SUSPENDED), "control.change")

    def _is_of(self, row: Row, table: str) -> bool:
        return row["task_name"] == self._task and _whole(row["table_owner"], row["table_name"]) == table


class Orders:
    """The same for a task: an order to suspend the table, which waits as `tailrace pause` lets it wait."""

    def __init__(self, path: str) -> None:
        self._path = path

    def reason(self, table: str) -> str | None:
        """None: whoever applies a task's tables has looked."""
        return None

    def suspend(self, table: str, reason: str) -> None:
        """Orders a table's suspension."""
        commands.suspend(self._path, table, reason)

    def newest(self, table: str) -> int | None:
        """The number of the newest order that suspends the table for a conflict."""
        mine = (o for o in commands.read(self._path) if o.table == table and o.action == commands.SUSPEND)
        return max((o.number for o in mine if o.why.partition(AT_CHANGE)[0] in CONFLICTS), default=0)
