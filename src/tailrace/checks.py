"""What keeps a task from working, found before it runs: at the source, in rules, mappings. Needs no data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .apply.mapping import mistakes, prepare
from .apply.together import clashes, shared
from .capture import report
from .change import Relation
from .control import ledger
from .control.streams import newest
from .control.table_settings import RuleSettings, TableSettings
from .control.tables import of_task
from .control.task import Task
from .ddl_watch import moved_of
from .keyless_checks import keyless_findings
from .log import state
from .mapping_checks import database_findings, finding, maps
from .membership import members
from .operate.consumers import consumers_said
from .sources import open_source
from .sources.base import Finding, LogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(task: Task, spark: Callable[[], SparkSession]) -> list[Finding]:
    """Everything that is wrong, errors first; `spark` is called when there are mappings to be looked at.

    Raises:
        SourceError: the source cannot be asked.
    """
    source = open_source(task)
    try:
        tables = _tables(task, source)
        after = state(task.log_path).position
        found = list(source.check(tables, after, newest(task).stored))
        found += keyless_findings(task, source, tables)
        found += mapping_findings(task, source, tables, spark)
    finally:
        source.close()
    cure = "`tailrace consumer TASK ack NAME POSITION`, or `remove NAME`"
    found += [
        Finding("warning", f"{n}: {said}", "consumers", cure) for n, said in consumers_said(task).items()
    ]
    return sorted(found, key=lambda one: one.level)


def before_run(task: Task, spark: Callable[[], SparkSession]) -> None:
    """Raises SourceError when a mapping is wrong; what is wrong at the source capture says by itself."""
    keys = set(TableSettings.model_fields) - set(RuleSettings.model_fields)
    if not any(keys & said.model_fields_set for said in task.tables.values()):
        return
    source = open_source(task)
    try:
        tables = _tables(task, source)
        report(mapping_findings(task, source, tables, spark))
    finally:
        source.close()


def _tables(task: Task, source: LogSource) -> list[str]:
    """The tables that the task would capture now."""
    states = of_task(task.orders_path, ledger.read_baselines(task.control_path("baselines")))
    return members(source, task, states, moved_of(task, source))


def mapping_findings(
    task: Task, source: LogSource, tables: Sequence[str], spark: Callable[[], SparkSession]
) -> list[Finding]:
    """What is wrong with the mappings of a task."""
    mine = maps(task, tables)
    if not mine:
        return []
    layouts: dict[str, Relation] = {t: source.relation(t) for t in mine}
    session = spark()
    found = [finding(t, what) for t, one in mine.items() for what in mistakes(session, one, layouts[t])]
    if found:
        return found
    made = {t: prepare(session, one, layouts[t]) for t, one in mine.items()}
    for target, many in shared(list(mine.values())).items():
        found += [finding(target, what) for what in clashes([made[m.source] for m in many])]
    return found + database_findings(task, mine)
