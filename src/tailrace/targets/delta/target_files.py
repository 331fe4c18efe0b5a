"""The files of a table as a merge by rewriting sees them: finds the rows that changes meet, and writes a file
anew with what the changes make of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from ...engine.keys import Places
from ...engine.source import Source
from ...lake import delta as lake
from ...lake.filestats import width

PART = lake.TIERS[-1] // 2
"""About how large a written part is: several are written side by side, and fewer are touched."""
BATCH = 64 << 20
"""Bytes of a batch of rows that are copied."""
SMALL = 2 << 20
"""Bytes of changes and the files they touch that are worth no threads."""
_MANY = 4 << 20
NONE: Places = np.empty(0, np.int64)
_NO_COLUMNS = pa.schema([])


@dataclass(frozen=True)
class PartRewrite:
    """Row groups (None: all) of a touched file that become one part: the rows that changes meet, in file
    order, and the changes they meet; `added`: changes whose rows come new at the end."""

    file: str
    groups: list[int] | None
    rows: Places
    changes: Places
    added: Places = field(default_factory=lambda: NONE)


@dataclass(frozen=True)
class TargetFiles:
    """The files of one table, and the changes to merge into them.

    Attributes:
        path: the table.
        source: the changes.
        batch_bytes: how much of a file is held at once.
        beside: the columns of the table that the changes lack: rows keep what they have in them.
    """

    path: str
    source: Source
    batch_bytes: int = BATCH
    other_columns: pa.Schema = _NO_COLUMNS

    @property
    def schema(self) -> pa.Schema:
        """All columns of what is written."""
        return pa.schema([*self.source.schema, *self.other_columns])

    def may_touch(self, low: Any, high: Any) -> bool:
        """Whether a file's range of the first column that rows are known by (None: not known) meets the
        changes'; only for types whose ranges mean the same to all writers of statistics."""
        key = self.source.rows[self.source.known_by[0]]
        if low is None or high is None or not (pa.types.is_integer(key.type) or pa.types.is_date(key.type)):
            return True
        if key.null_count:  # which ranges do not tell
            return True
        found = pc.min_max(key)
        if not found["max"].is_valid:  # no change at all
            return False
        return bool(low <= found["max"].as_py() and found["min"].as_py() <= high)

    def find(self, name: str, groups: list[int] | None = None) -> tuple[Places, Places, Places]:
        """Numbers of the rows in a file's row groups (None: all) whose keys changes have, the numbers of
        those keys, and of those among them whose rows live."""
        source, rows, keys, living, begin = self.source, [NONE], [NONE], [NONE], 0
        opened = self._open(name)
        marks = [source.mark] if source.mark else []
        # Large batches: each look-up begins with a hash table of the changes' keys.
        for batch in self._batches(opened, groups, [*source.known_by, *marks], _MANY):
            found = source.keys.find(batch.columns[: len(source.known_by)])
            here = np.flatnonzero(found >= 0)
            rows.append(here + begin)
            keys.append(found[here])
            alive = found[here]
            if source.mark:
                alive = alive[batch[source.mark].is_null().to_numpy(zero_copy_only=False)[here]]
            living.append(alive)
            begin += batch.num_rows
        return np.concatenate(rows), np.concatenate(keys), np.concatenate(living)

    def rows_with(self, name: str, partition: Mapping[str, str]) -> Places:
        """Numbers of the rows of a file that have these constants."""
        found, begin = [NONE], 0
        for batch in self._batches(self._open(name), None, list(partition), _MANY):
            same = [
                pc.fill_null(pc.equal(batch[column], value), False) for column, value in partition.items()
            ]
            found.append(np.flatnonzero(reduce(pc.and_, same).to_numpy(zero_copy_only=False)) + begin)
            begin += batch.num_rows
        return np.concatenate(found)

    def rows_of(self, name: str, rows: Places) -> pa.Table:
        """Some rows of a file, by their numbers, which rise."""
        found, begin = [], 0
        if len(rows):
            opened = self._open(name)
            for batch in self._batches(opened, None, self.source.schema.names):
                low, high = np.searchsorted(rows, [begin, begin + batch.num_rows])
                found.append(batch.take(pa.array(rows[low:high] - begin)))
                begin += batch.num_rows
        return pa.Table.from_batches(found, self.source.schema)

    def cut(self, name: str, size: int) -> list[tuple[list[int], int, int]]:
        """A file of so many bytes in pieces of about `PART` bytes, cut between row groups: the groups, and
        the numbers of the first row and the one behind the last. A file without rows is one piece, too."""
        meta = self._open(name).metadata
        ends = np.cumsum([0, *[meta.row_group(g).num_rows for g in range(meta.num_row_groups)]])
        many = max(1, min(part_count(size), meta.num_row_groups))
        cuts = [meta.num_row_groups * n // many for n in range(many + 1)]
        return [(list(range(a, b)), int(ends[a]), int(ends[b])) for a, b in pairwise(cuts)]

    def pieces(self, name: str, size: int, rows: Places, changes: Places) -> list[PartRewrite]:
        """A touched file in pieces."""
        if part_count(size) == 1:
            return [PartRewrite(name, None, rows, changes)]
        found = []
        for groups, begin, end in self.cut(name, size):
            low, high = np.searchsorted(rows, [begin, end])
            found.append(PartRewrite(name, groups, rows[low:high] - begin, changes[low:high]))
        return found

    def write(self, piece: PartRewrite) -> lake.AddedFile | None:
        """Writes a piece to a new part, not committed; None when no row remains."""
        part = lake.Part(self.path, self.schema)
        if piece.file:
            begin = 0
            for batch in self._batches(self._open(piece.file), piece.groups, self.schema.names):
                low, high = np.searchsorted(piece.rows, [begin, begin + batch.num_rows])
                here, changes = piece.rows[low:high] - begin, piece.changes[low:high]
                part.write(self._changed(batch, here, changes))
                begin += batch.num_rows
        if len(piece.added):
            part.write(self._images(piece.added))
        return part.close()

    def _open(self, name: str) -> pq.ParquetFile:
        fs, folder = lake.filesystem(self.path)
        # Read through a small buffer: whole row groups of other writers may be large.
        return pq.ParquetFile(f"{folder}/{name}", filesystem=fs, buffer_size=1 << 20)

    def _batches(
        self, file: pq.ParquetFile, groups: list[int] | None, names: list[str], most: int = lake.ROW_GROUP
    ) -> Iterator[pa.RecordBatch]:
        """Row groups (None: all) in batches of bounded size, in the schema's types; columns younger than the
        file are NULL."""
        groups = list(range(file.num_row_groups)) if groups is None else groups
        wanted = pa.schema([self.schema.field(n) for n in names])
        have = [n for n in names if n in file.schema_arrow.names]
        size = max(1024, min(most, self.batch_bytes // width(file.metadata, groups, have)))
        # Threads read files side by side; more threads within each make it slower.
        for batch in file.iter_batches(size, row_groups=groups, columns=have, use_threads=False):
            yield lake.fitted(batch, wanted)

    def _changed(self, batch: pa.RecordBatch, here: Places, changes: Places) -> pa.Table:
        """A batch without the rows `here` and with what their changes make of them."""
        stays = np.ones(batch.num_rows, np.bool_)
        stays[here] = False
        kept = pa.Table.from_batches([batch.filter(pa.array(stays))])
        updates = ~self.source.deletes[changes]
        if not updates.any():
            return kept
        stay = self.source.partial or len(self.other_columns)
        old = batch.take(pa.array(here[updates])) if stay else None
        return pa.concat_tables([kept, self._images(changes[updates], old)])

    def _images(self, changes: Places, old: pa.RecordBatch | None = None) -> pa.Table:
        """The new rows of changes, with what `old`, their rows in the table, has in the columns beside."""
        made = self.source.images(changes, old)
        for one in self.other_columns:
            value = pa.nulls(len(changes), one.type) if old is None else old[one.name]
            made = made.append_column(one, value)
        return made


def other_columns(columns: pa.Schema, names: Collection[str]) -> pa.Schema:
    """The columns of a table that are not among these: another source of it has brought them."""
    return pa.schema([f.with_nullable(True) for f in columns if f.name not in names])


def part_count(size: int) -> int:
    """Into how many pieces a file of so many bytes is cut, if it has as many row groups.

    >>> [pieces_of(size) for size in (0, PART, PART + 1)]
    [1, 1, 2]
    """
    return max(1, -(-size // PART))


def column_range(file: dict[str, Any], key: str) -> tuple[Any, Any]:
    """The least and the greatest value of a column in a file (an add action, flattened); None: not known."""
    return file.get(f"min.{key}"), file.get(f"max.{key}")
