"""The control tables that operators read: skipped changes and suspended tables.

Both are Delta tables in Qlik's shape (spec/qlik.md §5), in the folder of the targets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ..engine.rules import CONFLICTS
from ..formats.qlik.control import TABLES
from ..lake import delta as lake
from ..lake.failpoints import reach
from ..lake.opened import open_table
from ..model.change import split
from ..model.positions import order_key
from ..model.sequence import NUMBER_DIGITS, WIDTH, make_many
from ..model.types import arrow_type
from ..state import commands
from ..state.state_table import KeyedTable, Row

AT_CHANGE = " at change_seq "
"""Separates the conflict from the change in the reason of a suspension."""
EXCEPTIONS, SUSPENDED = "attrep_apply_exceptions", "attrep_suspended_tables"
_SERVER = "tailrace"
_NAME_COLUMNS = ("TASK_NAME", "TABLE_OWNER", "TABLE_NAME")


def _schema(name: str) -> pa.Schema:
    return pa.schema([pa.field(c.name, arrow_type(c.type)) for c in TABLES[name].columns])


def _full_name(owner: str, name: str) -> str:
    """Returns a table's name, wherever it was split into owner and name."""
    return f"{owner}.{name}" if owner else name


def _of_table(task: str, table: str) -> str:
    """Returns the SQL condition on the rows of a task's table, wherever its name was split."""
    task_column, owner, name = _NAME_COLUMNS
    task, table = (t.replace("'", "''") for t in (task, table))
    full_name = f"CASE WHEN {owner} = '' THEN {name} ELSE {owner} || '.' || {name} END"
    return f"{task_column} = '{task}' AND {full_name} = '{table}'"


class ApplyExceptions:
    """The table `attrep_apply_exceptions` below a folder: one row per flagged and skipped change.

    Rows are written before the commit of the target, with each table's progress in the same commit. Rows of
    changes after the target's progress belong to an attempt that was not committed. The next attempt deletes
    them before it adds rows, because the target may have changed and the conflicts may differ.
    """

    def __init__(self, root: str, task: str) -> None:
        self.path, self._task = f"{root.rstrip('/')}/{EXCEPTIONS}", task

    def progress(self, table: str) -> int:
        """Returns the last change number whose exceptions are written; -1 if the table has none."""
        return order_key(lake.progress(self.path, self._app_id(table)))

    def counts(self, table: str, progress: int, kinds: Iterable[str]) -> dict[str, int]:
        """Returns the number of conflicts of each kind up to the target's `progress`."""
        kinds, app_id = list(kinds), self._app_id(table)
        names = [f"{app_id}/{kind}{suffix}" for suffix in ("", "/before") for kind in kinds]
        start, *found = lake.progresses(self.path, [f"{app_id}/after", *names])
        # The batch is a retry: the counts before it are the valid ones.
        numbers = found[len(kinds) :] if start == progress + 1 else found
        return {kind: n or 0 for kind, n in zip(kinds, numbers, strict=False)}

    def reset_counts(
        self, table: str, kinds: Iterable[str], *, baseline: int | None = None, suspension: int | None = None
    ) -> None:
        """Sets a table's conflict counts to zero. With the number of a `baseline` or of a `suspension`, only
        the first call with this or a larger number does."""
        kinds, app_id = list(kinds), self._app_id(table)
        if not kinds:
            return
        lake.create(self.path, _schema(EXCEPTIONS))
        cause = "baseline" if baseline is not None else "suspension" if suspension is not None else "anew"
        mark, number = f"{app_id}/{cause}", suspension if baseline is None else baseline
        before = order_key(lake.progress(self.path, mark))
        number = before + 1 if number is None else number
        if number > before:
            zeros = {f"{app_id}/{k}{suffix}": 0 for k in kinds for suffix in ("", "/before")}
            lake.commit(self.path, [], progress={**zeros, mark: number})

    def remove_after(self, table: str, start: int, counts: Mapping[str, int]) -> None:
        """Removes the exceptions of changes after `start`. `counts`: kind -> conflicts up to `start`."""
        if self.progress(table) <= start:
            return
        number = f"right(ERROR, {NUMBER_DIGITS})"
        condition = f"{_of_table(self._task, table)} AND {number} >= '{start + 1:0{NUMBER_DIGITS}d}'"
        lake.retried(lambda: open_table(self.path).delete(condition))
        app_id = self._app_id(table)
        before = {f"{app_id}/{k}{suffix}": n for k, n in counts.items() for suffix in ("", "/before")}
        lake.commit(self.path, [], progress={**before, app_id: start}, begin=True)

    def add_files(
        self,
        files: Sequence[lake.AddedFile],
        table: str,
        end: int,
        *,
        start: int,
        counts: Mapping[str, tuple[int, int]],
    ) -> None:
        """Commits files that `write_file` wrote, with the exceptions of the changes from `start` (exclusive)
        to `end`. `counts`: kind -> conflicts before the batch, and including it."""
        if self.progress(table) >= end:
            return
        reach("apply.exceptions")
        lake.create(self.path, self.schema)
        lake.commit(self.path, list(files), progress=self._progress(table, end, start, counts))

    def add_rows(
        self,
        rows: pa.Table,
        table: str,
        end: int,
        *,
        start: int,
        counts: Mapping[str, tuple[int, int]],
    ) -> None:
        """Writes and commits rows in the columns of `rows_schema`; otherwise like `add_files`. Tasks may call
        it, too."""
        if self.progress(table) >= end:
            return
        progress = self._progress(table, end, start, counts)
        reach("apply.exceptions")
        lake.append(self.path, self.exception_rows(rows, table), progress=progress)

    def write_file(self, rows: pa.Table, table: str) -> lake.AddedFile:
        """Writes rows in the columns of `rows_schema` to a file that `add_files` commits."""
        (file,) = lake.write_part(self.path, self.exception_rows(rows, table))
        return file

    def exception_rows(self, rows: pa.Table, table: str) -> pa.Table:
        """Returns key log rows (the columns of `rows_schema`) in the columns of the table. `STATEMENT` is the
        change: its operation and its image, or its key. `ERROR` is the conflict."""
        owner, name = split(table)
        image = pc.coalesce(rows["after_image"], rows["before_key"], "")
        parts = (rows[n].to_numpy() for n in ("resync_state", "change_row_counter"))
        seq = pa.array(make_many(*parts).view(f"S{WIDTH}").ravel()).cast(pa.string())
        constants = {
            "TASK_NAME": self._task,
            "TABLE_OWNER": owner,
            "TABLE_NAME": name,
            "ERROR_TIME": datetime.now(timezone.utc),
        }
        computed = {
            "STATEMENT": pc.binary_join_element_wise(rows["change_row_type"], image, " "),
            "ERROR": pc.binary_join_element_wise(rows["result_error"], seq, ", change_seq "),
        }
        columns = [
            computed[f.name]
            if f.name in computed
            else pa.repeat(pa.scalar(constants[f.name], f.type), rows.num_rows)
            for f in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return _schema(EXCEPTIONS)

    @property
    def rows_schema(self) -> pa.Schema:
        """The key log columns that `exception_rows` reads."""
        numbers = ("resync_state", "change_row_counter")
        texts = ("change_row_type", "result_error", "before_key", "after_image")
        return pa.schema([*[(n, pa.int64()) for n in numbers], *[(n, pa.string()) for n in texts]])

    def _progress(
        self, table: str, end: int, start: int, counts: Mapping[str, tuple[int, int]]
    ) -> dict[str, int]:
        app_id = self._app_id(table)
        progress = {app_id: end}
        if counts:
            progress[f"{app_id}/after"] = start + 1
        for kind, (before, now) in counts.items():
            progress |= {f"{app_id}/{kind}/before": before, f"{app_id}/{kind}": now}
        return progress

    def _app_id(self, table: str) -> str:
        return f"{self._task}/exceptions/{table}"


class SuspensionStore(Protocol):
    """Reads and writes the suspensions of tables."""

    def reason(self, table: str) -> str | None:
        """Returns the reason of a table's suspension; None if it is not suspended."""

    def suspend(self, table: str, reason: str) -> None:
        """Suspends a table."""

    def newest_number(self, table: str) -> int | None:
        """Returns the number of a table's newest suspension for a conflict, even if it has ended; 0 if the
        table was never suspended. None: suspensions have no numbers, and `Suspensions.resume` resets the
        conflict counts."""


class Suspensions:
    """The table `attrep_suspended_tables` below a folder: suspended tables and the reasons."""

    def __init__(self, root: str, task: str, resumed: Collection[str] = ()) -> None:
        self.path, self._task = f"{root.rstrip('/')}/{SUSPENDED}", task
        self._root, self._resumed = root, frozenset(resumed)

    def without(self, tables: Iterable[str]) -> Suspensions:
        """Returns suspensions in which these tables are not suspended; nothing is written."""
        return Suspensions(self._root, self._task, frozenset(tables))

    def reason(self, table: str) -> str | None:
        """Returns the reason of a table's suspension; None if it is not suspended."""
        if table in self._resumed:
            return None
        rows = [r for r in self._table.rows() if self._is_of(r, table)]
        return str(rows[-1]["suspend_reason"]) if rows else None

    def suspend(self, table: str, reason: str) -> None:
        """Suspends a table."""
        owner, name = split(table)
        values = [_SERVER, self._task, owner, name, reason, datetime.now(timezone.utc)]
        row = dict(zip(_schema(SUSPENDED).names, values, strict=True))
        self._table.change(lambda rows: [*rows, row])

    def newest_number(self, table: str) -> None:
        """Returns None: suspensions in this table have no numbers."""

    def resume(self, table: str) -> bool:
        """Removes a table's suspension and sets its conflict counts to zero. Returns whether it was
        suspended."""
        if self.reason(table) is None:
            return False
        exceptions = ApplyExceptions(self._root, self._task)
        if lake.exists(exceptions.path):  # a crash may have prevented the reset after the suspension
            exceptions.reset_counts(table, CONFLICTS)
        self._table.change(lambda rows: [r for r in rows if not self._is_of(r, table)])
        return True

    @property
    def _table(self) -> KeyedTable:
        return KeyedTable(self.path, _schema(SUSPENDED), "control.change")

    def _is_of(self, row: Row, table: str) -> bool:
        return row["task_name"] == self._task and _full_name(row["table_owner"], row["table_name"]) == table


class SuspendCommands:
    """Suspensions of a task's tables as commands, like those of `tailrace pause`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def reason(self, table: str) -> str | None:
        """Returns None: the caller has checked the commands of the task's tables."""
        return None

    def suspend(self, table: str, reason: str) -> None:
        """Adds the command that suspends a table."""
        commands.suspend(self._path, table, reason)

    def newest_number(self, table: str) -> int | None:
        """Returns the number of the newest command that suspends the table for a conflict; 0 if none does."""
        suspends = (o for o in commands.read(self._path) if o.table == table and o.action == commands.SUSPEND)
        return max((o.number for o in suspends if o.why.partition(AT_CHANGE)[0] in CONFLICTS), default=0)
