"""Change tables of tailrace and other vendors in a Python program, and the commands that use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..model.change import PREFIX
from ..query.change_files import ChangeFiles
from ..query.table_changes import TableChanges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ..formats.inspect import Found
    from ..formats.report import ConversionReport
    from ..query.spark_changes import SparkChanges


def read(
    path: str,
    *,
    format: str = "tailrace",
    key: Sequence[str] = (),
    name: str = "",
    options: Mapping[str, str] | None = None,
    session: SparkSession | None = None,
) -> TableChanges:
    """Opens a change table for queries.

    Args:
        path: its folder, or that of several tables.
        format: its format: `tailrace` (a Delta table, read without a JVM), or a vendor's. Spark reads
            vendors' tables, with only the columns and rows that a query needs.
        key: the key's columns, which queries about rows need; by default those that a vendor's format knows.
        name: the source table; by default the folder's name, or a vendor's only table.
        options: of the format.
        session: the Spark session that reads a vendor's tables; one is started by default.

    Raises:
        ConfigError: the table or a key column does not exist, a key column is a header, or there are several
            tables and `name` is missing.
    """
    if format != "tailrace":
        found = _read_vendor(path, format, name, options or {}, session)
        return _check_key(TableChanges(found.changes.name, found, tuple(key or found.changes.key)))
    files = ChangeFiles.at(path)
    return _check_key(
        TableChanges(name or path.rstrip("/").rpartition("/")[2].removesuffix("__ct"), files, tuple(key))
    )


def _check_key(table: TableChanges) -> TableChanges:
    if missing := [k for k in table.key if k not in table.files.schema.names]:
        raise ConfigError(f"the change table has no column {', '.join(missing)}", where=table.files.path)
    if headers := [k for k in table.key if k.startswith(PREFIX)]:
        raise ConfigError(
            f"{', '.join(headers)} cannot be the key: headers describe changes, not rows",
            where=table.files.path,
            hint=f"name columns of {', '.join(table.columns) or 'the source table'}",
        )
    return table


def _read_vendor(
    path: str, format: str, name: str, options: Mapping[str, str], session: SparkSession | None
) -> SparkChanges:
    from ..formats import convert as work
    from ..query.spark_changes import SparkChanges

    side = work.side(format, path, options)
    found = {**work.read(session or _session("read"), side).changes}
    if name not in found and (name or len(found) != 1):
        raise ConfigError(
            f"there is no change table {name}" if name else f"there are {len(found)} change tables",
            where=path,
            hint=f"name one of {', '.join(sorted(found))}",
        )
    return SparkChanges(path, found[name or next(iter(found))])


def columns_changed(changes: DataFrame, mask: str = f"{PREFIX}change_mask") -> Column:
    """Returns a Spark column with the names of the columns that are set in a mask of a change table.

    The type is an array of strings: `df.withColumn("changed", tailrace.columns_changed(df))`.

    Args:
        changes: the change table with all its columns, in their order.
        mask: the column of the mask.
    """
    from pyspark.sql import functions as F

    from ..model.mask import names

    return names(F.col(mask), dict(enumerate(changes.columns)))


def apply(
    changes: str,
    target: str,
    *,
    format: str = "tailrace",
    options: Mapping[str, str] | None = None,
    on_bad: str = "fail",
    on_late: str = "fail",
    name: str = "apply",
    mode: str | None = None,
    on: Mapping[str, str] | None = None,
    soft_delete: str | None = None,
    keylog: str | None = None,
    keylog_mode: str = "all",
    transactional: bool = False,
    control: str | None = None,
    resume: bool = False,
    tables: str | Path | None = None,
    dry_run: bool = False,
    session: SparkSession | Callable[[], SparkSession] | None = None,
) -> dict[str, Any]:
    """Applies the change tables at a path to Delta tables or a PostgreSQL database, as `tailrace apply` does.

    Args:
        changes: a file, a folder, or a folder of tables.
        target: the folder of the target tables, or `postgresql://user@host:port/database`.
        format: the format of the change tables.
        options: of the format.
        on_bad: bad rows: `fail`, or `reject` (stored in `_rejects`).
        on_late: changes that are older than their target's progress: `fail`, or `skip`.
        name: the name under which the targets store their progress.
        mode: `strict`, `upsert` (the default without rules), `archive` or `soft_delete`.
        on: conflict -> policy, e.g. `{"update_missing": "log"}` (docs/apply.md).
        soft_delete: the column that marks deleted rows.
        keylog: path of the key log, a Delta table.
        keylog_mode: `all`, `keys`, `errors` or `off`.
        transactional: one commit per transaction, in order.
        control: folder of exceptions, suspended tables and rejects; the target by default.
        resume: resumes suspended tables.
        tables: a YAML file with `tables:` as in a task file: row filter and mapping of each table.
        dry_run: writes nothing, and returns the changes to apply.
        session: the Spark session, or a function that starts one; one is started by default.

    Returns:
        `tables` (a dictionary per table), `bad` (number of bad rows), `rejects` (their folder) and `notes`.

    Raises:
        ConfigError: arguments that are unknown or exclude each other, or a mapping that does not fit its
            table.
        FormatError: a bad row or an incomplete file, unless they are rejected.
        ApplyError: changes that cannot be applied, that are late, or whose target is unknown.
    """
    from ..config.tables_file import load
    from ..formats import convert as work
    from ..operate import vendor_apply, vendor_target

    given = dict(options or {})
    ruling = vendor_apply.ruling(mode, on or {}, soft_delete, keylog, keylog_mode, transactional)
    mapped = None if tables is None else load(tables)
    work.refuse_treatment(on_bad)
    skip_late = vendor_apply.skips_late(on_late)
    vendor_target.refuse_target(target, control)
    work.refuse_nothing(work.side(format, changes, given))
    spark = session() if callable(session) else session or _session("apply")
    return vendor_apply.run(
        spark, changes, format, given, target, app_id=name, fail=on_bad == "fail", dry_run=dry_run,
        ruling=ruling, resume=resume, tables=mapped, control=control, skip_late=skip_late,
    )  # fmt: skip


def convert(
    source: str,
    target: str,
    *,
    from_: str,
    to: str,
    files: str = "parquet",
    from_options: Mapping[str, str] | None = None,
    to_options: Mapping[str, str] | None = None,
    on_bad: str = "reject",
    strict: bool = False,
    session: SparkSession | None = None,
) -> ConversionReport:
    """Converts change tables between vendors' formats, and counts every loss; see
    `formats.convert.convert`."""
    from ..formats import convert as work

    reading = work.side(from_, source, dict(from_options or {}))
    writing = work.side(to, target, dict(to_options or {}), files)
    return work.convert(session or _session("convert"), reading, writing, on_bad=on_bad, strict=strict)


def inspect(
    path: str,
    *,
    format: str | None = None,
    options: Mapping[str, str] | None = None,
    rows: int = 5,
    session: SparkSession | None = None,
) -> Found:
    """Returns the format of the change tables at a path, and their defects; see `formats.inspect.inspect`."""
    from ..formats.inspect import inspect as work

    return work(session or _session("inspect"), path, form=format, given=options, rows=rows)


def _session(what: str) -> SparkSession:
    from ..query.watch import scratch_folder
    from ..runtime.session import session

    folder = scratch_folder()
    return session(f"tailrace {what}", conf={} if folder is None else {"spark.local.dir": folder})
