"""Rows in Parquet files, as a picklable description: files, computed columns, and a filter. It can be cut
into pieces that tasks on any host read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from ..lake.storage import filesystem

BATCH_ROWS = 1 << 16
_PARQUET = ds.ParquetFileFormat()


@dataclass(frozen=True)
class FileRows:
    """Rows of files.

    Attributes:
        data: the files, and their columns.
        columns: the expression over the files' columns from which each column is computed, by column name.
        only: the filter for the rows; None for all.
        rows: the approximate number of rows.
    """

    data: ds.FileSystemDataset
    columns: Mapping[str, pc.Expression]
    only: ds.Expression | None = None
    rows: int = 0

    @staticmethod
    def of(files: Sequence[str], schema: pa.Schema, rows: int = 0) -> FileRows:
        """Returns all rows of files with a schema."""
        fs = filesystem(files[0])[0] if files else pa.fs.LocalFileSystem()
        fragments = [_PARQUET.make_fragment(filesystem(file)[1], fs) for file in files]
        data = ds.FileSystemDataset(fragments, schema, _PARQUET, fs)
        return FileRows(data, {name: pc.field(name) for name in schema.names}, rows=rows)

    @property
    def schema(self) -> pa.Schema:
        """The computed columns."""
        return self.data.scanner(columns=dict(self.columns)).projected_schema

    @property
    def size(self) -> int:
        """The bytes of the files."""
        return sum(_sizes(self.data))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the rows with these columns in this order."""
        computed = {name: self.columns[name] for name in columns}
        # Little read-ahead, because several tasks share a machine.
        yield from self.data.to_batches(
            columns=computed, filter=self.only, batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1
        )

    def pieces(self, most: int) -> list[tuple[FileRows, int]]:
        """Returns pieces of about `most` bytes with their sizes: several small files, one file, or row groups
        of a large file."""
        found: list[tuple[FileRows, int]] = []
        files: list[ds.Fragment] = []
        filled = 0
        for file, size in zip(self.data.get_fragments(), _sizes(self.data), strict=True):
            if size > most:
                found += [(self._with([one]), bytes_) for one, bytes_ in _row_groups(file, size, most)]
                continue
            if files and filled + size > most:
                found.append((self._with(files), filled))
                files, filled = [], 0
            files.append(file)
            filled += size
        return [*found, (self._with(files), filled)] if files else found

    def _with(self, files: Sequence[ds.Fragment]) -> FileRows:
        data = self.data
        return replace(self, data=ds.FileSystemDataset(files, data.schema, data.format, data.filesystem))


def _sizes(data: ds.FileSystemDataset) -> list[int]:
    paths = [file.path for file in data.get_fragments()]
    return [info.size or 0 for info in data.filesystem.get_file_info(paths)] if paths else []


def _row_groups(file: ds.ParquetFileFragment, size: int, most: int) -> Iterator[tuple[ds.Fragment, int]]:
    """Yields pieces of a large file, each with row groups of about `most` bytes."""
    many = file.num_row_groups
    pieces = min(many, -(-size // most))
    ends = [many * n // pieces for n in range(pieces + 1)]
    for first, end in pairwise(ends):
        yield file.subset(row_group_ids=list(range(first, end))), size * (end - first) // many
