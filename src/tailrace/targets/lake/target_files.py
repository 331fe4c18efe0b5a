"""The files of a table in a merge by rewriting: finds the rows that changes affect, and writes new parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...engine.keys import Places
from ...engine.source import Source
from ...lake import delta as lake
from ...lake.data_files import DataFiles

PART = lake.TIERS[-1] // 2
"""The approximate size of a written part: parts are written in parallel, and a later batch touches fewer
bytes."""
BATCH = 64 << 20
"""Bytes of a batch of rows that are copied."""
SMALL = 2 << 20
"""Changes and touched files of fewer bytes are processed in one thread."""
_SCAN_ROWS = 4 << 20
NONE: Places = np.empty(0, np.int64)
_NO_COLUMNS = pa.schema([])


@dataclass(frozen=True)
class PartRewrite:
    """The input of a new part.

    Attributes:
        file: the file that is rewritten; empty if the part has new rows only.
        groups: its row groups; None: all.
        rows: the numbers of the rows that change, in file order.
        changes: the changes of these rows.
        added: the changes whose rows are appended.
    """

    file: str
    groups: list[int] | None
    rows: Places
    changes: Places
    added: Places = field(default_factory=lambda: NONE)


@dataclass(frozen=True)
class TargetFiles:
    """The files of one table, and the changes to merge into them.

    Attributes:
        files: reads and writes files of the table.
        source: the changes.
        batch_bytes: the maximum bytes of a file in memory.
        other_columns: the columns of the table that the changes do not have; rows keep their values.
    """

    files: DataFiles
    source: Source
    batch_bytes: int = BATCH
    other_columns: pa.Schema = _NO_COLUMNS

    @property
    def schema(self) -> pa.Schema:
        """All columns of the written parts."""
        return pa.schema([*self.source.schema, *self.other_columns])

    def may_touch(self, low: Any, high: Any) -> bool:
        """Whether changes may affect a file, by the file's range of the first key column (None: not known).
        True for types whose statistics depend on the writer."""
        key = self.source.rows[self.source.known_by[0]]
        if low is None or high is None or not (pa.types.is_integer(key.type) or pa.types.is_date(key.type)):
            return True
        if key.null_count:  # ranges do not include NULL
            return True
        found = pc.min_max(key)
        if not found["max"].is_valid:  # no change at all
            return False
        return bool(low <= found["max"].as_py() and found["min"].as_py() <= high)

    def find(self, name: str, groups: list[int] | None = None) -> tuple[Places, Places, Places]:
        """Finds the rows with keys of changes in row groups of a file (None: all).

        Returns:
            The numbers of the rows, the numbers of their keys, and the key numbers of the rows that are not
            marked as deleted.
        """
        source, rows, keys, living, start = self.source, [NONE], [NONE], [NONE], 0
        opened = self.files.open(name)
        marks = [source.mark] if source.mark else []
        # Large batches: each lookup first builds a hash table of the changes' keys.
        for batch in self._batches(opened, groups, [*source.known_by, *marks], _SCAN_ROWS):
            found = source.keys.find(batch.columns[: len(source.known_by)])
            matches = np.flatnonzero(found >= 0)
            rows.append(matches + start)
            keys.append(found[matches])
            unmarked = found[matches]
            if source.mark:
                unmarked = unmarked[batch[source.mark].is_null().to_numpy(zero_copy_only=False)[matches]]
            living.append(unmarked)
            start += batch.num_rows
        return np.concatenate(rows), np.concatenate(keys), np.concatenate(living)

    def rows_with(self, name: str, partition: Mapping[str, str]) -> Places:
        """Returns the numbers of the rows of a file that have these constants."""
        found, start = [NONE], 0
        for batch in self._batches(self.files.open(name), None, list(partition), _SCAN_ROWS):
            same = [
                pc.fill_null(pc.equal(batch[column], value), False) for column, value in partition.items()
            ]
            found.append(np.flatnonzero(reduce(pc.and_, same).to_numpy(zero_copy_only=False)) + start)
            start += batch.num_rows
        return np.concatenate(found)

    def rows_of(self, name: str, rows: Places) -> pa.Table:
        """Returns the rows of a file with these numbers, which must be in ascending order."""
        found, start = [], 0
        if len(rows):
            opened = self.files.open(name)
            for batch in self._batches(opened, None, self.source.schema.names):
                low, high = np.searchsorted(rows, [start, start + batch.num_rows])
                found.append(batch.take(pa.array(rows[low:high] - start)))
                start += batch.num_rows
        return pa.Table.from_batches(found, self.source.schema)

    def group_ranges(self, name: str, size: int) -> list[tuple[list[int], int, int]]:
        """Divides a file with `size` bytes between row groups into ranges of about `PART` bytes.

        Returns:
            For each range its row groups, the number of its first row and that of the row after its last one.
            A file without rows has one range.
        """
        meta = self.files.open(name).metadata
        ends = np.cumsum([0, *[meta.row_group(g).num_rows for g in range(meta.num_row_groups)]])
        count = max(1, min(part_count(size), meta.num_row_groups))
        bounds = [meta.num_row_groups * n // count for n in range(count + 1)]
        return [(list(range(a, b)), int(ends[a]), int(ends[b])) for a, b in pairwise(bounds)]

    def rewrites(self, name: str, size: int, rows: Places, changes: Places) -> list[PartRewrite]:
        """Returns the inputs of the parts that replace a touched file."""
        if part_count(size) == 1:
            return [PartRewrite(name, None, rows, changes)]
        found = []
        for groups, start, end in self.group_ranges(name, size):
            low, high = np.searchsorted(rows, [start, end])
            found.append(PartRewrite(name, groups, rows[low:high] - start, changes[low:high]))
        return found

    def write(self, rewrite: PartRewrite) -> list[lake.AddedFile]:
        """Writes a new part, which is not committed, and returns its files; empty if no row remains."""
        part = self.files.part(self.schema)
        if rewrite.file:
            start = 0
            for batch in self._batches(self.files.open(rewrite.file), rewrite.groups, self.schema.names):
                low, high = np.searchsorted(rewrite.rows, [start, start + batch.num_rows])
                rows, changes = rewrite.rows[low:high] - start, rewrite.changes[low:high]
                part.write(self._changed(batch, rows, changes))
                start += batch.num_rows
        if len(rewrite.added):
            part.write(self._images(rewrite.added))
        return part.close_all()

    def _batches(
        self, file: pq.ParquetFile, groups: list[int] | None, names: list[str], rows: int = lake.ROW_GROUP
    ) -> Iterator[pa.RecordBatch]:
        """Yields row groups (None: all) in batches of at most `rows` rows and `batch_bytes`, in the schema's
        types; columns that were added after the file are NULL."""
        wanted = pa.schema([self.schema.field(n) for n in names])
        yield from self.files.batches(file, wanted, groups=groups, rows=rows, size=self.batch_bytes)

    def _changed(self, batch: pa.RecordBatch, rows: Places, changes: Places) -> pa.Table:
        """Returns a batch with its rows `rows` replaced by the images of their changes."""
        stays = np.ones(batch.num_rows, np.bool_)
        stays[rows] = False
        unchanged = pa.Table.from_batches([batch.filter(pa.array(stays))])
        updates = ~self.source.deletes[changes]
        if not updates.any():
            return unchanged
        needs_old = self.source.partial or len(self.other_columns)
        old = batch.take(pa.array(rows[updates])) if needs_old else None
        return pa.concat_tables([unchanged, self._images(changes[updates], old)])

    def _images(self, changes: Places, old: pa.RecordBatch | None = None) -> pa.Table:
        """Returns the images of changes, with the values of their `old` rows in the other columns."""
        images = self.source.images(changes, old)
        for one in self.other_columns:
            value = pa.nulls(len(changes), one.type) if old is None else old[one.name]
            images = images.append_column(one, value)
        return images


def other_columns(columns: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Returns the columns of a table that are not among `names`: another source has added them."""
    return pa.schema([f.with_nullable(True) for f in columns if f.name not in names])


def part_count(size: int) -> int:
    """Returns the number of parts that replace a file with `size` bytes, if it has enough row groups.

    >>> [part_count(size) for size in (0, PART, PART + 1)]
    [1, 1, 2]
    """
    return max(1, -(-size // PART))


def column_range(file: dict[str, Any], key: str) -> tuple[Any, Any]:
    """Returns the minimum and maximum of a column in a file of `LakeTable.data_files`; None if not known."""
    return file.get(f"min.{key}"), file.get(f"max.{key}")
