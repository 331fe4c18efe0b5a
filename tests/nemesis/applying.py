"""The pipeline process in steps: store and apply are tailrace's own; a batch of LOG stands in memory."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tailrace.apply.applier import Applier
from tailrace.apply.mapping.table_map import TableMap
from tailrace.apply.reading import ApplyPaths
from tailrace.apply.route import Routes
from tailrace.apply.scheduler import Scheduler
from tailrace.config.groups import group_of
from tailrace.lake import log
from tailrace.model.sequence import number_of
from tailrace.state import retention
from tailrace.store.running import Run
from tailrace.store.task import LOG_COLUMNS
from tailrace.store.writer import Store, StorePaths

from .ram import RamLake
from .target import Held, RamTarget


@dataclass(frozen=True)
class Setup:
    """What does not change in a schedule."""

    tables: int = 3
    keyless: bool = False
    group: bool = False
    together: int = 4
    max_changes: int = 6
    opened: bool = False


def of_tables(parts: Sequence[pa.Table]) -> Run:
    """Runs a store batch as one task for each table of log records."""
    mine = [p.select(LOG_COLUMNS).combine_chunks() for p in parts]
    return lambda plan: [r for p in mine for r in plan(p.to_batches())]


class Applying:
    """One life of the pipeline: store and apply."""

    def _automatic(self, table: str) -> bool:
        group = group_of(self._task.groups, table)
        return group is not None and self._task.groups[group].automatic_baseline

    def __init__(
        self, task: Any, setup: Setup, ram: RamLake, held: dict[str, Held], refused: Callable[[str], bool]
    ) -> None:
        self._ram, self._task = ram, task
        ram.create("log", log.SCHEMA)
        ram.create("relations", log.RELATIONS_SCHEMA)
        self._store = Store(
            StorePaths("relations", "tracking", "control/stored", "control/quarantine", task.changes_path)
        )
        self.scheduler = Scheduler(
            "control/commands", "control/errors", task.groups, automatic=self._automatic
        )
        spark: Any = None
        self._applier = Applier(
            spark,
            ApplyPaths(
                "relations", "control/stored", "control/applied", "control/baselines", task.changes_path
            ),
            RamTarget(ram, held, refused),
            max_changes=setup.max_changes,
            parallel=1,
            need_baseline=True,
            scheduler=self.scheduler,
            routes=Routes(
                spark, lambda t: TableMap(t, t), lambda t: {}, "control/ddl_decisions", "control/commands"
            ),
        )

    def store(self, many: int, back: int) -> object:
        """Stores so many commits of LOG from what is stored on, or from some commits before."""
        commits = log_files(self._ram)
        todo = [k for k, (_, last) in enumerate(commits) if last > self._store.reached]
        start = max((todo[0] if todo else len(commits)) - back, 0)
        chosen = [rows for rows, _ in commits[start : start + many + back]]
        if not chosen:
            return "nothing"
        # Small files share a task mostly; sometimes each has its own.
        shared = [pa.concat_tables(chosen)] if (start + len(chosen)) % 3 else chosen
        done = self._store.batch(of_tables(shared))
        if done is None:
            return "nothing new"
        self._applier.add(done)
        return f"up to {done.upto}: { {t: dict(c) for t, c in done.tables.items()} }"

    def shorten(self) -> object:
        """Removes of the control tables what nobody needs, however young it is."""
        before = self._ram.rows("control/stored").num_rows
        retention.trim_batches(self._task, {}, now=dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc))
        retention.trim_tables(self._task)
        return f"{before} rows of `stored`, {self._ram.rows('control/stored').num_rows} are left"

    def apply(self) -> object:
        """Applies what is stored."""
        done = self._applier.catch_up()
        return f"{[(one.table, one.upto) for one in done]}, recorded {self._applier.recorded}"


def log_files(ram: RamLake, passed: int = 0) -> list[tuple[Any, int]]:
    """The commits of LOG that have rows, without the first ones, each with its last change number."""
    if "log" not in ram.tables:
        return []
    files = ram.tables["log"][-1].files[passed:]
    return [(ram.parts[f], number_of(ram.parts[f]["CHANGE_SEQ"][-1].as_py())) for f in files]
