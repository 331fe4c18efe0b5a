"""One version of an Iceberg table as a table made of files, see `lake.table`.

A version is the sequence number of a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DateType, IntegerType, LongType

from ...errors import ConcurrentCommitError, UnsupportedError
from ...model.positions import ChangeNumber, order_key
from .. import retrying
from ..data_files import FileDataset
from ..parts import AddedFile
from ..storage import filesystem
from . import types
from .catalogs import asking
from .commit import PROGRESS, Commit, lineage, properties_of, summary_of
from .files import IcebergFiles, local
from .partitions import refuse_spec
from .statistics import bound

_RANGES = (IntegerType, LongType, DateType)
"""Types whose bounds are used to skip files."""


@dataclass(frozen=True)
class IcebergTable:
    """One version of an Iceberg table, see `LakeTable`.

    Attributes:
        name: its name.
        table: the table, open.
        snapshot: the snapshot of the version; None: the table has none yet.
    """

    name: str
    table: Table
    snapshot: Snapshot | None

    @property
    def version(self) -> int:
        """The open version; 0 without a snapshot."""
        return 0 if self.snapshot is None else self.snapshot.sequence_number or 0

    @cached_property
    def iceberg_schema(self) -> Schema:
        """The columns of the version: the newest version has the table's current columns."""
        now = self.table.current_snapshot()
        if self.snapshot is None or now is None or self.snapshot.snapshot_id == now.snapshot_id:
            return self.table.schema()
        return self.table.schemas()[self.snapshot.schema_id or 0]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, in plain Arrow types."""
        return types.arrow_schema(self.iceberg_schema, self.table.properties)

    @property
    def files(self) -> IcebergFiles:
        """Reads and writes data files of the table."""
        folder = local(self.table.location_provider().data_path)
        spec = self.table.spec()
        refuse_spec(spec, self.table.schema(), self.name)
        partitions = spec.model_dump_json() if spec.fields else ""
        return IcebergFiles(folder, self.iceberg_schema.model_dump_json(), partitions)

    @property
    def has_vectors(self) -> bool:
        """False: tables with delete files are refused."""
        return False

    @property
    def unread(self) -> Sequence[str]:
        """Empty: tables with delete files are refused."""
        return ()

    @property
    def replaces_files(self) -> bool:
        """True: only tables without delete files are opened."""
        return True

    @property
    def accepts_files(self) -> bool:
        """Whether complete files may be added: no column is required."""
        return not any(one.required for one in self.iceberg_schema.fields)

    @property
    def rule_columns(self) -> set[str]:
        """The columns that rules have added."""
        return types.ruled(self.iceberg_schema, self.table.properties)

    def history(self, most: int) -> list[dict[str, Any]]:
        """Returns version and properties of the newest commits, see `LakeTable`."""
        found = islice(lineage(self.table, self.snapshot), most)
        return [{"version": one.sequence_number or 0, **summary_of(one)} for one in found]

    def progress(self, app_id: str) -> ChangeNumber | None:
        """Returns the progress of an application in this version; None if it has none."""
        said = properties_of(self.table, self.snapshot).get(PROGRESS + app_id)
        return None if said is None else ChangeNumber(int(said))

    def at(self, snapshot: Snapshot | None) -> IcebergTable:
        """Returns another version of the table."""
        return IcebergTable(self.name, self.table, snapshot)

    @cached_property
    def entries(self) -> dict[str, DataFile]:
        """The data files by path.

        Raises:
            UnsupportedError: another writer has marked rows in delete files.
        """
        found = dict[str, DataFile]()
        for manifest in [] if self.snapshot is None else self.snapshot.manifests(self.table.io):
            if not (manifest.has_added_files() or manifest.has_existing_files()):
                continue
            if manifest.content == ManifestContent.DELETES:
                raise UnsupportedError(
                    "another writer has marked deleted rows in delete files, which tailrace does not read",
                    where=self.name,
                    hint="rewrite the table's data files with that writer, and let it replace files from now "
                    "on (`write.delete.mode` and the like: copy-on-write)",
                )
            for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=True):
                found[entry.data_file.file_path] = entry.data_file
        return found

    def data_files(self, column: str = "") -> list[dict[str, Any]]:
        """Returns the files, see `LakeTable`; ranges only of integers and dates."""
        one = next((f for f in self.iceberg_schema.fields if f.name == column), None)
        ranges = one is not None and isinstance(one.field_type, _RANGES)
        found = list[dict[str, Any]]()
        for path, file in self.entries.items():
            said: dict[str, Any] = {
                "path": path, "size_bytes": file.file_size_in_bytes, "num_records": file.record_count,
            }  # fmt: skip
            if one is not None and ranges:
                low, high = (side or {} for side in (file.lower_bounds, file.upper_bounds))
                said[f"min.{column}"] = bound(one.field_type, low.get(one.field_id))  # type: ignore[arg-type]
                said[f"max.{column}"] = bound(one.field_type, high.get(one.field_id))  # type: ignore[arg-type]
            found.append(said)
        return found

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.table.properties

    def dataset(self) -> ds.Dataset | FileDataset:
        """Returns the rows, see `LakeTable`."""
        files, schema, parquet = self.files, self.schema, ds.ParquetFileFormat()
        fs, fragments = filesystem(files.folder)[0], list[ds.Fragment]()
        for path, file in self.entries.items():
            with files.open(path) as opened:
                known, have = files.columns_in(opened), set(opened.schema_arrow.names)
            if any(known.get(name, "") != (name if name in have else "") for name in schema.names):
                return FileDataset(files, tuple(self.entries), schema)
            ranges = self._range_of(file)
            fragments.append(parquet.make_fragment(filesystem(local(path))[1], fs, ranges))
        return ds.FileSystemDataset(fragments, schema, parquet, fs)

    def _range_of(self, file: DataFile) -> ds.Expression:
        """Returns a condition that holds for all rows of a file, by its bounds of integers and dates."""
        found = pc.scalar(True)
        for one in self.iceberg_schema.fields:
            if not isinstance(one.field_type, _RANGES):
                continue
            low, high = (
                bound(one.field_type, (side or {}).get(one.field_id))
                for side in (file.lower_bounds, file.upper_bounds)
            )
            if low is not None and high is not None:
                column = pc.field(one.name)
                found &= ((column >= low) | column.is_null()) & ((column <= high) | column.is_null())
        return found

    def exchange(
        self,
        removed: Sequence[Mapping[str, Any]],
        added: Sequence[AddedFile],
        app_id: str,
        end: int,
        info: Mapping[str, str],
    ) -> int:
        """Replaces files in one commit on exactly this version, see `LakeTable`."""
        now = self.table.current_snapshot()
        if now != self.snapshot:
            raise ConcurrentCommitError.at(self.name, self.version, now.sequence_number if now else None)
        gone = [self.entries[file["path"]] for file in removed]
        return Commit(self.name, self.table, gone, added, {app_id: end}, info).run()

    def append(
        self, added: Sequence[AddedFile], app_id: str, end: int, start: int, info: Mapping[str, str]
    ) -> int:
        """Adds files to the newest version, see `LakeTable`."""

        def once() -> int:
            with asking(self.name):
                table = self.table.catalog.load_table(self.table.name())
            now = IcebergTable(self.name, table, table.current_snapshot())
            if (progress := order_key(now.progress(app_id))) != start:
                raise _MovedError(progress)
            return Commit(self.name, table, (), added, {app_id: end}, info).run()

        try:
            return retrying.retried(once, ConcurrentCommitError)
        except _MovedError as error:
            raise ConcurrentCommitError.moved(self.name, app_id, start, error.args[0]) from None


class _MovedError(Exception):
    """Another process has moved the progress."""
