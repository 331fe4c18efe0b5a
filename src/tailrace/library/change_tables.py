"""Anybody's change tables in a Python program, and what the commands do with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Anybody's change table, to be asked.

    Args:
        path: its folder, or that of several tables.
        format: whose it is: `tailrace` (a Delta table, read without a JVM), or a vendor's, which Spark reads:
            of a question only the columns and rows that it needs.
        key: names of the key's columns, which questions about rows need; of vendors' tables those that the
            format knows by default.
        name: the source table; of tailrace's tables the folder's name by default, of a vendor's the only one.
        options: of the format.
        session: the Spark session that reads a vendor's tables; one is started by default.

    Raises:
        ConfigError: there is no such table, it lacks a key column, or one is a header, or there are several
            and none is named.
    """
    if format != "tailrace":
        found = _of_vendor(path, format, name, options or {}, session)
        return _keyed(TableChanges(found.changes.name, found, tuple(key or found.changes.key)))
    files = ChangeFiles.at(path)
    return _keyed(
        TableChanges(name or path.rstrip("/").rpartition("/")[2].removesuffix("__ct"), files, tuple(key))
    )


def _keyed(table: TableChanges) -> TableChanges:
    if missing := [k for k in table.key if k not in table.files.schema.names]:
        raise ConfigError(f"the change table has no column {', '.join(missing)}", where=table.files.path)
    if headers := [k for k in table.key if k.startswith(PREFIX)]:
        raise ConfigError(
            f"{', '.join(headers)} cannot be the key: headers tell of changes, not of rows",
            where=table.files.path,
            hint=f"name columns of {', '.join(table.columns) or 'the source table'}",
        )
    return table


def _of_vendor(
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
    """The names of the columns that are set in a mask of a change table, as a column of Spark (array of
    strings): `df.withColumn("changed", tailrace.columns_changed(df))`.

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
    session: SparkSession | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Applies the change tables at a path to Delta tables or a PostgreSQL database, as `tailrace apply` does.

    `options`: of the format. `more`, and what is given and raised: see `operate.vendor_apply.run`. Uses the
    Spark session that is given, or starts one.
    """
    from ..operate.vendor_apply import run

    return run(session or _session("apply"), changes, format, dict(options or {}), target, **more)


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
    """Turns one vendor's change tables into another's, counting every loss; see `formats.convert.convert`."""
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
    """Says whose change tables are at a path, and what looks wrong; see `formats.inspect.inspect`."""
    from ..formats.inspect import inspect as work

    return work(session or _session("inspect"), path, form=format, given=options, rows=rows)


def _session(what: str) -> SparkSession:
    from ..query.watch import scratch
    from ..runtime.session import session

    folder = scratch()
    return session(f"tailrace {what}", conf={} if folder is None else {"spark.local.dir": folder})
