"""`tailrace apply`: applies a vendor's change tables to targets. Bad rows stop it, or are rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..apply import target_mode
from ..apply.rules import RulesApplier
from ..apply.vendor import sequence_stats, upsert
from ..apply.vendor.applied_files import AppliedFiles, refuse_late
from ..apply.vendor.applier import VendorApplier
from ..apply.vendor.change_stats import ChangeStats, scan
from ..apply.vendor.mapping import map_vendor_tables
from ..apply.vendor.sequence_stats import Files
from ..apply.vendor.table_names import TableNames
from ..config.table_settings import mode_of
from ..config.tables_file import TablesFile
from ..engine.rules import SOFT_COLUMN, Rules
from ..errors import ApplyError, BaselineNeededError, ConfigError, UnsupportedError
from ..formats import convert
from ..formats.base import FINER, Read
from ..formats.report import ConversionReport, RowCount, TableReport
from ..keylog.control_tables import Suspensions, SuspensionStore
from ..keylog.key_log import KeyLog
from ..keylog.notes import recover
from ..model.change import ChangeTable
from ..model.positions import order_key
from ..model.types import element_type, is_lake_type
from ..targets.base import Target
from ..targets.images import refused
from . import vendor_notes, vendor_reading, vendor_target
from .keylog_runs import Group, Runs, Subscription

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NEW_LOAD = "remove the target, then apply a full load with the new layout, and the changes after it"
_DONE = ("inserted", "updated", "deleted", "missing", "plan", "version")


@dataclass(frozen=True)
class Ruling:
    """Rules and key log of a call.

    Attributes:
        rules: the rules.
        keylog: path of the Delta table of the key log, if one is written.
        keylog_mode: which rows it has.
        transactional: each transaction is committed separately.
    """

    rules: Rules
    keylog: str | None = None
    keylog_mode: str = "all"
    transactional: bool = False


def ruling(
    mode: str | None,
    on: Mapping[str, str],
    soft_column: str | None,
    keylog: str | None,
    keylog_mode: str,
    transactional: bool = False,
) -> Ruling | None:
    """The rules that the options ask for; None if they ask for none: changes are upserted without checks.

    Raises:
        ConfigError: an unknown mode, conflict or policy; options that exclude each other.
    """
    try:
        chosen = mode_of(mode, soft_column)
    except ValueError as error:
        raise ConfigError(str(error), hint="use `--mode soft_delete`") from None
    if mode is None and not on and soft_column is None and keylog is None and not transactional:
        return None
    rules = Rules.of(chosen, on, soft_column or SOFT_COLUMN)
    if keylog is not None:
        KeyLog(keylog, app_id="", run_id="", mode=keylog_mode)  # refuses an unknown mode
    return Ruling(rules, keylog, keylog_mode, transactional)


def run(
    spark: SparkSession,
    changes: str,
    form: str,
    given: Mapping[str, str],
    target: str,
    *,
    app_id: str = "apply",
    fail: bool = True,
    dry_run: bool = False,
    ruling: Ruling | None = None,
    resume: bool = False,
    tables: TablesFile | None = None,
    control: str | None = None,
    skip_late: bool = False,
) -> dict[str, Any]:
    """Applies the change tables at a path to the Delta tables under `target`, or to a PostgreSQL database.

    A table without key options or metadata is keyless: its rows are identified by all of their values, so its
    updates and deletes must have them.

    Args:
        spark: the session.
        changes: the path.
        form: the name of the format.
        given: its options.
        target: folder or address.
        app_id: the name of the call's progress.
        fail: whether bad rows and incomplete files stop the call.
        dry_run: nothing is written.
        ruling: rules and key log.
        resume: suspended tables continue; otherwise they are skipped.
        tables: the mappings (docs/mapping.md).
        control: folder of exceptions, suspended tables and rejects; by default `target`, if it is a folder.
        skip_late: changes below the progress of their target are skipped; otherwise they stop the call.

    Returns:
        `tables`, a dictionary for each table: name, rows by kind, results, and with `ruling` the changes by
        action and by conflict; `bad`, the number of rejected rows; `rejects`, their path; `notes`.

    Raises:
        ConfigError: a mapping does not fit its table.
        FormatError: a bad row or an incomplete file, with `fail`; change sequences that progress cannot use.
        ApplyError: late changes, changes of an unknown target, changes that cannot be applied.
    """
    folder = vendor_target.control_folder(target, control)
    names, applied = TableNames(folder, app_id), AppliedFiles(folder, app_id)
    side = vendor_reading.with_names(convert.side(form, changes, given), names)
    files = vendor_reading.IncompleteFiles(spark, side, fail=fail)
    read, found, stats = vendor_reading.read(spark, side, applied)
    files.check_new()
    watched = {n: (ct, *convert.observed(ct, [], fail=fail)) for n, ct in found.changes.items()}
    good = {n: ct.with_df(df) for n, (ct, df, _) in watched.items() if n not in found.apart}
    mapped = map_vendor_tables(
        spark,
        good,
        tables.table if tables else None,
        app_id,
        incomplete={n for n in found.partial if applied.end(n) >= 0},
    )
    archive = ruling is not None and ruling.rules.mode == "archive"
    _refuse_types(mapped.changes)
    place, target, root = vendor_target.open_target(spark, target, app_id, control, mapped.target_of)
    try:
        good = vendor_reading.as_in_target(place, mapped.changes, found, ruling.rules if ruling else Rules())
        reached = {n: upsert.reached(place, n) for n in good}
        if not archive:  # an archive keeps headers, too
            changed = {n for n in good if 0 <= reached[n] < stats[n].end(reached[n])}
            found, good = vendor_reading.without_bare(found, good, changed)
        stats = {n: stats[n] for n in good}
        for name in reversed(list(found.apart)):  # tables that say how others are read come first
            watched[name][2].figures()  # their bad rows stop the call before anything is written
        good = {n: sequence_stats.numbered(ct, stats[n], reached[n]) for n, ct in good.items()}
        known = vendor_reading.known_stats(stats, {n: df for n, (_, df, _) in watched.items()}, good)
        applied.check_mappings(mapped.digests, reached)
        late = applied.late(stats, reached, _counter(read))
        refuse_late({} if skip_late else late, changes)
        if not dry_run:
            applied.record(stats, mapped.digests, reached)
            names.record({n: i for n, i in found.ids.items() if n in good and n not in found.unnamed})
        suspensions = _suspensions(root, app_id, good if resume else (), dry_run=dry_run)
        results: list[dict[str, Any]] = []
        with _running(ruling, app_id, changes, place, target, root, good, dry_run=dry_run) as log:
            rules = _rules_applier(ruling, place, root, app_id, log, suspensions)
            try:
                results.extend(_each(ruling, rules, place, suspensions, good, known, root, dry_run=dry_run))
            finally:
                _record_unnamed(names, place, {} if dry_run else reached, found, results)
    except BaselineNeededError as error:  # no task takes a baseline here
        raise ApplyError(error.what, where=error.where, hint=_NEW_LOAD) from error
    except Exception as error:
        reason = refused(error, changes) or convert.reason(error, changes)
        if (shown := vendor_notes.explain_null_key(reason, found)) is error:
            raise
        raise shown from error
    report = _report(watched, results)
    if (bad := sum(t.bad for t in report.tables.values())) and not dry_run:
        convert.keep_aside(spark, side, root, replace(found, pending={}), report)
    keyless = [n for n, ct in good.items() if not (ct.key or archive)]
    return {
        "tables": results,
        "bad": bad,
        "rejects": report.rejects,
        "notes": [*files.notes, *vendor_notes.notes(found, keyless, late, report, changes)],
    }


def _counter(read: Read) -> Callable[[str, int], Files]:
    """Returns a function that counts a table's changes up to a number, by file."""
    return lambda table, end: sequence_stats.scan(read.changes[table], end).passed


def _rules_applier(
    ruling: Ruling | None,
    place: Target,
    root: str,
    app_id: str,
    log: KeyLog | None,
    suspensions: SuspensionStore,
) -> RulesApplier | None:
    """Returns what applies changes under rules; None without rules."""
    if ruling is None:
        return None
    return RulesApplier(place, ruling.rules, root=root, task=app_id, keylog=log, suspensions=suspensions)


def _each(
    ruling: Ruling | None,
    rules: RulesApplier | None,
    place: Target,
    suspensions: SuspensionStore,
    good: Mapping[str, ChangeTable],
    known: Mapping[str, ChangeStats],
    root: str,
    *,
    dry_run: bool,
) -> Iterator[dict[str, Any]]:
    """Applies the tables one after the other. Yields the row of the result of each."""
    for name, ct in sorted(good.items()):
        if ruling is not None and rules is not None:
            yield _under_rules(
                VendorApplier(rules, root),
                place,
                ct,
                known.get(name),
                transactional=ruling.transactional,
                dry_run=dry_run,
            )
        elif (why := suspensions.reason(name)) is not None:
            yield {"table": name, "suspended": why}
        else:
            yield _upserted(place, ct, known.get(name), root, dry_run=dry_run)


def _report(
    watched: Mapping[str, tuple[Any, Any, RowCount]], results: Iterable[Mapping[str, Any]]
) -> ConversionReport:
    """The counts of the rows that were read; without suspended tables, whose rows were not."""
    report = ConversionReport()
    skipped = {one["table"] for one in results if one.keys() == {"table", "suspended"}}
    for name, (_, _, seen) in watched.items():
        if name not in skipped:
            got = seen.figures()
            finer = {convert.FRACTION: got[FINER]} if got.get(FINER) else {}
            report.tables[name] = TableReport(got["rows"], got["bad"], finer, got["again"])
    return report


def _refuse_types(changes: Mapping[str, ChangeTable]) -> None:
    """Raises UnsupportedError for columns of types that no target supports, for all tables at once."""
    wrong = []
    for name, table in sorted(changes.items()):
        columns = set(table.columns)
        for field in table.df.schema:
            kind = field.dataType.simpleString()
            if field.name in columns and not is_lake_type(kind):
                wrong.append(f"{name}: column {field.name} is {kind}")
            elif field.name in table.key and element_type(kind):
                wrong.append(f"{name}: column {field.name} of the key is {kind}")
    if wrong:
        raise UnsupportedError(
            f"types that no target supports: {'; '.join(wrong)}",
            where=", ".join(sorted({w.partition(":")[0] for w in wrong})),
            hint="leave these columns out or convert them: `--tables FILE` with a mapping; a key cannot have "
            "arrays",
        )


def _suspensions(root: str, app_id: str, resumed: Iterable[str], *, dry_run: bool) -> SuspensionStore:
    """The suspended tables, without those that are resumed."""
    suspensions = Suspensions(root, app_id)
    if dry_run:
        return suspensions.without(resumed)
    for table in resumed:
        suspensions.resume(table)
    return suspensions


def _record_unnamed(
    names: TableNames,
    target: Target,
    before: Mapping[str, int],
    found: Read,
    results: Iterable[Mapping[str, Any]],
) -> None:
    """Records the vendor's ids of the tables whose rows give no name, if their target is sure.

    It is sure if the call created and filled it. Earlier changes of another one may be in a target with a
    name, and a table without inserts may still get its first name. `before`: the progress before the call.
    """
    filled = {one["table"] for one in results if one.get("inserted")}
    sure = [
        n
        for n, reached in before.items()
        if n in found.unnamed and n in filled and reached < 0 <= upsert.reached(target, n)
    ]
    names.record({n: found.ids[n] for n in sure if n in found.ids})


def skips_late(on_late: str) -> bool:
    """Whether late changes are skipped (`skip`), not refused (`fail`).

    Raises:
        ConfigError: another value.
    """
    if on_late not in ("fail", "skip"):
        raise ConfigError(f"unknown treatment of late changes: {on_late!r}", hint="use fail or skip")
    return on_late == "skip"


@contextmanager
def _running(
    ruling: Ruling | None,
    app_id: str,
    source: str,
    place: Target,
    target: str,
    root: str,
    tables: Iterable[str],
    *,
    dry_run: bool,
) -> Iterator[KeyLog | None]:
    """The key log, with a run of each table until the block ends; None if none is written. Rows that a crash
    kept from it are added first, except in a dry run."""
    if ruling is None or ruling.keylog is None:
        yield None
        return
    log = KeyLog(ruling.keylog, app_id=app_id, run_id="", mode=ruling.keylog_mode)
    if not dry_run:
        recover(place.capabilities.key_log_notes(), log)
    if dry_run or ruling.keylog_mode == "off":
        yield log
        return
    runs = Runs(ruling.keylog, Group(app_id, app_id, source, target))
    rules, mode = ruling.rules.mode, ruling.keylog_mode
    suspensions = Suspensions(root, app_id)
    log.runs |= runs.run_ids(Subscription(t, rules, mode) for t in sorted(tables))
    try:
        yield log
    except BaseException as error:
        runs.end({t: suspensions.reason(t) for t in tables}, error=str(error) or type(error).__name__)
        raise
    runs.end({t: suspensions.reason(t) for t in tables})


def _under_rules(
    applier: VendorApplier,
    target: Target,
    changes: ChangeTable,
    stats: ChangeStats | None,
    *,
    transactional: bool,
    dry_run: bool,
) -> dict[str, Any]:
    """Applies a table under rules. Returns its row of the result."""
    reached = upsert.reached(target, changes.name)
    apply = partial(applier.apply, stats=stats, transactional=transactional)
    done = applier.preview(changes) if dry_run else apply(changes)
    row: dict[str, Any] = {"table": changes.name, **done.counts, "progress": _known(reached)}
    row |= {"up to": _known(max(order_key(done.end), reached)), "actions": dict(done.actions)}
    row |= {"conflicts": dict(done.conflicts), "flagged": done.flagged}
    if not dry_run:
        row |= {k: asdict(done.outcome)[k] for k in _DONE}
    return row | {"suspended": done.suspended}


def _upserted(
    target: Target, changes: ChangeTable, stats: ChangeStats | None, root: str, *, dry_run: bool
) -> dict[str, Any]:
    """Upserts a table. Returns its row of the result."""
    name = changes.name
    if target.exists(name):
        target_mode.check_mode(target, name, changes.columns, Rules())
    reached = upsert.reached(target, name)
    if stats is None or dry_run or stats.end <= reached:  # nothing else would count the rows
        stats = scan(changes)
    row = {"table": name, **{k: stats.counts[k] for k in "IUDT"}, "progress": _known(reached)}
    row |= {"up to": stats.end}
    if dry_run:
        if upsert.is_new(target, stats):
            upsert.refuse_unidentified(target, changes, stats)
            upsert.set_layout(target, stats.relation, dry_run=True)
        return {**row, "would do": "nothing: already applied" if reached >= stats.end else "apply"}
    done = asdict(upsert.apply_one(target, changes, stats, root))
    return row | {k: done[k] for k in _DONE}


def _known(reached: int) -> int | None:
    """Returns progress for a report: None if nothing was applied."""
    return None if reached < 0 else reached
