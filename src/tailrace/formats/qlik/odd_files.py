"""Finds files of Qlik tables that are noted, refused or not read: with problems, not Qlik's, or copies of
full loads' files, which their rows do not show.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow.fs

from ...errors import FormatError
from . import control
from .data_file import CHANGES, DFM, LOAD, DataFile, kind_of
from .layout import find_prefix
from .options import QlikOptions

EMPTY = "is empty, not read"
NOT_QLIK = "no headers, no DFM, and not named like Qlik's files: not read"


def notes_of(
    names: Sequence[str],
    metas: Mapping[str, str],
    own: Sequence[str | None],
    files: Sequence[DataFile],
    options: QlikOptions,
) -> list[str]:
    """Returns notes about files: all `names`, the DFM files among them, and which of these belong to data
    files."""
    said = [f"{n}: there is no data file for it" for n in sorted(set(metas.values()) - set(own))]
    said += [
        f"{n}: neither data nor DFM, not read"
        for n in names
        if not kind_of(n) and not n.lower().endswith(DFM)
    ]
    said += [f"{f.path}: its DFM counts {f.meta.errors} errors" for f in files if f.meta and f.meta.errors]
    said += [f"{f.path}: it {EMPTY}" for f in files if not f.names]
    said += [f"{f.path}: {NOT_QLIK}" for f in files if f.names and not is_qlik(f)]
    said += [f"{f.path}: its masks count the columns of its first line" for f in files if _guessed(f)]
    without = [f.path for f in files if f.meta is None]
    if without and len(without) < len(files):
        said += [f"{n}: there is no DFM for it" for n in without]
    return said + [note for f in files if (note := _other_table_note(f, options))]


def _other_table_note(file: DataFile, options: QlikOptions) -> str | None:
    """Returns a note about a file whose DFM belongs to another table; None if it does not."""
    meta, name = file.meta, options.source_of(file.folder) or file.folder
    if meta is None or meta.is_of(name) or meta.is_of(file.folder):
        return None
    theirs = ".".join(filter(None, (meta.schema, meta.table)))
    return f"{file.path}: its DFM is that of {theirs}, it is read as one of {name}"


def is_qlik(file: DataFile) -> bool:
    """Whether a file is Qlik's: by its headers, its DFM or its name, or those of its folder."""
    named = LOAD.fullmatch(file.stem) or CHANGES.fullmatch(file.stem) or control.is_control(file.folder)
    return file.meta is not None or find_prefix(file.names) is not None or bool(named)


def refuse_headless(files: Sequence[DataFile], options: QlikOptions) -> None:
    """Raises FormatError for a file of changes without headers: it would be read as a full load."""
    if file := next((f for f in files if _is_headless(f, options)), None):
        raise FormatError(
            "a file of changes without change_seq and change_oper",
            where=file.path,
            hint="add its DFM or a first line with their names (see the options csv_header, delimiter and "
            "prefix), or name it LOAD00000001 if it is a full load's",
        )


def _is_headless(file: DataFile, options: QlikOptions) -> bool:
    """Whether a file is one of changes, by its folder or its name, and has no headers."""
    changes = options.source_of(file.folder) is not None or CHANGES.fullmatch(file.stem) is not None
    if file.is_load or control.is_control(file.folder):
        return False
    return changes and find_prefix(file.names, options.prefix) is None


def refuse_two_schemas(files: Sequence[DataFile], options: QlikOptions) -> None:
    """Raises FormatError if the DFMs of one table's files have two schemas."""
    first: dict[str, DataFile] = {}
    for file in files:
        name = options.source_of(file.folder) or file.folder
        if (
            control.is_control(name)
            or _other_table_note(file, options)
            or not (here := _named_tables(file, options))
        ):
            continue
        other = first.setdefault(name, file)
        if here.isdisjoint(there := _named_tables(other, options)):
            both = " and ".join(".".join(max(pairs)) for pairs in (there, here))
            raise FormatError(
                f"{name} is the table {both}",
                where=f"{other.path} and {file.path}",
                hint="give the folder of each schema by itself, or name the tables' folders SCHEMA.TABLE",
            )


def _named_tables(file: DataFile, options: QlikOptions) -> set[tuple[str, str]]:
    """Returns schema and table in a file's DFM, at target and source, in capital letters, if both are
    present."""
    named = [(file.meta.schema, file.meta.table), file.meta.source] if file.meta else []
    return {(s.upper(), (options.source_of(t) or t).upper()) for s, t in named if s and t}


def _guessed(file: DataFile) -> bool:
    return file.kind == "json" and file.meta is None and any("change_mask" in n.lower() for n in file.names)


_BLOCK = 1 << 20


def copies(
    fs: pyarrow.fs.FileSystem, root: str, files: Sequence[DataFile], options: QlikOptions
) -> dict[str, str]:
    """Returns the full loads' files that are equal, byte for byte, to another file of their table -> that
    file. Files with different DFMs are not copies. Only files of the same size are read."""
    loads = [f for f in files if find_prefix(f.names, options.prefix) is None and not _is_control(f)]
    sizes = fs.get_file_info([f"{root}/{f.path}" for f in loads])
    groups: dict[tuple[str, int], list[DataFile]] = {}
    for file, info in zip(loads, sizes, strict=True):
        groups.setdefault((options.source_of(file.folder) or file.folder, info.size), []).append(file)
    found: dict[str, str] = {}
    for group in groups.values():
        found |= _equal(fs, root, group)
    return found


def _is_control(file: DataFile) -> bool:
    return control.is_control(file.folder)


def _equal(fs: pyarrow.fs.FileSystem, root: str, group: Sequence[DataFile]) -> dict[str, str]:
    """Returns the copies among files of one size."""
    ordered = sorted(group, key=lambda f: (f.meta is None, f.path))
    said = {f.path: f.meta.to_json() if f.meta else "" for f in ordered}
    times = Counter(said.values())
    kept: dict[str, list[str]] = {}
    found = {}
    for path, meta in said.items():
        if len(said) > 1 and (times[""] or times[meta] > 1):
            same = kept.setdefault(_digest(fs, f"{root}/{path}"), [])
            first = next((p for p in same if meta in ("", said[p])), None)
            if first is None:
                same.append(path)
            else:
                found[path] = first
    return found


def _digest(fs: pyarrow.fs.FileSystem, path: str) -> str:
    result = hashlib.blake2b()
    with fs.open_input_stream(path, compression=None) as stream:
        while block := stream.read(_BLOCK):
            result.update(block)
    return result.hexdigest()
