"""The files of Qlik tables: which there are, their DFM files, and the layout of each (spec/qlik.md §6).

Files are listed and their heads read here (DFM files, Parquet footers, the first line of text files), several
at once; rows are Spark's business (`loading`).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from ...errors import ConfigError, FormatError
from ...lake import filesystem
from . import dfm
from . import partitions as parts
from .layout import find_prefix
from .options import QlikOptions

ENDINGS = {
    ".parquet": "parquet", ".csv": "csv", ".csv.gz": "csv", ".json": "json", ".json.gz": "json",
    ".jsonl": "json", ".jsonl.gz": "json",
}  # fmt: skip
"""File ending -> kind."""
DFM = ".dfm"
LOAD = re.compile(r"LOAD(_?\w+?_)?\d+", re.IGNORECASE)
CHANGES = re.compile(r"\d{8}-\d{9,10}(_\w+)?")
_HEAD = 1 << 20
_LANES = 16
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class DataFile:
    """One data file.

    Attributes:
        path: below the root, with `/`.
        kind: `parquet`, `csv` or `json`.
        folder: the table's folder (its last name), without that of a partition.
        partition: the partition that its folder names.
        meta: its DFM.
        names: its columns in order.
        types: their types as the file itself tells them (Parquet), to tell layouts apart.
        ends: how its lines end, when the file was looked at.
    """

    path: str
    kind: str
    folder: str
    partition: str | None = None
    meta: dfm.Dfm | None = None
    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    ends: str | None = None

    @property
    def stem(self) -> str:
        """The file's name without endings."""
        return stem_of(self.path.rpartition("/")[2])

    @property
    def layout(self) -> tuple[Any, ...]:
        """What files must have in common to be read together."""
        keys = () if self.meta is None else tuple((c.name, c.spark(), c.key) for c in self.meta.columns)
        options = () if self.meta is None else tuple(sorted(map(str, self.meta.options.items())))
        return (self.kind, self.names, self.types, keys, options, self.ends)

    @property
    def age(self) -> tuple[Any, ...]:
        """Sorts files by when their layout began: full loads first, then by version, start and name."""
        full = (
            self.meta.content == "data"
            if self.meta and self.meta.content
            else bool(LOAD.fullmatch(self.stem))
        )
        told = (self.meta.version, self.meta.start or "") if self.meta else (0, "")
        return (not full, *told, self.stem)


@dataclass(frozen=True)
class Listing:
    """The files under a path: where they are, the data files, Delta tables, and what is odd."""

    fs: pa.fs.FileSystem
    root: str
    base: str
    files: tuple[DataFile, ...] = ()
    delta: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def spark_path(self, path: str) -> str:
        """A file's path as Spark takes it."""
        return unglobbed(f"{self.base}/{path}" if path else self.base)


def unglobbed(path: str) -> str:
    """A path for Spark in which `*`, `?` and brackets mean themselves.

    >>> print(unglobbed("a[1]"))
    a\\[1\\]
    """
    return re.sub(r"([*?{}\[\]\\])", r"\\\1", path)


def stem_of(name: str) -> str:
    """A file's name without the endings of data and DFM files.

    >>> stem_of("20211201-112233444.csv.gz"), stem_of("LOAD00000001.dfm")
    ('20211201-112233444', 'LOAD00000001')
    """
    lower = name.lower()
    for end in sorted([*ENDINGS, DFM], key=len, reverse=True):
        if lower.endswith(end):
            return name[: -len(end)]
    return name


def kind_of(name: str) -> str | None:
    """The kind of a data file by its name; None for other files.

    >>> kind_of("LOAD00000001.csv.gz"), kind_of("LOAD00000001.dfm")
    ('csv', None)
    """
    lower = name.lower()
    return next((kind for end, kind in ENDINGS.items() if lower.endswith(end)), None)


def listing(path: str, options: QlikOptions) -> Listing:
    """The data files under a path, each with its DFM and its columns.

    Raises:
        ConfigError: there is nothing.
        FormatError: a DFM or a file's head cannot be read, or a file is missing that a reference file names.
    """
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
        return _looked_at(
            Listing(fs, whole, near), [n for n in names if n == only or n.lower().endswith(DFM)], options
        )
    names = _names(fs, root)
    logs = [n.split("_delta_log")[0].rstrip("/") for n in names if "_delta_log/" in n]
    delta = tuple(dict.fromkeys(logs))
    inside = tuple(f"{d}/" if d else "" for d in delta)
    names = [n for n in names if not (inside and n.startswith(inside))]
    made = Listing(fs, root, base, delta=delta)
    return _looked_at(made, _referred(fs, options.reference, names) if options.reference else names, options)


def _names(fs: pa.fs.FileSystem, root: str) -> list[str]:
    """Paths of the files under a folder, below it, in order."""
    found = fs.get_file_info(pa.fs.FileSelector(root, recursive=True))
    return sorted(f.path[len(root) :].lstrip("/") for f in found if f.type == pa.fs.FileType.File)


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _looked_at(made: Listing, names: Sequence[str], options: QlikOptions) -> Listing:
    """The listing with its data files, DFM files and columns read."""
    names = [n for n in names if not _hidden(n)]
    metas = {n[: -len(DFM)].lower(): n for n in names if n.lower().endswith(DFM)}
    files = [_file(n, made.root) for n in names if kind_of(n)]
    own = [metas.get(f"{f.path.rpartition('/')[0]}/{f.stem}".lstrip("/").lower()) for f in files]
    read = _each(lambda n: dfm.parse(_text(made.fs, f"{made.root}/{n}"), where=n) if n else None, own)
    files = [replace(f, meta=m) for f, m in zip(files, read, strict=True)]
    files = _each(lambda f: _with_columns(made, f, options), files)
    odd = _odd(names, metas, own, files)
    return replace(made, files=tuple(f for f in files if f.names), notes=tuple(odd))


def _odd(
    names: Sequence[str], metas: dict[str, str], own: Sequence[str | None], files: Sequence[DataFile]
) -> list[str]:
    said = [f"{n}: there is no data file for it" for n in sorted(set(metas.values()) - set(own))]
    said += [
        f"{n}: neither data nor DFM, not read"
        for n in names
        if not kind_of(n) and not n.lower().endswith(DFM)
    ]
    said += [f"{f.path}: its DFM counts {f.meta.errors} errors" for f in files if f.meta and f.meta.errors]
    said += [f"{f.path}: it is empty, not read" for f in files if not f.names]
    said += [f"{f.path}: its masks count the columns of its first line" for f in files if _guessed(f)]
    without = [f.path for f in files if f.meta is None]
    if without and len(without) < len(files):
        said += [f"{n}: there is no DFM for it" for n in without]
    return said


def _guessed(file: DataFile) -> bool:
    return file.kind == "json" and file.meta is None and any("change_mask" in n.lower() for n in file.names)


def _file(path: str, root: str) -> DataFile:
    folders = [*root.split("/"), *path.split("/")[:-1]]
    partition = parts.of_folder(folders[-1])
    if partition:
        folders.pop()
    return DataFile(path, kind_of(path) or "", folders[-1], partition)


def _each(do: Callable[[T], U], things: Iterable[T]) -> list[U]:
    """The answers for all, several asked at once: each waits for a file system."""
    with ThreadPoolExecutor(_LANES) as pool:
        return list(pool.map(do, things))


def _text(fs: pa.fs.FileSystem, path: str) -> str:
    with fs.open_input_stream(path, compression=None) as stream:
        return bytes(stream.read()).decode("utf-8-sig")


def _with_columns(made: Listing, file: DataFile, options: QlikOptions) -> DataFile:
    """The file with its columns: from the Parquet footer, from the DFM, else from the first line."""
    where = f"{made.root}/{file.path}"
    try:
        if file.kind == "parquet":
            with made.fs.open_input_file(where) as opened:
                schema = pq.read_schema(opened)
            return replace(file, names=tuple(schema.names), types=tuple(map(str, schema.types)))
        if file.meta is not None:
            return replace(file, names=tuple(c.name for c in file.meta.columns))
        with made.fs.open_input_stream(where, compression="detect") as stream:
            head = bytes(stream.read(_HEAD)).decode("utf-8-sig", "replace")
        if file.kind == "json":
            first = json.loads(next((line for line in head.splitlines() if line.strip()), "{}"))
            return replace(file, names=tuple(first))
        names = next(csv.reader(io.StringIO(head, newline="")), [])
        if not options.csv_header:
            names = [f"_c{i}" for i in range(len(names))]
        ends = "\r\n" if "\r\n" in head.split("\n", 1)[0] + "\n" else "\n"
        return replace(file, names=tuple(names), ends=ends)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise FormatError(f"the head of the file cannot be read: {error}", where=file.path) from error


def _referred(fs: pa.fs.FileSystem, reference: str, names: Sequence[str]) -> list[str]:
    """The files that a reference file names (`table,bucket/path/file`), with their DFM files."""
    where, place = filesystem(reference)
    text = _text(where, place)
    if reference.lower().endswith(".json"):
        rows = [list(json.loads(line).values()) for line in text.splitlines() if line.strip()]
    else:
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
    wanted = {str(row[-1]).strip() for row in rows}
    found = {w: n for w in wanted for n in names if w == n or w.endswith("/" + n)}
    if missing := sorted(wanted - set(found)):
        raise FormatError(
            f"{missing[0]} is not there", where=reference, hint="it is named by the reference file"
        )
    stems = {n.rpartition("/")[0] + "/" + stem_of(n.rpartition("/")[2]) for n in found.values()}
    metas = [
        n
        for n in names
        if n.lower().endswith(DFM) and n.rpartition("/")[0] + "/" + stem_of(n.rpartition("/")[2]) in stems
    ]
    return sorted({*found.values(), *metas})


def tables(listed: Listing, options: QlikOptions) -> dict[str, list[DataFile]]:
    """Table name -> its data files, oldest layout first. Files with headers belong to the change table, those
    without to the table itself, also where both lie in one folder."""
    found: dict[str, list[DataFile]] = {}
    for file in sorted(listed.files, key=lambda f: f.age):
        source = options.source_of(file.folder) or file.folder
        changed = find_prefix(file.names, options.prefix) is not None
        named = file.folder if changed and options.source_of(file.folder) else None
        found.setdefault(named or (source + options.suffix if changed else source), []).append(file)
    return found
