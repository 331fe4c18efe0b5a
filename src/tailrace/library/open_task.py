"""A task in a Python program: its tables, its state, orders to it, questions to its changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.task import Task, file_of, load
from ..errors import ConfigError
from ..lake import log
from ..lake.reading import dataset
from ..model import sequence
from ..query.points import Place, Point, absolute
from ..query.result import Result
from ..query.table_changes import TOLD
from .task_table import TaskTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..operate.status import Status
    from ..operate.table_commands import CommandResult
    from ..state.ledger import Stored
    from ..validate.tables import ValidationReport


class OpenTask:
    """A task, running or not. Nothing here starts a JVM but `validate`, and that only where it must.

    Attributes:
        file: its task file.
        task: what the file says (`config.task.Task`).

    Args:
        path: the task file, or its folder.
        connects: as in `config.task.load`; otherwise it is for questions only.
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
        """One of its tables.

        Raises:
            ConfigError: it has none of that name.
        """
        if name not in log.history(self.task.relations_path) and name not in self.tables:
            matching = self._matching([name.replace("[", "[[]")])
            raise ConfigError(
                f"{name!r} is a pattern, and one table is asked",
                where=self.name,
                hint=f"name one: {', '.join(matching[:3])}",
            )
        return TaskTable.of(self.task, name)

    def status(self) -> Status:
        """What it is doing, and how far it is."""
        from ..operate.status import status

        return status(self.task)

    @property
    def keylog(self) -> Result:
        """The key log: the outcome of every change (docs/keylog.md); no rows before the first one is applied.

        Raises:
            ConfigError: it has none.
        """
        from ..apply.keylog.key_log import SCHEMA
        from ..operate import rows

        if not rows.there(self.task.keylog_path, promised=self.task.keylog.mode != "off"):
            return Result.of(SCHEMA.empty_table())
        found = dataset(rows.opened(self.task.keylog_path))
        return Result(found.schema, lambda: iter(found.to_batches()))

    def sql(self, statement: str, spark: SparkSession | None = None) -> Result:
        """The rows of an SQL statement over the task's tables (see `library.task_views`), and over questions
        to them: `FROM net('shop.item', start => '2026-11-22T10:00:00Z')`, by the names and arguments that
        they have here.

        Args:
            statement: DuckDB's SQL.
            spark: a session in which Spark's SQL runs instead; its rows are held in this process.

        Raises:
            UnsupportedError: DuckDB is not installed; the Spark session has a catalog that others see.
            ConfigError: the statement cannot be run.
        """
        from .task_sql import in_duckdb, in_spark

        return in_duckdb(self, statement) if spark is None else in_spark(self, statement, spark)

    def transactions(
        self, start: Place | None = None, end: Place | None = None, tables: Sequence[str] = ()
    ) -> Result:
        """Who changed what together, over all tables or those that are named (patterns); see
        `engine.transactions.transactions`. Those that are not stored as a whole yet are left
        out.

        Where no tables are named, a table that was removed is in the answer up to its removal, and one that
        is only tracked is left out.

        Raises:
            GapError: changes of a table in the range were never captured; a table that is named was removed
                before the range ends.
            UnsupportedError: a table that is named is only tracked.
        """
        from ..engine.transactions import transactions

        start, end = absolute(start), absolute(end)
        asked = {n: self.table(n) for n in (self._matching(tables) if tables else self.tables)}
        if not tables:
            asked = {n: one.until_removed for n, one in asked.items() if not one.only_tracked}
        # Read before the tables, which are stored one after the other: all have what was stored by then.
        stored = self.finalized_until
        whole = sequence.FIRST if stored is None else stored.change_seq
        found = {n: t.arrays(start, end, (), headers=TOLD).between(upto=whole) for n, t in asked.items()}
        return Result.of(transactions(found))

    @property
    def finalized_until(self) -> Stored | None:
        """Up to where nothing older will come, in all tables: `upto` (change number), `change_seq`,
        `position` and `commit_time` of the last transaction that is stored; None: nothing is."""
        from ..state.totals import last_stored

        return last_stored(self.task.control_path("stored"))

    def cut(self, at: Place | None = None, tables: Sequence[str] = ()) -> dict[str, Result]:
        """The rows of all tables that are captured, or those that are named (patterns), as they stood
        together at one place; None: at the last transaction that is stored.

        Raises:
            PositionError, UnsupportedError: as for `TaskTable.as_of`, for any of them.
        """
        from ..operate.table_commands import captured_of

        names = self._matching(tables) if tables else captured_of(self.task)
        place, end = absolute(at), self.finalized_until
        if end is not None and (place is None or _later(Point.of(place), end)):
            place = end.change_seq  # what came since may be in some of the tables only
        return {n: self.table(n).as_of(place) for n in names}

    def pause(self, *tables: str, why: str = "", dry_run: bool = False) -> CommandResult:
        """Apply takes no changes of these tables (names or patterns) until `resume`; they are kept."""
        return self._order("pause", tables, why, dry_run)

    def resume(self, *tables: str, why: str = "", dry_run: bool = False) -> CommandResult:
        """Apply takes the changes that waited, then goes on."""
        return self._order("resume", tables, why, dry_run)

    def resync(
        self, *tables: str, why: str = "", dry_run: bool = False, replace_archives: bool = False
    ) -> CommandResult:
        """New baselines replace the targets; ConfigError for archives, which would lose what they have kept,
        but with `replace_archives`."""
        return self._order("resync", tables, why, dry_run, replace_archives)

    def add(
        self, *tables: str, why: str = "", dry_run: bool = False, replace_archives: bool = False
    ) -> CommandResult:
        """The tables are captured, after a baseline; asks the source which there are. Archives that were
        removed: as in `resync`."""
        return self._order("add", tables, why, dry_run, replace_archives)

    def remove(
        self, *tables: str, why: str = "", dry_run: bool = False, drop_target: bool = False
    ) -> CommandResult:
        """The tables are captured no longer; with `drop_target` their targets go."""
        from ..operate.table_commands import give

        return give(self.task, "remove", _named(tables), why=why, dry_run=dry_run, drop_target=drop_target)

    def validate(self, *tables: str, timeout_s: float = 120.0, samples: int = 10) -> ValidationReport:
        """Compares every table, or those that are named, with its source at one position ."""
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


def _later(time: Point, end: Stored) -> bool:
    """Whether a place is a time behind all that is stored; later places of other kinds are refused."""
    return time.column == "change_seq" and time.low != time.high and time.high > end.change_seq


def _named(tables: Sequence[str]) -> Sequence[str]:
    if not tables:
        raise ConfigError("no table is named", hint="name tables, or patterns: `shop.*`")
    return tables
