"""Anybody's change tables in a Python program, and what the commands do with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..query.change_files import ChangeFiles
from ..query.table_changes import TableChanges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..formats.convert import ConversionReport
    from ..formats.inspect import Found


def read(path: str, *, key: Sequence[str] = (), name: str = "") -> TableChanges:
    """A change table in tailrace's own layout (Delta), to be asked without a JVM.

    Args:
        path: its folder.
        key: names of the key's columns; questions about rows need them.
        name: the source table, for results that name it; the folder's name by default.

    Raises:
        ConfigError: there is no such table, or it lacks a key column.
    """
    files = ChangeFiles.at(path)
    if missing := [k for k in key if k not in files.schema.names]:
        raise ConfigError(f"the change table has no column {', '.join(missing)}", where=path)
    return TableChanges(name or path.rstrip("/").rpartition("/")[2].removesuffix("__ct"), files, tuple(key))


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
    from ..runtime.session import session

    return session(f"tailrace {what}")
