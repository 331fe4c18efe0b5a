"""Qlik's reference files: lists of the files to read (`table,bucket/path/file`)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

import pyarrow.fs

from ...errors import FormatError
from ...lake.delta import filesystem
from .names import DFM, stem_of


def named(fs: pyarrow.fs.FileSystem, reference: str, names: Sequence[str]) -> list[str]:
    """The files that a reference file names (`table,bucket/path/file`), with their DFM files.

    Raises:
        FormatError: one is missing.
    """
    where, place = filesystem(reference)
    text = content(where, place)
    if reference.lower().endswith(".json"):
        rows = [list(json.loads(line).values()) for line in text.splitlines() if line.strip()]
    else:
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
    wanted = {str(row[-1]).strip() for row in rows}
    found = {w: n for w in wanted for n in names if w == n or w.endswith("/" + n)}
    if missing := sorted(wanted - set(found)):
        raise FormatError(
            f"{missing[0]} is missing", where=reference, hint="it is named by the reference file"
        )
    stems = {n.rpartition("/")[0] + "/" + stem_of(n.rpartition("/")[2]) for n in found.values()}
    metas = [
        n
        for n in names
        if n.lower().endswith(DFM) and n.rpartition("/")[0] + "/" + stem_of(n.rpartition("/")[2]) in stems
    ]
    return sorted({*found.values(), *metas})


def content(fs: pyarrow.fs.FileSystem, path: str) -> str:
    """The text of a small file."""
    with fs.open_input_stream(path, compression=None) as stream:
        return bytes(stream.read()).decode("utf-8-sig")
