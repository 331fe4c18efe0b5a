"""Lists the files of Qlik tables with their DFM files, and determines the layout of each (spec/qlik.md §6).

This module lists files and reads their heads (DFM files, Parquet footers, the first line of text files),
several at once; Spark reads the rows (`file_reader`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from ...errors import ConfigError, FormatError
from ...execution import thread_pool
from ...lake.opened import open_table
from ...lake.storage import filesystem
from ...wire.delimited import Dialect
from .. import text
from ..folders import refuse_archives, unglobbed
from . import control, dfm, reference
from . import partitions as parts
from .data_file import DFM, ENDINGS, DataFile, by_name, folders_of, is_hidden, kind_of, stem_of
from .layout import find_prefix
from .odd_files import EMPTY, NOT_QLIK, copies, is_qlik, notes_of, refuse_headless, refuse_two_schemas
from .options import QlikOptions

_HEAD = 1 << 20
_LANES = 16
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Listing:
    """The files under a path: their folder, the data files, Delta tables, notes, and files that are not read
    because they are copies of another one."""

    fs: pa.fs.FileSystem
    root: str
    base: str
    files: tuple[DataFile, ...] = ()
    delta: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    copies: Mapping[str, str] = field(default_factory=dict)

    def path(self, path: str) -> str:
        """Returns a file's full path."""
        return f"{self.base}/{path}"

    def spark_path(self, path: str) -> str:
        """Returns a file's path in the form that Spark accepts."""
        return unglobbed(f"{self.base}/{path}" if path else self.base)


def listing(path: str, options: QlikOptions) -> Listing:
    """Returns the data files under a path, each with its DFM and its columns.

    Raises:
        ConfigError: there is nothing, or the reference file of the option does not exist.
        FormatError: a DFM or a file's head cannot be read, a file of changes has no headers, a table has
            files of two schemas, or a file in a reference file is missing.
    """
    path = _as_spark_says(path)
    fs, root = filesystem(path)
    root = root.rstrip("/")
    info = fs.get_file_info(root)
    if info.type == pa.fs.FileType.NotFound:
        raise ConfigError(f"there is no {path}", hint="give a file, a table's folder, or a folder of tables")
    base = path.rstrip("/")
    if info.type == pa.fs.FileType.File:
        whole, only = root.rpartition("/")[0], root.rpartition("/")[2]
        near = base.rpartition("/")[0] or "."
        names = [n for n in _names(fs, whole) if stem_of(n) == stem_of(only)]
        return _with_contents(
            Listing(fs, whole, near), [n for n in names if n == only or n.lower().endswith(DFM)], options
        )
    names = _names(fs, root)
    refuse_archives(Path(root) / n for n in names if not is_hidden(n))
    delta = folders_of(names)
    inside = tuple(f"{d}/" if d else "" for d in delta)
    names = [n for n in names if not (inside and n.startswith(inside))]
    result = Listing(fs, root, base, delta=tuple(d for d in delta if not is_hidden(d)))
    names = reference.referenced_files(fs, options.reference, names) if options.reference else names
    return _with_contents(result, names, options)


def refuse(path: str, options: QlikOptions) -> None:
    """Raises ConfigError or FormatError if there is nothing to read at a path, or two tables have the same
    name."""
    listed = listing(path, options)
    refuse_nothing(listed, path)
    delta_by_name(listed, options)


def columns_at(path: str, options: QlikOptions) -> dict[str, Sequence[str]]:
    """Returns the columns of the tables under a path, with the time that is added to rows of full loads; of
    files with several layouts those of the newest.

    Raises:
        ConfigError, FormatError: as `file_reader.load`.
    """
    listed = listing(path, options)
    refuse_nothing(listed, path)
    found: dict[str, Sequence[str]] = {}
    for name, files in tables(listed, options).items():
        names = files[-1].names
        loaded = find_prefix(names, options.prefix) is None and any(f.meta and f.meta.start for f in files)
        found[name] = (*names, options.written_prefix() + "timestamp") if loaded else names
    for name, folder in delta_by_name(listed, options).items():
        found[name] = [f.name for f in open_table(f"{listed.root}/{folder}").schema().fields]
    return found


def refuse_nothing(listed: Listing, path: str) -> None:
    """Raises FormatError if all files are empty or none is Qlik's, ConfigError if there is no file."""
    if listed.files or listed.delta:
        return
    empty = next((n for n in listed.notes if n.endswith(EMPTY)), None)
    if empty is not None:
        name = empty.partition(":")[0]
        raise FormatError(f"{name} is empty", where=path, hint="is the extract complete?")
    if other := next((n for n in listed.notes if n.endswith(NOT_QLIK)), None):
        hint = "`tailrace inspect` shows which vendor's tables they are"
        raise FormatError(f"{path} contains no table of Qlik's", where=other, hint=hint)
    kinds = ", ".join(dict.fromkeys(ENDINGS.values()))
    raise ConfigError(f"{path} contains no table", hint=f"{kinds} files and delta tables are read")


def dialect(file: DataFile, options: QlikOptions) -> Dialect:
    """Returns the dialect of a CSV file: from the options, its DFM or its first line."""
    said = dict(file.meta.options) if file.meta else {}
    quote = _letters(said.get("quoteChar", '"')) or None
    return Dialect(
        delimiter=_letters(options.delimiter or said.get("fieldDelimiter") or file.delimiter or ","),
        quote=quote,
        escape=_letters(said.get("escapeChar", "")) or quote or "",
        ends=_letters(said.get("recordDelimiter") or file.ends or "\n"),
        encoding=options.encoding,
    )


_HEX = r"(?:(?:0x|\\x)(?:[0-9A-Fa-f]{2})+)+"


def _letters(said: str) -> str:
    """Parses a delimiter as users write it: line feeds, carriage returns and tabs by letter, all in
    hexadecimal.

    >>> _letters("\\\\t"), _letters("0x01"), _letters("\\\\x0D\\\\x0a"), _letters("0x0D0A")
    ('\\t', '\\x01', '\\r\\n', '\\r\\n')
    """
    if re.fullmatch(_HEX, said):
        return bytes.fromhex(re.sub(r"0x|\\x", "", said)).decode("latin-1")
    return said.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t")


def _as_spark_says(path: str) -> str:
    """Returns a path as Spark returns it: without `..` and `.`; URLs stay unchanged."""
    if "://" in path:
        return path
    place = Path(path)
    return str(place.resolve() if ".." in place.parts else place)


def _names(fs: pa.fs.FileSystem, root: str) -> list[str]:
    """Returns the relative paths of the files under a folder, in order."""
    found = fs.get_file_info(pa.fs.FileSelector(root, recursive=True))
    return sorted(f.path[len(root) :].lstrip("/") for f in found if f.type == pa.fs.FileType.File)


def _with_contents(listed: Listing, names: Sequence[str], options: QlikOptions) -> Listing:
    """Returns the listing with its data files, DFM files and columns."""
    names = [n for n in names if not is_hidden(n)]
    metas = {n[: -len(DFM)].lower(): n for n in names if n.lower().endswith(DFM)}
    files = [_file(n, listed.root) for n in names if kind_of(n)]
    own = [metas.get(f"{f.path.rpartition('/')[0]}/{f.stem}".lstrip("/").lower()) for f in files]
    metas_of = _each(
        lambda n: dfm.parse(reference.content(listed.fs, f"{listed.root}/{n}", n), where=n) if n else None,
        own,
    )
    files = [_placed(replace(f, meta=m), listed.root, options) for f, m in zip(files, metas_of, strict=True)]
    files = _each(lambda f: _with_columns(listed, f, options), files)
    odd = notes_of(names, metas, own, files, options)
    read = tuple(f for f in files if f.names and is_qlik(f))
    refuse_headless(read, options)
    refuse_two_schemas(read, options)
    twice = copies(listed.fs, listed.root, read, options)
    odd += [f"{path}: equal to {other} byte for byte, not read" for path, other in twice.items()]
    left = tuple(f for f in read if f.path not in twice)
    return replace(listed, files=left, notes=tuple(odd), copies=twice)


def _file(path: str, root: str) -> DataFile:
    folders = [*root.split("/"), *path.split("/")[:-1]]
    partition = parts.of_folder(folders[-1])
    if partition:
        folders.pop()
    return DataFile(path, kind_of(path) or "", folders[-1], partition)


def _placed(file: DataFile, root: str, options: QlikOptions) -> DataFile:
    """Returns the file with its change table's folder: the nearest parent, if its own folder is not Qlik's. A
    folder with the name of its DFM's table belongs to that table, unless it is in that table's change
    table."""
    if options.source_of(file.folder) or control.is_control(file.folder):
        return file
    table = control.plain(file.meta.table) if file.meta else ""
    own = table == control.plain(file.folder)
    above = [root.rpartition("/")[2], *file.path.split("/")[:-1]]
    for place, name in reversed(list(enumerate(above))):
        if (source := options.source_of(name)) and (not own or control.plain(source) == table):
            partitions = filter(None, map(parts.of_folder, above[:place:-1]))
            return replace(file, folder=name, partition=file.partition or next(partitions, None))
    return file


def _each(do: Callable[[T], U], things: Iterable[T]) -> list[U]:
    """Returns the results for all files, several at once: each waits for a file system."""
    with thread_pool("files", _LANES) as pool:
        return list(pool.map(do, things))


def _with_columns(listed: Listing, file: DataFile, options: QlikOptions) -> DataFile:
    """Returns the file with its columns: from the Parquet footer, from the DFM, otherwise from the first
    line."""
    where = f"{listed.root}/{file.path}"
    try:
        if file.kind == "parquet":
            with listed.fs.open_input_file(where) as opened:
                schema = pq.read_schema(opened)
            return replace(file, names=tuple(schema.names), types=tuple(map(str, schema.types)))
        if file.meta is not None:
            return replace(file, names=tuple(c.name for c in file.meta.columns))
        if file.kind == "csv":
            head = text.head(
                listed.path(file.path),
                encoding=options.encoding,
                delimiter=options.delimiter,
                header=options.csv_header,
            )
            return replace(file, names=head.names, ends=head.dialect.ends, delimiter=head.dialect.delimiter)
        with listed.fs.open_input_stream(where, compression=text.compression_of(where)) as stream:
            start = bytes(stream.read(_HEAD)).decode(options.encoding, "replace").removeprefix("\ufeff")
        names = tuple(text.json_names(start.split("\n")))
        if start.strip() and not names:
            raise FormatError("no line is JSON", where=file.path, hint="a JSON file has one object per line")
        return replace(file, names=names)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise FormatError(f"the head of the file cannot be read: {error}", where=file.path) from error


def tables(listed: Listing, options: QlikOptions) -> dict[str, list[DataFile]]:
    """Returns table name -> its data files, oldest layout first. Files with headers belong to the change
    table, those without to the table itself, even if both are in the same folder."""
    found: dict[str, list[DataFile]] = {}
    for file in sorted(listed.files, key=lambda f: f.age):
        source = options.source_of(file.folder) or file.folder
        changed = find_prefix(file.names, options.prefix) is not None
        named = file.folder if changed and options.source_of(file.folder) else None
        found.setdefault(named or (source + options.suffix if changed else source), []).append(file)
    return found


def delta_by_name(listed: Listing, options: QlikOptions) -> dict[str, str]:
    """Returns table name -> its Delta table's folder.

    Raises:
        ConfigError: two paths have the same name, and at least one of them is a Delta table.
    """
    others = {n: files[0].path.rpartition("/")[0] for n, files in tables(listed, options).items()}
    return by_name(listed.delta, listed.root, others)
