"""Reads Qlik's reference files: lists of the files to read (`table,bucket/path/file`)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

import pyarrow.fs

from ...errors import ConfigError, FormatError
from ...lake.storage import filesystem
from .data_file import DFM, stem_of


def referenced_files(fs: pyarrow.fs.FileSystem, reference: str, names: Sequence[str]) -> list[str]:
    """Returns the files that a reference file lists (`table,bucket/path/file`), with their DFM files.

    Raises:
        ConfigError: the reference file does not exist.
        FormatError: it cannot be read, or a listed file is missing.
    """
    where, file_path = filesystem(reference)
    if where.get_file_info(file_path).type != pyarrow.fs.FileType.File:
        raise ConfigError(
            f"option reference: there is no file {reference}",
            where="qlik",
            hint="give a reference file, or omit the option to read all files",
        )
    text = content(where, file_path, reference)
    try:
        wanted = set(_paths(text, json_lines=reference.lower().endswith(".json")))
    except (ValueError, AttributeError, IndexError, csv.Error) as error:
        raise FormatError(
            f"no reference file: {error}",
            where=reference,
            hint="each line has a table and a file: `table,bucket/path/file`",
        ) from error
    found = {w: n for w in wanted for n in names if w == n or w.endswith("/" + n)}
    if missing := sorted(wanted - set(found)):
        raise FormatError(f"{missing[0]} is missing", where=reference, hint="the reference file lists it")
    stems = {n.rpartition("/")[0] + "/" + stem_of(n.rpartition("/")[2]) for n in found.values()}
    metas = [
        n
        for n in names
        if n.lower().endswith(DFM) and n.rpartition("/")[0] + "/" + stem_of(n.rpartition("/")[2]) in stems
    ]
    return sorted({*found.values(), *metas})


def _paths(text: str, *, json_lines: bool) -> list[str]:
    """Returns the paths in a reference file's text, the last value of each line."""
    if json_lines:
        rows = [list(json.loads(line).values()) for line in text.split("\n") if line.strip()]
    else:
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
    return [str(row[-1]).strip() for row in rows]


def content(fs: pyarrow.fs.FileSystem, path: str, where: str) -> str:
    """Returns the text of a small file, called `where` in messages.

    Raises:
        FormatError: it cannot be read, or is not UTF-8.
    """
    try:
        with fs.open_input_stream(path, compression=None) as stream:
            return bytes(stream.read()).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(
            f"the file cannot be read: {error}", where=where, hint="is it complete, and UTF-8?"
        ) from error
