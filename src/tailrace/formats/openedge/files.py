"""Reads and writes OpenEdge's tables in folders, including names that start with `_`, and `.cd` policy
dumps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...wire import cd_dump
from .. import file_reader, file_writer, folders, parquet
from ..base import FILE, Tables
from ..folders import holds_files, kind_of, several_kinds
from ..shape import few_rows
from .dumps import dump_of
from .options import OpenEdgeOptions
from .tables import DUMP, DUMPED, KNOWN, is_dump, knows, plain_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def hidden_tables(root: Path) -> list[Path]:
    """Returns the files and folders in a folder that are tables although their names start with `_`: those
    that have files themselves, and all folders with the name of one of OpenEdge's own tables.

    Raises:
        ConfigError: a folder has files of several kinds.
    """
    if not root.is_dir():
        return []
    found = [p for p in sorted(root.glob("_*")) if holds_files(p) and _is_one(p)]
    if mixed := next(filter(None, map(several_kinds, found)), None):
        raise ConfigError(mixed, where=str(root), hint="give a table's folder files of one kind")
    return found


def dumps_at(root: Path) -> list[Path]:
    """Returns the `.cd` files at a path, in order; names that start with `.` are ignored."""
    found = sorted(root.glob("[!.]*")) if root.is_dir() else [root] if root.is_file() else []
    return [p for p in found if is_dump(p.name)]


def _is_one(table_path: Path) -> bool:
    """Whether a path is a table, not a folder of folders such as `_pending`, which `convert` writes."""
    if not table_path.is_dir() or kind_of(table_path) == "delta" or plain_name(table_path.name) in KNOWN:
        return True
    return any(p.is_file() and kind_of(p) for p in table_path.glob("[!_.]*"))


def load(spark: SparkSession, path: str, options: OpenEdgeOptions) -> dict[str, DataFrame]:
    """Returns the tables under a path; a `.cd` file is a table with one binary value, named after the file.

    Raises:
        ConfigError: there is nothing, a file whose name Spark ignores, or a folder with several kinds of
            files.
    """
    root = Path(path)
    dumps = dumps_at(root)
    hidden = hidden_tables(root)
    if passed := [p.name for p in hidden if p.is_file()]:
        raise ConfigError(
            f"Spark ignores files whose names begin with _: {', '.join(passed)}",
            where=path,
            hint=f"rename it, e.g. PUB.{passed[0]}",
        )
    others = not dumps or any(map(folders.holds_files, root.glob("[!_.]*")))
    found = file_reader.load(spark, path, options, knows, hidden=hidden) if others else parquet.LoadedTables()
    for table_path in hidden:
        found[table_path.name] = file_reader.read(spark, table_path, options)
        if notes := folders.left_over(table_path, root):
            found[table_path.name] = found[table_path.name].withMetadata(FILE, {file_reader.NOTE: notes})
        if folders.kind_of(table_path) == "parquet":
            found.add_files(table_path.name, folders.data_files(table_path))
    for dump in dumps:
        found[dump.name] = few_rows(spark, {DUMPED: "binary"}, [{DUMPED: dump.read_bytes()}])
    return found


def columns_at(path: str, options: OpenEdgeOptions) -> dict[str, Sequence[str]]:
    """Returns the columns of the tables under a path, by table, including those whose names start with
    `_`."""
    root = Path(path)
    hidden = hidden_tables(root)
    plain = not root.is_dir() or any(map(folders.holds_files, root.glob("[!_.]*")))
    found = {} if is_dump(root.name) or not plain else folders.tables_at(path, hidden=hidden)
    found |= {p.name: p for p in hidden}
    return {n: file_reader.columns_of(p, options) for n, p in found.items()}


def refuse(path: str, options: OpenEdgeOptions) -> None:
    """Raises ConfigError or FormatError if there is nothing to read at a path."""
    root = Path(path)
    if not hidden_tables(root) and not dumps_at(root):
        file_reader.refuse_nothing(path)


def save(tables: Tables, path: str, kind: str, options: OpenEdgeOptions) -> None:
    """Writes the tables, and their policies as `<dump>.cd` if the option is set."""
    file_writer.save(tables, path, kind)
    if options.dump:
        dump = dump_of(tables, options.dump)
        (Path(path) / (options.dump + DUMP)).write_bytes(cd_dump.write(dump))
