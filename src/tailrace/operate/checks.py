"""Checks before a task runs: errors at source and target, in rules and in mappings. They read no data."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..apply.checks.adoption import adoption_findings
from ..apply.checks.columns import column_findings
from ..apply.checks.filled_targets import filled_findings
from ..apply.checks.folders import folder_findings
from ..apply.checks.keyless import keyless_findings
from ..apply.checks.mapping import database_findings, finding, fitted_to, maps, rules_findings
from ..apply.checks.target import target_findings
from ..apply.mapping.multi_source import clashes, shared
from ..apply.mapping.prepare import mistakes, prepare
from ..apply.required_changes import Needs
from ..apply.target_owner import owner_findings, owner_of
from ..capture.attached_tables import attached_as
from ..capture.column_doubts import identity_findings
from ..capture.ddl_watch import moved_tables
from ..capture.partition_notes import CURE
from ..capture.process import report
from ..capture.replica_identities import identity_errors, left_out_findings
from ..capture.stream import MISSING, Streams
from ..capture.table_errors import suspend_unfit
from ..capture.table_selection import wanted_tables
from ..config.task import Task
from ..errors import ApplyError, ConfigError, ConnectionLostError, SourceError
from ..lake.log import state
from ..model.change import Relation
from ..model.patterns import is_pattern
from ..sources import open_source
from ..sources.base import Finding, LogSource
from ..state import lifecycle, live
from ..state.baselines import Baseline
from ..state.lifecycle import SUSPENDED, TableStates
from ..state.open_warnings import open_warnings
from ..state.streams import ANEW, MADE, MAKING, newest
from ..targets.base import TARGET_MISSING, TARGET_MISSING_HINT
from .consumers import consumer_warnings
from .name_checks import name_findings
from .table_commands import known

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(task: Task, spark: Callable[[], SparkSession]) -> list[Finding]:
    """Returns all findings, errors first; `spark` is called only if there are mappings to check.

    Raises:
        SourceError: the source cannot be queried.
    """
    return check_and_offers(task, spark)[0]


def check_and_offers(task: Task, spark: Callable[[], SparkSession]) -> tuple[list[Finding], list[Finding]]:
    """Returns the findings of `check`, and notes on what else the source could send of the tables."""
    found = _found(task, spark)
    return found.findings, found.offers


@dataclass
class _Found:
    """Findings, offers, and the tables that the task would capture; without suspended ones that cannot be
    captured."""

    findings: list[Finding] = field(default_factory=list)
    offers: list[Finding] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)


def _found(task: Task, spark: Callable[[], SparkSession]) -> _Found:
    found, source = _Found(), open_source(task)
    try:
        found.findings = _of_source(task, source, spark, found)
    finally:
        source.close()
    cure = "`tailrace consumer ack TASK NAME POSITION`, or `remove TASK NAME`"
    found.findings += [
        Finding("warning", f"{n}: {said}", "consumers", cure) for n, said in consumer_warnings(task).items()
    ]
    found.findings.sort(key=lambda one: one.rank)
    return found


def _of_source(
    task: Task, source: LogSource, spark: Callable[[], SparkSession], all_found: _Found
) -> list[Finding]:
    """Returns the findings about the source, tables and targets of a task; sets offers and tables."""
    states = lifecycle.read(task)
    baselines = states.baselines
    try:
        tables = wanted_tables(source, task, states, moved_tables(task, source))
    except ConfigError as error:  # a name in the task file that the source does not have
        named = name_findings(task, source, _there(task, source), known(task, states))
        wrong = [one for one in named if one.level == "error"]
        return wrong or [Finding("error", error.what, error.where or task.name, error.hint or "")]
    found = name_findings(task, source, tables, known(task, states))
    stream = newest(task)
    removed = states.removed
    attached = source.attached(sorted({*baselines, *stream.published} - removed))
    for table, root in attached.items():
        what, cure = attached_as(table, root)
        found.append(Finding("warning", what, table, cure, table))
    tables = [t for t in tables if t not in attached]
    settled = stream.state not in (ANEW, MAKING) and not live.locked(task.run_path, "capture")
    after = state(task.log_path).position

    def check_tables(names: Sequence[str]) -> list[Finding]:
        mine = source.check(names, after, stream.stored, settled=settled)
        mine += [*column_findings(task, source, names), *keyless_findings(task, source, names)]
        return mine + identity_errors(task, source, names)

    suspended = {t for t, one in states.items() if one.held == SUSPENDED}
    found += without_suspended(check_tables, tables, suspended)
    found += left_out_findings(task, source.left_out())
    all_found.offers = source.offers(tables)
    identity, unwritable = stream.identity or source.identity(), folder_findings(task)
    found += altered_findings(task, source, tables, baselines, states)
    found += identity_findings(task, tables, baselines)
    found += unwritable or owner_findings(task, tables, owner_of(task, identity), baselines)
    found += target_findings(task, tables)
    found += filled_findings(task, tables, source.relation)
    found += adoption_findings(task, tables, source.relation)
    found += gone_findings(task, tables)
    found += mapping_findings(task, source, tables, spark)
    found += open_findings(task, found, baselines, removed)
    unfit = {one.table for one in found if one.level == "error"} & suspended
    all_found.tables = [t for t in tables if t not in unfit]
    return [replace(one, level="warning") if one.table in unfit else one for one in found]


def open_findings(
    task: Task, found: Sequence[Finding], baselines: Mapping[str, Baseline], removed: Collection[str]
) -> list[Finding]:
    """Returns the open warnings of the task's processes, except those that the checks have found."""
    return [
        Finding("warning", one.what, one.table or task.name, one.cure, one.table or None)
        for one in open_warnings(task, baselines)
        if not (one.until_baseline and one.table in removed)
        and not any(one.what == f.what and f.where.endswith(one.table) for f in found)
    ]


def _there(task: Task, source: LogSource) -> list[str]:
    """Returns the tables that a task file selects and the source has."""
    there = set(source.tables(["*.*"]))
    return source.tables([t for t in task.source.tables if t in there or is_pattern(t)])


def before_run(task: Task, spark: Callable[[], SparkSession]) -> None:
    """Suspends the tables that errors of `check` are about, and raises SourceError for the other errors.

    An unreachable source is no error here: capture decides whether to wait for it, and for another reader of
    the task's slot.
    """
    with suppress(ConnectionLostError):
        found = _found(task, spark)
        left = suspend_unfit(task, found.findings, found.tables)
        report(left, waits=newest(task).state == MADE)


def without_suspended(
    check_tables: Callable[[Sequence[str]], list[Finding]], tables: Sequence[str], suspended: Collection[str]
) -> list[Finding]:
    """Returns the findings of a check of tables.

    Task errors that only suspended tables cause become warnings: capture leaves these tables out, and
    continues with the others.
    """

    def errors(names: Sequence[str]) -> list[Finding]:
        return [one for one in check_tables(names) if one.level == "error" and one.table is None]

    found, held = check_tables(tables), [t for t in tables if t in suspended]
    others = [one for one in found if one.level != "error" or one.table is not None]
    if not held or len(others) == len(found):
        return found
    free = errors([t for t in tables if t not in suspended])
    return [*free, *(replace(one, level="warning") for one in errors(held) if one not in free), *others]


def altered_findings(
    task: Task,
    source: LogSource,
    tables: Sequence[str],
    baselines: Mapping[str, Baseline],
    states: TableStates,
) -> list[Finding]:
    """Returns findings for tables whose publication was altered, or that got partitions with rows.

    Capture acts on them at its next check. Tables for which that is unknown are reported until they have a
    later baseline.
    """
    stream = Streams(task, notes=False)
    try:
        lost = stream.lost(source, tables)
    except ConnectionLostError:
        raise
    except SourceError:  # operations are left out, which the checks of the source report
        lost = {}
    # Capture publishes these together with their baselines.
    coming = {t for t, one in states.items() if one.wanted or one.gap}
    had = stream.now.published.keys() - coming
    lost = {t: why for t, why in lost.items() if why != MISSING or t in had}
    for table, (why, since) in stream.partitions.unsure().items():
        if (
            table in tables
            and table not in lost
            and (taken := baselines.get(table))
            and taken.finished_at - dt.timedelta(seconds=taken.seconds) <= since
        ):
            lost[table] = why
    return [Finding("warning", why, t, CURE.format(t), t) for t, why in lost.items()]


def gone_findings(task: Task, tables: Sequence[str]) -> list[Finding]:
    """Returns findings for tables whose targets do not have their baselines; none if the target is
    unreachable.

    They are warnings for tables that get a new baseline automatically.
    """
    with suppress(ApplyError):
        return [
            Finding(
                "warning" if task.automatic_baseline(t) else "error",
                TARGET_MISSING,
                t,
                TARGET_MISSING_HINT % t,
                t,
            )
            for t in Needs(task).without_baseline(tables)
        ]
    return []


def mapping_findings(
    task: Task, source: LogSource, tables: Sequence[str], spark: Callable[[], SparkSession]
) -> list[Finding]:
    """Returns findings about the mappings of a task."""
    mine = maps(task, tables)
    if not mine:
        return []
    layouts: dict[str, Relation] = {t: source.relation(t) for t in mine}
    fitted, found = fitted_to(task, mine, layouts)
    found += [finding(t, what, t) for t, one in fitted.items() for what in mistakes(spark, one, layouts[t])]
    if any(one.level == "error" for one in found):
        return found
    made = {t: prepare(spark, one, layouts[t]) for t, one in fitted.items()}
    for target, many in shared(list(mine.values())).items():
        found += [finding(target, what) for what in clashes([made[m.source] for m in many])]
    return found + rules_findings(task, mine) + database_findings(task, mine)
