"""The Parquet files of Iceberg tables: columns are found by field id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ..data_files import DataFiles
from ..parts import LOCAL, Part, filesystem
from . import statistics
from .types import FIELD_ID, field_ids, file_schema, parsed

_SCHEME = "file:"


@dataclass(frozen=True)
class IcebergFiles(DataFiles):
    """The files of a table. `folder` is its data folder; names of files are complete addresses.

    Attributes:
        schema: the table's schema (JSON text).
    """

    schema: str = ""

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

    def part(self, schema: pa.Schema, *, name: str = "part") -> Part:
        """Returns a new part with these columns."""
        return IcebergPart(self, schema, name=name)


class IcebergPart(Part):
    """One Parquet file, whose columns have field ids and Iceberg's types."""

    decimals_as_integers = True

    def __init__(self, files: IcebergFiles, schema: pa.Schema, *, name: str) -> None:
        self._table_schema = parsed(files.schema)
        self._stored = file_schema(self._table_schema, schema.names)
        super().__init__(files.folder, self._stored, name=name)

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Adds rows with the part's columns."""
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        super().write(rows.cast(self._stored))

    def _stats(self) -> str:
        return statistics.stats_json(self._metadata[0], self._table_schema, self._more.found, [])


def local(name: str) -> str:
    """Returns an address as `filesystem` expects it; Java writes `file:/path`.

    >>> local("file:/lake/a.parquet"), local("s3://lake/a.parquet")
    ('/lake/a.parquet', 's3://lake/a.parquet')
    """
    if name.startswith(LOCAL):
        return name.removeprefix(LOCAL)
    return name.removeprefix(_SCHEME) if name.startswith(f"{_SCHEME}/") else name
