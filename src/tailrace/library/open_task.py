"""A task in a Python program: its tables, its state, commands to it, and queries of its changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.task import Task, file_of, load
from ..errors import ConfigError
from ..lake import log
from ..lake.reading import dataset
from ..model import sequence
from ..query.positions import PositionLike, PositionRange, resolve_relative
from ..query.result import Result
from ..query.table_changes import CHANGE_HEADERS
from .task_table import TaskTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..operate.status import Status
    from ..operate.table_commands import CommandResult
    from ..state.ledger import Stored
    from ..validate.validation import ValidationReport


class OpenTask:
    """A task, running or not. Only `validate` may start a JVM, and only if it must.

    Attributes:
        file: its task file.
        task: the parsed file (`config.task.Task`).

    Args:
        path: the task file, or its folder.
        connects: as in `config.task.load`; otherwise it is for queries only.
    """

    def __init__(self, path: str | Path, *, connects: bool = True) -> None:
        self.file = file_of(Path(path))
        self.task: Task = load(self.file, connects=connects)

    def __repr__(self) -> str:
        return f"OpenTask({str(self.file)!r})"

    @property
    def name(self) -> str:
        """Its name."""
        return self.task.name

    @property
    def tables(self) -> list[str]:
        """The tables that it has, or had: `schema.table`."""
        from ..operate.table_commands import tables_of

        return tables_of(self.task)

    def table(self, name: str) -> TaskTable:
        """Returns one of its tables.

        Raises:
            ConfigError: it has no table of that name.
        """
        if name not in log.history(self.task.relations_path) and name not in self.tables:
            matching = self._matching([name.replace("[", "[[]")])
            raise ConfigError(
                f"{name!r} is a pattern, but one table is expected",
                where=self.name,
                hint=f"name one table: {', '.join(matching[:3])}",
            )
        return TaskTable.of(self.task, name)

    def status(self) -> Status:
        """Returns its state and progress."""
        from ..operate.status import status

        return status(self.task)

    @property
    def keylog(self) -> Result:
        """The key log: the outcome of every change (docs/keylog.md); empty before the first change is
        applied.

        Raises:
            ConfigError: it has no key log.
        """
        from ..keylog.key_log import SCHEMA
        from ..operate import keylog_rows

        if not keylog_rows.has_keylog(self.task.keylog_path, promised=self.task.keylog.mode != "off"):
            return Result.of(SCHEMA.empty_table())
        found = dataset(keylog_rows.open_keylog(self.task.keylog_path))
        return Result(found.schema, lambda: iter(found.to_batches()))

    def sql(self, statement: str, spark: SparkSession | None = None) -> Result:
        """Returns the rows of an SQL statement over the task's tables (see `library.task_views`) and table
        functions.

        The functions have the names and arguments of the queries here: `FROM net('shop.item', start =>
        '2026-11-22T10:00:00Z')`.

        Args:
            statement: DuckDB's SQL.
            spark: a session in which the statement is run as Spark SQL instead; rows of table functions are
                kept in this process's memory.

        Raises:
            UnsupportedError: DuckDB is not installed, or the Spark session has a shared catalog.
            ConfigError: the statement cannot be run.
        """
        from .task_sql import in_duckdb, in_spark

        return in_duckdb(self, statement) if spark is None else in_spark(self, statement, spark)

    def transactions(
        self, start: PositionLike | None = None, end: PositionLike | None = None, tables: Sequence[str] = ()
    ) -> Result:
        """Returns the transactions over all or the given tables (patterns); see
        `engine.transactions.transactions`.

        Transactions that are not stored completely are left out. If no tables are given, a removed table is
        included up to its removal, and a table that is only tracked is left out.

        Raises:
            GapError: changes of a table in the range were never captured, or a given table was removed before
                the range ends.
            UnsupportedError: a given table is only tracked.
        """
        from ..engine.transactions import transactions

        start, end = resolve_relative(start), resolve_relative(end)
        asked = {n: self.table(n) for n in (self._matching(tables) if tables else self.tables)}
        if not tables:
            asked = {n: one.until_removed for n, one in asked.items() if not one.only_tracked}
        # Read before the tables, which are stored one after the other: all have the changes stored by then.
        stored = self.finalized_until
        whole = sequence.FIRST if stored is None else stored.change_seq
        found = {
            n: t.arrays(start, end, (), headers=CHANGE_HEADERS).between(upto=whole) for n, t in asked.items()
        }
        return Result.of(transactions(found))

    @property
    def finalized_until(self) -> Stored | None:
        """The end of the stored changes in all tables, before which no further change will appear.

        It has `upto` (change number), `change_seq`, `position` and `commit_time` of the last stored
        transaction; None if nothing is stored.
        """
        from ..state.totals import last_stored

        return last_stored(self.task.control_path("stored"))

    def cut(self, at: PositionLike | None = None, tables: Sequence[str] = ()) -> dict[str, Result]:
        """Returns the rows of all captured or the given tables (patterns) as of one position.

        The default is the last stored transaction.

        Raises:
            PositionError, UnsupportedError: as for `TaskTable.as_of`, for any of the tables.
        """
        from ..operate.table_commands import captured_of

        names = self._matching(tables) if tables else captured_of(self.task)
        place, end = resolve_relative(at), self.finalized_until
        if end is not None and (place is None or _later(PositionRange.of(place), end)):
            place = end.change_seq  # later changes may be in some of the tables only
        return {n: self.table(n).as_of(place) for n in names}

    def pause(self, *tables: str, why: str = "", dry_run: bool = False) -> CommandResult:
        """Pauses tables (names or patterns): their changes are kept, and applied after `resume`."""
        return self._order("pause", tables, why, dry_run)

    def resume(self, *tables: str, why: str = "", dry_run: bool = False) -> CommandResult:
        """Resumes tables: the changes that waited are applied, then the later ones."""
        return self._order("resume", tables, why, dry_run)

    def resync(
        self, *tables: str, why: str = "", dry_run: bool = False, replace_archives: bool = False
    ) -> CommandResult:
        """Replaces the targets of tables by new baselines.

        Archives raise ConfigError without `replace_archives`, because a baseline replaces their rows.
        """
        return self._order("resync", tables, why, dry_run, replace_archives)

    def add(
        self, *tables: str, why: str = "", dry_run: bool = False, replace_archives: bool = False
    ) -> CommandResult:
        """Captures tables, after a baseline; the source is queried for their names. Removed archives: as in
        `resync`."""
        return self._order("add", tables, why, dry_run, replace_archives)

    def remove(
        self, *tables: str, why: str = "", dry_run: bool = False, drop_target: bool = False
    ) -> CommandResult:
        """Ends the capture of tables; with `drop_target` their targets are removed."""
        from ..operate.table_commands import give

        return give(self.task, "remove", _named(tables), why=why, dry_run=dry_run, drop_target=drop_target)

    def validate(self, *tables: str, timeout_s: float = 120.0, samples: int = 10) -> ValidationReport:
        """Compares every table, or the given ones, with its source at one position."""
        from ..runtime.setup import validate_task

        return validate_task(self.file, self.task, tables, timeout_s=timeout_s, samples=samples)

    def _order(
        self, action: str, tables: Sequence[str], why: str, dry_run: bool, replace_archives: bool = False
    ) -> CommandResult:
        from ..operate.table_commands import give

        named = _named(tables)
        return give(self.task, action, named, why=why, dry_run=dry_run, replace_archives=replace_archives)

    def _matching(self, patterns: Sequence[str]) -> list[str]:
        from ..operate.table_commands import matching

        return matching(self.tables, patterns, self.name)


def _later(time: PositionRange, end: Stored) -> bool:
    """Returns whether a position is a time after all stored changes; later positions of other kinds are
    refused."""
    return time.column == "change_seq" and time.low != time.high and time.high > end.change_seq


def _named(tables: Sequence[str]) -> Sequence[str]:
    if not tables:
        raise ConfigError("no table is named", hint="name tables, or patterns: `shop.*`")
    return tables
