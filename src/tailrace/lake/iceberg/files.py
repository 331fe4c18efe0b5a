"""The Parquet files of Iceberg tables: columns are found by field id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ..data_files import DataFiles
from ..parts import AddedFile, Part
from ..storage import LOCAL, filesystem
from . import statistics
from .partitions import Key, parsed_spec, split
from .types import FIELD_ID, field_ids, file_schema, parsed

_SCHEME = "file:"
_BUFFER = 64 << 20
"""Bytes of rows of all partitions that are written together."""


@dataclass(frozen=True)
class IcebergFiles(DataFiles):
    """The files of a table. `folder` is its data folder; names of files are complete addresses.

    Attributes:
        schema: the table's schema (JSON text).
        spec: its partition spec (JSON text); empty if it has no partitions.
    """

    schema: str = ""
    spec: str = ""

    def path(self, name: str) -> str:
        """Returns the path of a file, as its file system has it."""
        return filesystem(local(name))[1]

    def columns_in(self, file: pq.ParquetFile) -> Mapping[str, str]:
        """Returns the table's columns that an open file has, with their names in the file. A file without
        field ids has the table's names."""
        fields = [f for f in file.schema_arrow if FIELD_ID in (f.metadata or {})]
        found = {int(f.metadata[FIELD_ID]): f.name for f in fields}
        if not found:
            return super().columns_in(file)
        return {name: found[one] for name, one in field_ids(self.schema).items() if one in found}

    def part(self, schema: pa.Schema, *, name: str = "part") -> IcebergPart | PartitionedPart:
        """Returns a new part with these columns."""
        return PartitionedPart(self, schema, name) if self.spec else IcebergPart(self, schema, name=name)


class IcebergPart(Part):
    """One Parquet file, whose columns have field ids and Iceberg's types.

    Attributes:
        sort_order: the id of the order of its rows; 0 if they have none.
    """

    decimals_as_integers = True

    def __init__(self, files: IcebergFiles, schema: pa.Schema, *, name: str, key: Key = ()) -> None:
        self._table_schema, self._key, self.sort_order = parsed(files.schema), key, 0
        self._stored = file_schema(self._table_schema, schema.names)
        super().__init__(files.folder, self._stored, name=name)

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Adds rows with the part's columns."""
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        super().write(rows.cast(self._stored))

    def _stats(self) -> str:
        return statistics.stats_json(
            self._metadata[0], self._table_schema, self._more.found, self._key, self.sort_order
        )


class PartitionedPart:
    """A part of a partitioned table: one file per partition, with the methods of `Part`."""

    def __init__(self, files: IcebergFiles, schema: pa.Schema, name: str) -> None:
        self._files, self._schema, self._name = files, schema, name
        self._spec, self._table_schema = parsed_spec(files.spec), parsed(files.schema)
        self._parts, self._rows = dict[Key, IcebergPart](), dict[Key, list[pa.Table]]()
        self._unwritten = self.rows = 0
        self.sort_order = 0

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Adds rows; small pieces are collected, so that row groups are not small."""
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        for key, some in split(rows, self._spec, self._table_schema):
            self._rows.setdefault(key, []).append(some)
            self._unwritten += some.nbytes
        if self._unwritten >= _BUFFER:
            self._flush()

    def _flush(self) -> None:
        for key, tables in self._rows.items():
            if key not in self._parts:
                part = IcebergPart(self._files, self._schema, name=self._name, key=key)
                self._parts[key] = part
            self._parts[key].write(pa.concat_tables(tables))
        self._rows, self._unwritten = {}, 0

    def close(self) -> AddedFile | None:
        """Finishes the files; None if nothing was written."""
        self._flush()
        closed = list[AddedFile]()
        for part in self._parts.values():
            part.sort_order = self.sort_order
            closed += part.close_all()
        if not closed:
            return None
        said = [{"path": one.path, "size": one.size, "stats": json.loads(one.stats)} for one in closed]
        first, size = closed[0], sum(one.size for one in closed)
        others = tuple(one.path for one in closed[1:])
        return AddedFile(first.path, size, self.rows, json.dumps(said), first.modified, others)

    def close_all(self) -> list[AddedFile]:
        """Finishes the part and returns it; empty if nothing was written."""
        added = self.close()
        return [] if added is None else [added]

    def discard(self) -> None:
        """Deletes the files."""
        for part in self._parts.values():
            part.discard()


def local(name: str) -> str:
    """Returns an address as `filesystem` expects it; Java writes `file:/path`.

    >>> local("file:/lake/a.parquet"), local("s3://lake/a.parquet")
    ('/lake/a.parquet', 's3://lake/a.parquet')
    """
    if name.startswith(LOCAL):
        return name.removeprefix(LOCAL)
    return name.removeprefix(_SCHEME) if name.startswith(f"{_SCHEME}/") else name
