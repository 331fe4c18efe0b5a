"""`tailrace apply`: applies a vendor's change tables to targets. Bad rows stop it, or are rejected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..apply import target_mode as effects
from ..apply.rules import RulesApplier
from ..apply.vendor import incoming
from ..apply.vendor.applier import VendorApplier
from ..apply.vendor.incoming import Incoming
from ..apply.vendor.late_changes import LateChanges
from ..apply.vendor.mapping import map_vendor_tables
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
from . import vendor_notes, vendor_progress, vendor_reading, vendor_target
from .keylog_runs import Group, Runs, Subscription
from .vendor_progress import VendorProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ANEW = "remove the target, then apply a full load with the new layout, and the changes after it"
_DONE = ("inserted", "updated", "deleted", "missing", "plan", "version")


@dataclass(frozen=True)
class Ruling:
    """Rules and key log of a call.

    Attributes:
        rules: the rules.
        keylog: the path of the key log; None without a key log.
        keylog_mode: the changes that are logged.
        transactional: whether each transaction is one commit of the target.
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
    """Returns the rules of the options; None without such options: then changes are upserted without checks.

    Raises:
        ConfigError: a mode, conflict or policy is unknown, or options contradict each other.
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

    A table without key options or metadata is keyless: its rows are identified by all of their values, which
    its updates and deletes must have.

    Args:
        fail: whether a bad row or an incomplete file is an error.
        resume: whether suspended tables are resumed; otherwise they are skipped.
        tables: the mappings of the tables (docs/mapping.md).
        control: the folder of exceptions, suspended tables and rejects; by default the folder `target`.
        skip_late: whether late changes are skipped; otherwise they are an error.

    Returns:
        `tables` (one dictionary a table: name, rows by kind, results, and with `ruling` the changes by action
            and by conflict), `bad` (the number of rejected rows), `rejects` (their path) and `notes`.

    Raises:
        ConfigError: a mapping does not fit its table.
        FormatError: a row is bad or a file is incomplete, and `fail`; or change sequences have no order.
        ApplyError: changes cannot be applied, are late, or have no known target.
    """
    kept = vendor_target.control_folder(target, control)
    names, passed = TableNames(kept, app_id), LateChanges(kept, app_id)
    side = vendor_reading.named(convert.side(form, changes, given), names)
    files = vendor_reading.WholeFiles(spark, side, fail=fail)
    read, found, numbers = vendor_reading.read(spark, side, passed)
    files.again()
    watched = {n: (ct, *convert.observed(ct, [], fail=fail)) for n, ct in found.changes.items()}
    good = {n: ct.with_df(df) for n, (ct, df, _) in watched.items() if n not in found.apart}
    through = map_vendor_tables(
        spark,
        good,
        tables.table if tables else None,
        app_id,
        {n for n in found.partial if passed.upto(n) >= 0},
    )
    archive = ruling is not None and ruling.rules.mode == "archive"
    _refuse_types(through.changes)
    place, target, root = vendor_target.open_target(spark, target, app_id, control, through.places)
    try:
        good = vendor_reading.with_kept(place, through.changes, found, ruling.rules if ruling else Rules())
        reached = {n: incoming.reached(place, n) for n in good}
        if not archive:  # which keeps headers, too
            new = {n for n in good if reached[n] >= 0 and not numbers[n].end_at(reached[n])}
            found, good = vendor_reading.with_columns(found, good, new)
        numbers = {n: numbers[n] for n in good}
        for name in reversed(list(found.apart)):  # those first that tell how others are to be read
            watched[name][2].figures()  # their bad rows stop the call before anything is written
        progress = VendorProgress.of(root, app_id, passed, read.changes, numbers, through.digests, reached)
        good = {n: vendor_progress.followed(ct, numbers[n], reached[n]) for n, ct in good.items()}
        looks = vendor_reading.known(numbers, {n: df for n, (_, df, _) in watched.items()}, good)
        late = progress.check(changes, skip_late=skip_late)
        if not dry_run:
            _begins(progress, names, found, good)
        held = _suspensions(root, app_id, good if resume else (), dry_run=dry_run)
        applied: list[dict[str, Any]] = []
        with _running(ruling, app_id, changes, place, target, root, good, dry_run=dry_run) as log:
            applier = _applier(ruling, place, root, app_id, log, held)
            try:
                applied.extend(_each(applier, place, held, good, looks, ruling, root, dry_run=dry_run))
            finally:
                _note(names, place, {} if dry_run else reached, found, applied)
            if not dry_run:
                progress.ends(place)
    except BaselineNeededError as error:  # no task is there that would take one
        raise ApplyError(error.what, where=error.where, hint=_ANEW) from error
    except Exception as error:
        why = refused(error, changes) or convert.reason(error, changes)
        if (said := vendor_notes.explain_null_key(why, found)) is error:
            raise
        raise said from error
    report = _report(watched, applied)
    if (bad := sum(t.bad for t in report.tables.values())) and not dry_run:
        convert.keep_aside(spark, side, root, replace(found, pending={}), report)
    unkeyed = [n for n, ct in good.items() if not (ct.key or archive)]
    return {
        "tables": applied,
        "bad": bad,
        "rejects": report.rejects,
        "notes": [*files.notes, *vendor_notes.notes(found, unkeyed, late, report, changes)],
    }


def _applier(
    ruling: Ruling | None, target: Target, root: str, task: str, log: KeyLog | None, held: SuspensionStore
) -> VendorApplier | None:
    """Returns the applier under rules; None without rules."""
    if ruling is None:
        return None
    rules = RulesApplier(target, ruling.rules, root=root, task=task, keylog=log, suspensions=held)
    return VendorApplier(rules, root)


def _report(
    watched: Mapping[str, tuple[Any, Any, RowCount]], applied: Iterable[Mapping[str, Any]]
) -> ConversionReport:
    """Returns the outcome of the rows that were read."""
    report = ConversionReport()
    passed_over = {one["table"] for one in applied if one.keys() == {"table", "suspended"}}
    for name, (_, _, seen) in watched.items():
        if name not in passed_over:  # its rows were not read
            got = seen.figures()
            finer = {convert.FRACTION: got[FINER]} if got.get(FINER) else {}
            report.tables[name] = TableReport(got["rows"], got["bad"], finer, got["again"])
    return report


def _each(
    applier: VendorApplier | None,
    place: Target,
    held: SuspensionStore,
    good: Mapping[str, ChangeTable],
    looks: Mapping[str, Incoming],
    ruling: Ruling | None,
    root: str,
    *,
    dry_run: bool,
) -> Iterator[dict[str, Any]]:
    """Applies the tables one after the other, and yields the results; tables of `looks` are not scanned
    again."""
    for table, ct in sorted(good.items()):
        if applier is not None:
            cut, look = ruling is not None and ruling.transactional, looks.get(table)
            yield _under_rules(applier, place, table, ct, look, transactional=cut, dry_run=dry_run)
        elif (why := held.reason(table)) is not None:
            yield {"table": table, "suspended": why}
        else:
            yield _one(place, table, ct, looks.get(table), root, dry_run=dry_run)


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
            hint="leave these columns out, or convert them with a mapping (`--tables FILE`); "
            "a key has no arrays",
        )


def _suspensions(root: str, app_id: str, resumed: Iterable[str], *, dry_run: bool) -> SuspensionStore:
    """Returns the suspended tables, without those that are resumed."""
    held = Suspensions(root, app_id)
    if dry_run:
        return held.without(resumed)
    for table in resumed:
        held.resume(table)
    return held


def _begins(
    progress: VendorProgress, names: TableNames, found: Read, good: Mapping[str, ChangeTable]
) -> None:
    """Notes the changes that targets are about to get, and their ids, so that they are known after a
    crash."""
    progress.begins()
    names.note({n: i for n, i in found.ids.items() if n in good and n not in found.unnamed})


def _note(
    names: TableNames,
    target: Target,
    before: Mapping[str, int],
    found: Read,
    applied: Iterable[Mapping[str, Any]],
) -> None:
    """Notes the vendor's ids of the tables that have a target now; `before` is the earlier progress of
    targets."""
    there = {n: reached for n, reached in before.items() if incoming.reached(target, n) >= 0}
    # Of one without a name whose target was there before, earlier changes are perhaps elsewhere; where
    # nothing was inserted, its first name may come yet.
    filled = {one["table"] for one in applied if one.get("inserted")}
    sure = [n for n, reached in there.items() if n not in found.unnamed or (reached < 0 and n in filled)]
    names.note({n: found.ids[n] for n in sure if n in found.ids})


def skips_late(on_late: str) -> bool:
    """Returns whether late changes are skipped (`skip`) or refused (`fail`); ConfigError for other texts."""
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
    """Yields the key log, with a run of each table for the duration of the block; None without a key log.

    Rows that a crash kept from the key log are added first, except in a dry run.
    """
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
    held = Suspensions(root, app_id)
    log.runs |= runs.run_ids(Subscription(t, rules, mode) for t in sorted(tables))
    try:
        yield log
    except BaseException as error:
        runs.end({t: held.reason(t) for t in tables}, error=str(error) or type(error).__name__)
        raise
    runs.end({t: held.reason(t) for t in tables})


def _under_rules(
    applier: VendorApplier,
    target: Target,
    name: str,
    changes: ChangeTable,
    look: Incoming | None,
    *,
    transactional: bool,
    dry_run: bool,
) -> dict[str, Any]:
    reached = incoming.reached(target, name)
    apply = partial(applier.apply, found=look, transactional=transactional)
    done = applier.preview(changes) if dry_run else apply(changes)
    row: dict[str, Any] = {"table": name, **done.counts, "progress": _known(reached)}
    row |= {"up to": _known(max(order_key(done.end), reached))}
    row |= {"actions": dict(done.actions), "conflicts": dict(done.conflicts), "flagged": done.flagged}
    if not dry_run:
        row |= {k: asdict(done.outcome)[k] for k in _DONE}
    return row | {"suspended": done.suspended}


def _one(
    target: Target, name: str, changes: ChangeTable, look: Incoming | None, root: str, *, dry_run: bool
) -> dict[str, Any]:
    if target.exists(name):
        effects.check_mode(target, name, changes.columns, Rules())
    reached = incoming.reached(target, name)
    if look is None or dry_run or look.upto <= reached:  # otherwise its rows are counted by apply
        look = incoming.look(changes)
    counted = {k: look.counts[k] for k in "IUDT"}
    row = {"table": name, **counted, "progress": _known(reached), "up to": look.upto}
    if dry_run:
        if incoming.is_new(target, look):
            incoming.refuse_unclear(target, changes, look)
            incoming.lay_out(target, look.relation, dry_run=True)
        return {**row, "would do": "nothing: already applied" if reached >= look.upto else "apply"}
    done = asdict(incoming.apply_one(target, changes, look, root))
    return row | {k: done[k] for k in _DONE}


def _known(reached: int) -> int | None:
    """Returns progress for a report: None if the target has none yet."""
    return None if reached < 0 else reached
