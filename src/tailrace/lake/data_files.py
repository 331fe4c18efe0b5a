"""Reads and writes the Parquet files of a table, in any process: objects of this module are small and
picklable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from .filestats import width
from .parts import ROW_GROUP, Part, PartWriter
from .reading import fitted
from .storage import filesystem

_LEAST_ROWS = 1024
"""The minimum number of rows of a batch."""


@dataclass(frozen=True)
class DataFiles:
    """The files in a table's folder; columns are found by name.

    Attributes:
        folder: the table's folder, in which new files are written.
    """

    folder: str

    def path(self, name: str) -> str:
        """Returns the path of a file, as its file system has it."""
        return f"{filesystem(self.folder)[1]}/{name}"

    def open(self, name: str) -> pq.ParquetFile:
        """Opens a file of the table."""
        # Read through a small buffer: whole row groups of other writers may be large.
        return pq.ParquetFile(self.path(name), filesystem=filesystem(self.folder)[0], buffer_size=1 << 20)

    def columns_in(self, file: pq.ParquetFile) -> Mapping[str, str]:
        """Returns the table's columns that an open file has, with their names in the file."""
        return {name: name for name in file.schema_arrow.names}

    def batches(
        self,
        file: pq.ParquetFile,
        wanted: pa.Schema,
        *,
        groups: Sequence[int] | None = None,
        rows: int = ROW_GROUP,
        size: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yields rows of an open file in the `wanted` columns and types; columns that the file does not have
        are NULL.

        Args:
            file: the file.
            wanted: the columns.
            groups: the row groups; None: all.
            rows, size: the maximum rows and bytes of a batch; None: no limit.
        """
        groups = list(range(file.num_row_groups)) if groups is None else list(groups)
        known = self.columns_in(file)
        have = [name for name in wanted.names if name in known]
        names = [known[name] for name in have]
        if size is not None:
            rows = max(_LEAST_ROWS, min(rows, size // width(file.metadata, groups, names)))
        # Files are read in parallel; more threads within each file make it slower.
        for batch in file.iter_batches(rows, row_groups=groups, columns=names, use_threads=False):
            yield fitted(batch.select(names).rename_columns(have), wanted)

    def part(self, schema: pa.Schema, *, name: str = "part") -> PartWriter:
        """Returns a new part with these columns."""
        return Part(self.folder, schema, name=name)


@dataclass(frozen=True)
class FileFragment:
    """The rows of one file, with the methods of Arrow's fragments that queries use."""

    files: DataFiles
    name: str

    def to_batches(
        self, schema: pa.Schema, columns: Sequence[str], filter: ds.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows for which a filter holds, in some columns."""
        with self.files.open(self.name) as file:
            for batch in self.files.batches(file, schema):
                rows = batch if filter is None else batch.filter(filter)
                yield rows.select(list(columns))

    def to_table(
        self, schema: pa.Schema, columns: Sequence[str], filter: ds.Expression | None = None
    ) -> pa.Table:
        """Returns the rows for which a filter holds, in some columns."""
        wanted = pa.schema([schema.field(name) for name in columns])
        return pa.Table.from_batches(self.to_batches(schema, columns, filter), wanted)


@dataclass(frozen=True)
class FileDataset:
    """The rows of files whose columns may have other names, which Arrow's datasets cannot read."""

    files: DataFiles
    names: tuple[str, ...]
    schema: pa.Schema

    def parts(self) -> Iterator[tuple[ds.FileSystemDataset, Mapping[str, str]]]:
        """Yields the files in groups that Arrow can read: the rows with the files' names of columns, and
        these names by the table's names."""
        groups = dict[tuple[tuple[str, str], ...], list[str]]()
        for name in self.names:
            with self.files.open(name) as file:
                known = self.files.columns_in(file)
            found = tuple((one, known[one]) for one in self.schema.names if one in known)
            groups.setdefault(found, []).append(self.files.path(name))
        fs, parquet = filesystem(self.files.folder)[0], ds.ParquetFileFormat()
        for columns, paths in groups.items():
            schema = pa.schema([self.schema.field(one).with_name(own) for one, own in columns])
            fragments = [parquet.make_fragment(path, fs) for path in paths]
            yield ds.FileSystemDataset(fragments, schema, parquet, fs), dict(columns)

    def get_fragments(self, filter: ds.Expression | None = None) -> Iterator[FileFragment]:
        """Yields all files."""
        yield from (FileFragment(self.files, name) for name in self.names)

    def count_rows(self, filter: ds.Expression) -> int:
        """Returns the number of rows for which a filter holds."""
        found = (one.to_batches(self.schema, self.schema.names, filter) for one in self.get_fragments())
        return sum(batch.num_rows for batches in found for batch in batches)
