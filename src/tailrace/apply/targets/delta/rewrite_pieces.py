"""The tasks of the plan `rewrite` (see `rewrite_tasks`): find the rows that changes meet, and write.

A task does its share of the pieces, one after the other, and holds the keys of all changes, or the values of
those that it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ....engine.keys import Places
from ....engine.source import Source
from ....lake import delta as lake
from .files import NONE, TargetFiles, TargetPiece, beside
from .staged import NumberedChanges

_MET = pa.schema([("row", pa.int64()), ("change", pa.int64())])


@dataclass(frozen=True)
class FilePiece:
    """A piece of a file: the file, its bytes, which of the pieces that `TargetFiles.cut` makes of it, and the
    file's range of the first key, as far as its statistics say."""

    file: str
    size: int
    part: int
    least: Any = None
    greatest: Any = None


@dataclass(frozen=True)
class Found:
    """The rows of a piece that changes meet.

    Attributes:
        piece: the number of the piece.
        met: the number of its rows that changes meet; gone: how many of these changes delete.
        upserts: how many of all changes' keys end in a row.
        file: the file that has the numbers of the rows and the changes; None if there are none.
    """

    piece: int
    met: int
    gone: int
    upserts: int
    file: str | None


@dataclass(frozen=True)
class FindTask:
    """Looks the changes' keys up in pieces of files, which it gets with their numbers. Returns what it found
    in each; None if the keys take too much memory."""

    staged: NumberedChanges
    path: str

    def __call__(self, pieces: Sequence[tuple[int, FilePiece]]) -> list[Found] | None:
        if (source := self.staged.keys()) is None:
            return None
        upserts = int((~source.deletes[source.last]).sum())
        files, found = TargetFiles(self.path, source), []
        for number, span in pieces:
            if (met := self._met(files, span)) is None:
                continue
            rows, changes = met
            gone = int(source.deletes[changes].sum())
            name = self._kept(rows, changes) if len(rows) else None
            found.append(Found(number, len(rows), gone, upserts, name))
        return found

    def _kept(self, rows: Places, changes: Places) -> str:
        """The file that has the numbers of rows and changes."""
        part = lake.Part(self.staged.folder, _MET, name="met")
        part.write(pa.table([rows, changes], schema=_MET))
        part.close()
        return part.path

    def _met(self, files: TargetFiles, span: FilePiece) -> tuple[Places, Places] | None:
        """Numbers of rows and of changes; None when the file has fewer row groups than pieces."""
        if not files.may_touch(span.least, span.greatest):
            return NONE, NONE
        pieces = files.cut(span.file, span.size)
        if span.part >= len(pieces):
            return None
        rows, keys, _ = files.find(span.file, pieces[span.part][0])
        return rows, files.source.last[keys]


@dataclass(frozen=True)
class Unit:
    """A piece to write; `met`: the file that `FindTask` has written; `adds`: which share of the new rows
    comes at its end, and of how many; None: none does."""

    span: FilePiece | None = None
    met: str | None = None
    adds: tuple[int, int] | None = None


@dataclass(frozen=True)
class WriteTask:
    """Writes its units to new parts, which nobody has committed. Returns the parts; None if their changes
    take too much memory.

    Attributes:
        staged, path: the changes, and the table.
        met: the files of all tasks that say which changes meet rows.
        batch_bytes: how much of a file is held at once.
        columns: those of the table.
    """

    staged: NumberedChanges
    path: str
    met: tuple[str, ...]
    batch_bytes: int
    columns: pa.Schema

    def __call__(self, units: Sequence[Unit]) -> list[lake.AddedFile] | None:
        met = [self._met(u.met) for u in units]
        new = self._new([u.adds for u in units])
        if new is None:
            return None
        changes = np.unique(np.concatenate([NONE, *[m[1] for m in met], *new]))
        if (source := self.staged.rows(changes)) is None:
            return None
        more = beside(self.columns, source.schema.names)
        files, made = TargetFiles(self.path, source, self.batch_bytes, more), []
        for unit, (rows, found), added in zip(units, met, new, strict=True):
            name, groups = "", []
            if span := unit.span:
                name, groups = span.file, files.cut(span.file, span.size)[span.part][0]
            at, extra = (np.searchsorted(changes, some) for some in (found, added))
            made.append(files.write(TargetPiece(name, groups, rows, at, extra)))
        return [one for one in made if one]

    def _met(self, name: str | None) -> tuple[Places, Places]:
        if name is None:
            return NONE, NONE
        fs, folder = lake.filesystem(self.staged.folder)
        found = pq.ParquetFile(f"{folder}/{name}", filesystem=fs).read()
        return np.asarray(found["row"].to_numpy(), np.int64), np.asarray(found["change"].to_numpy(), np.int64)

    def _new(self, wanted: list[tuple[int, int] | None]) -> list[Places] | None:
        """For each unit its share of the changes that meet no row and leave one; None: too much memory."""
        if not any(wanted):
            return [NONE for _ in wanted]
        if (source := self.staged.keys()) is None:
            return None
        new = _unmet(source, [self._met(name)[1] for name in self.met])
        return [NONE if adds is None else np.array_split(new, adds[1])[adds[0]] for adds in wanted]


def _unmet(source: Source, met: list[Places]) -> Places:
    """The changes that leave a row and meet none, in order of their numbers."""
    counts: npt.NDArray[np.bool_] = np.zeros(source.rows.num_rows, np.bool_)
    counts[source.last] = True
    counts &= ~source.deletes
    for changes in met:
        counts[changes] = False
    return np.flatnonzero(counts)
