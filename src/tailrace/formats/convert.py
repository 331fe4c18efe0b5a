"""Converts one vendor's tables to another's: reads, checks, rejects bad rows, counts losses, writes.

It takes one pass over the input, and a second one to read bad rows again if there are any. No rows are
collected in the driver: Spark's metrics report the counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import formats
from ..errors import ConfigError, FormatError, TailraceError, from_spark
from ..model.change import ChangeTable
from . import checks, file_reader, file_writer, folders, new_folder, recognition
from .base import (
    ADDED_COLUMNS,
    FILE,
    FINER,
    OWN,
    RAW,
    ROW,
    WHY,
    Format,
    Gap,
    Options,
    Read,
    refuse_own,
    shown,
)
from .report import ConversionReport, RowCount, TableReport, again, counted, nothing, unfit
from .spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REJECTS, PENDING = "_rejects", "_pending"
"""Folders next to the written tables: bad rows; rows that change nothing (signals) or wait for more input."""
ON_BAD = ("reject", "fail")
_ASIDE = "\n  hint: `--on-bad reject` writes bad rows and their reasons to a separate table"
FRACTION = "fraction finer than microseconds"
"""The loss of time fractions that no lake type can hold; identical for every output format."""


@dataclass(frozen=True)
class Side:
    """A format, its options and the path of its tables; `kind` is the kind of file to write."""

    form: Format
    options: Options
    path: str
    kind: str = "parquet"


def load(spark: SparkSession, side: Side) -> dict[str, DataFrame]:
    """Returns the vendor's tables of a side."""
    if side.form.load:
        tables = side.form.load(spark, side.path, side.options)
    else:
        tables = file_reader.load(spark, side.path, side.options, side.form.knows)
    refuse_own(tables, side.path)
    return tables


def read(spark: SparkSession, side: Side, *, check: bool = True) -> Read:
    """Returns the canonical change tables of a side, every bad row with its reason in `WHY`; raises
    ConfigError if a command has not finished writing them."""
    new_folder.refuse_half(side.path)
    return _read(spark, side, check=check)


def _read(spark: SparkSession, side: Side, *, check: bool = True) -> Read:
    tables = load(spark, side)
    found = side.form.read(tables, side.options)
    found = replace(found, notes=tuple(dict.fromkeys([*found.notes, *file_reader.notes_of(tables)])))
    if not check:
        return found
    return replace(found, changes={n: checks.together(ct) for n, ct in found.changes.items()})


def key_notes(found: Read, form: Format) -> list[str]:
    """Returns notes about tables with an unknown key."""
    option = next((n for n in ("key", "keys") if n in form.options.model_fields), "key")
    return [f"{name}: {why}; name the key with the option {option}" for name, why in found.keyless.items()]


def odd_files(spark: SparkSession, side: Side) -> list[str]:
    """Returns a line for each file whose number of rows differs from its metadata."""
    return side.form.complete(spark, side.path, side.options) if side.form.complete else []


def convert(
    spark: SparkSession, source: Side, target: Side, *, on_bad: str = "reject", strict: bool = False
) -> ConversionReport:
    """Reads the tables of one side and writes them as the other's.

    Args:
        spark: the session.
        source: the side to read.
        target: the side to write; its path must be new or empty.
        on_bad: `reject` writes bad rows to the folder `_rejects` next to the tables (columns: table, reason,
            file, row, content), `fail` stops at the first one.
        strict: stops at the first value that the target's format cannot hold.

    Raises:
        ConfigError: the target is not empty, or the format does not have that kind of file.
        FormatError: the input does not match the format; a bad row with `fail`; a loss with `strict`.
    """
    refuse(source, target, on_bad)
    try:
        with new_folder.filled(target.path, _start(target)):
            return _convert(spark, source, target, fail=on_bad == "fail", strict=strict)
    except Exception as error:
        if (known := reason(error, source.path)) is not error:
            raise known from error
        raise


def refuse(source: Side, target: Side, on_bad: str = "reject") -> None:
    """Raises ConfigError for arguments that `convert` refuses before it reads anything."""
    refuse_treatment(on_bad)
    if target.kind not in target.form.files:
        listed = ", ".join(target.form.files)
        raise ConfigError(
            f"{target.form.name} cannot be written as {target.kind} files", hint=f"it has {listed}"
        )
    refuse_nothing(source)
    new_folder.refuse_used(target.path, _start(target))


def refuse_treatment(on_bad: str) -> None:
    """Raises ConfigError for an unknown treatment of bad rows."""
    if on_bad not in ON_BAD:
        raise ConfigError(
            f"unknown treatment of bad rows: {on_bad!r}", hint=f"use one of {', '.join(ON_BAD)}"
        )


def refuse_nothing(source: Side) -> None:
    """Raises ConfigError or FormatError if there is nothing to read."""
    folders.existing_path(source.path)
    new_folder.refuse_half(source.path)
    if source.form.refuse is None:
        file_reader.refuse_nothing(source.path)
    else:
        source.form.refuse(source.path, source.options)


def _start(target: Side) -> new_folder.Start:
    """Returns how a format treats the contents of the folder that it writes to."""
    if target.form.save is None or "start" not in target.options.model_fields_set:
        return "new"
    return "more" if getattr(target.options, "start", "") == "keep" else "over"


def _convert(
    spark: SparkSession, source: Side, target: Side, *, fail: bool, strict: bool
) -> ConversionReport:
    found = _read(spark, source)  # without a check: it may be in the folder that is written
    if target.form.by_number is not None and target.form.by_number(target.options):
        found = replace(found, changes={n: checks.in_order(ct) for n, ct in found.changes.items()})
    odd = [*key_notes(found, source.form), *odd_files(spark, source), *_other_vendors(found, source)]
    report = ConversionReport(notes=[*found.notes, *odd])
    watched: dict[str, tuple[RowCount, list[Gap]]] = {}
    good: dict[str, ChangeTable] = {}
    for name, ct in found.changes.items():
        gaps = target.form.gaps(ct, target.options)
        df, seen = observed(ct, gaps, fail=fail, strict=strict, to=target.form.name)
        watched[name] = (seen, gaps)
        good[name] = ct.with_df(df)
    tables = target.form.write(good, target.options)
    for name, df in found.control_tables.items():
        if (kept := control_table(name, df, target.form, strict=strict)) is not None:
            tables[name], seen = observed(ChangeTable(kept, [], [], name=name), [], fail=fail)
            watched[name] = (seen, [])
    written = {n: counted(df, f"written {n}") for n, df in tables.items()}
    counting = {n: df for n, (df, _) in written.items()}
    if target.form.save:
        target.form.save(counting, target.path, target.kind, target.options)
    else:
        file_writer.save(counting, target.path, target.kind)
    report.written = {n: seen.figures()["rows"] for n, (_, seen) in written.items()}
    for name, (seen, gaps) in watched.items():
        got = seen.figures()
        lost = {g.kind: got[f"lost {i}"] for i, g in enumerate(gaps)}
        lost[FRACTION] = got.get(FINER, 0)
        some = {k: n for k, n in lost.items() if n}
        report.tables[name] = TableReport(got["rows"], got["bad"], some, got["again"])
    for name in [n for n in found.control_tables if n not in watched]:
        left = found.control_tables[name].count()  # a control table is small
        report.tables[name] = TableReport(left, lost={"table": left})
    keep_aside(spark, source, target.path, found, report)
    report.notes += [*unfit(report), *again(report), *nothing(report, source.path)]
    return report


def control_table(name: str, df: DataFrame, form: Format, *, strict: bool) -> DataFrame | None:
    """Returns a table without changes in the form in which a format stores it; None if it is left out.

    Raises:
        FormatError: the format cannot store it, and nothing may be lost.
    """
    converted = form.control_table(name, df) if form.control_table else None
    if converted is None and strict:
        raise FormatError(f"{form.name} cannot hold the table {name}", hint="without --strict it is left out")
    return converted


def observed(
    ct: ChangeTable, gaps: list[Gap], *, fail: bool, strict: bool = False, to: str = ""
) -> tuple[DataFrame, RowCount]:
    """Returns the good rows, counted in the same pass; `fail` and `strict` stop the job at the first row that
    they forbid."""
    # As columns first: some losses depend on a change's other row, which no metric can see.
    marks = {f"{OWN}lost{i}": F.coalesce(g.lost(ct), F.lit(False)) for i, g in enumerate(gaps)}
    df = ct.df.withColumns(marks) if marks else ct.df
    if fail:
        df = df.filter(
            _stop(
                checks.is_bad(),
                F.concat(F.lit(f"bad row in {ct.name}: "), F.col(WHY), _at(df), F.lit(_ASIDE)),
            )
        )
    none = F.lit(False)
    bad, copy = (checks.is_bad(), checks.is_copy()) if WHY in df.columns else (none, none)
    good = ~(bad | copy)
    what = [
        F.sum(F.when(mine, 1).otherwise(0)).alias(name)
        for name, mine in (("rows", good), ("bad", bad), ("again", copy))
    ]
    for i, gap in enumerate(gaps):
        lost = F.col(f"{OWN}lost{i}") & good
        what.append(F.sum(F.when(lost, 1).otherwise(0)).alias(f"lost {i}"))
        if strict:
            said = f"{ct.name}: {to} cannot hold {gap.kind}: {gap.why}"
            df = df.filter(_stop(lost, F.lit(said)))
    if FINER in df.columns:
        finer = F.coalesce(F.col(FINER), F.lit(False)) & good
        what.append(F.sum(F.when(finer, 1).otherwise(0)).alias(FINER))
        if strict:
            df = df.filter(_stop(finer, F.lit(f"{ct.name}: a {FRACTION}")))
    rows, seen = counted(df, f"changes {ct.name}", what)
    return rows.filter(good).drop(*marks, *ADDED_COLUMNS), seen


def _stop(condition: Column, text: Column) -> Column:
    """Returns True for every row, or ends the job with the text if the condition is true."""
    said = F.concat(F.lit("tailrace.errors.FormatError: "), text, F.lit("\n\n"))
    return F.when(condition, F.raise_error(said).isNull()).otherwise(F.lit(True))


def _at(df: DataFrame) -> Column:
    return F.concat(F.lit(" ("), F.col(FILE), F.lit(")")) if FILE in df.columns else F.lit("")


def _other_vendors(found: Read, source: Side) -> list[str]:
    """Returns notes about other vendors' tables, whose rows are copied unchanged."""
    columns = {n: df.columns for n, df in found.control_tables.items()}
    mine = {n for n, names in columns.items() if source.form.knows(names)}
    return [
        f"{n} is a table of {other}: its rows are not converted; use `--from {other}`"
        for n, other in sorted(recognition.by_columns(columns).items())
        if other and n not in mine
    ]


def keep_aside(spark: SparkSession, source: Side, path: str, found: Read, report: ConversionReport) -> None:
    """Writes bad rows and pending rows to separate tables; they are few, so they are read again."""
    loaded: dict[str, DataFrame] | None = None
    rejects = None
    for name, df in ({n: ct.df for n, ct in found.changes.items()} | found.control_tables).items():
        if name not in report.tables or not report.tables[name].bad:
            continue
        rows = df.filter(checks.is_bad())
        if FILE in rows.columns and ROW in rows.columns:
            loaded = loaded if loaded is not None else _uncounted(load(spark, source))
            rows = file_reader.count_rows(rows, _places(loaded)) if loaded else rows
        one = rows.select(
            F.lit(name).alias("table"),
            F.col(WHY).alias("reason"),
            (F.col(FILE) if FILE in rows.columns else F.lit(None).cast("string")).alias("file"),
            (F.col(ROW) if ROW in rows.columns else F.lit(None).cast("bigint")).alias("row"),
            (F.col(RAW) if RAW in rows.columns else F.lit(None).cast("string")).alias("content"),
        )
        rejects = one if rejects is None else rejects.unionByName(one)
    if rejects is not None:
        report.rejects = str(Path(path) / REJECTS)
        _append_new(rejects, report.rejects)
    for name, df in found.pending.items():
        waiting = str(Path(path) / PENDING / name)
        seen_df, seen = counted(df, f"pending {name}")
        short = shown(df.columns)
        # Replaces the rows that were pending before.
        seen_df.withColumnsRenamed(short).write.mode("overwrite").parquet(waiting)
        if seen.figures()["rows"]:
            report.pending = str(Path(path) / PENDING)
            written = spark.read.parquet(waiting).withColumnsRenamed({s: c for c, s in short.items()})
            report.notes += waiting_rows({name: written})
        else:
            shutil.rmtree(waiting)
            with suppress(OSError):  # it may contain other files
                Path(waiting).parent.rmdir()


def waiting_rows(pending: Mapping[str, DataFrame]) -> list[str]:
    """Describes pending rows (`Read.pending`): a line per table and reason, with the number of rows."""
    said = []
    for name, df in pending.items():
        why = F.col(WHY) if WHY in df.columns else F.lit(None).cast("string")
        counted_ = df.groupBy(why.alias("why")).agg(F.count(F.lit(1)).alias("n")).orderBy("why").collect()
        said += [
            f"{name}: {r['n']:,} rows change nothing: {r['why'] or 'signals, or unfinished'}"
            for r in counted_
        ]
    return said


def _append_new(rows: DataFrame, path: str) -> None:
    """Appends rows to a table of rejects; rows that it already has are not added again."""
    if not Path(path).exists():
        rows.write.parquet(path)
        return
    existing = rows.sparkSession.read.schema(rows.schema).parquet(path)
    new = rows.exceptAll(existing).persist()
    if not new.isEmpty():
        new.write.mode("append").parquet(path)
    new.unpersist()


def _uncounted(tables: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Returns the tables whose rows have not been counted yet."""
    numbered = {n: df for n, df in tables.items() if ROW in df.columns}
    return {n: df for n, df in numbered.items() if file_reader.UNCOUNTED in df.schema[ROW].metadata}


def _places(tables: Mapping[str, DataFrame]) -> DataFrame:
    from functools import reduce

    return reduce(lambda a, b: a.unionAll(b), [df.select(FILE, ROW) for df in tables.values()])


def reason(error: Exception, where: str) -> Exception:
    """Returns a tailrace error for a Spark error about the input; otherwise the error itself."""
    if isinstance(error, TailraceError):
        return error
    found = from_spark(error, where=where)
    return found if isinstance(found, FormatError) else error


def side(name: str, path: str, given: Mapping[str, str], kind: str = "parquet") -> Side:
    """Returns a side from what the user typed."""
    form = formats.get(name)
    return Side(form, formats.options(form, dict(given)), path, kind)


__all__ = [
    "PENDING",
    "REJECTS",
    "ConversionReport",
    "Side",
    "TableReport",
    "convert",
    "load",
    "read",
    "side",
    "waiting_rows",
]
