"""Iceberg tables of a catalog as tables made of files, see `lake.table`. A version is the sequence number
of a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DateType, IntegerType, LongType

from ...errors import ConcurrentCommitError, PositionError, UnsupportedError
from ...model.positions import ChangeNumber, order_key
from .. import guards, retrying
from ..data_files import FileDataset
from ..parts import AddedFile, filesystem
from ..past import LATER
from ..tiers import TIERS
from . import types
from .catalogs import asking, catalog
from .commit import PROGRESS, Commit, lineage, properties_of, summary_of
from .files import IcebergFiles, local
from .partitions import UNPARTITIONED, PhysicalLayout, refuse_spec
from .statistics import bound

PROPERTIES = {
    "format-version": "2",
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.target-file-size-bytes": str(TIERS[-1]),
}
"""Properties of every new table. Spark, too, then replaces files instead of adding delete files."""
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


@dataclass(frozen=True)
class IcebergTables:
    """The Iceberg tables of a catalog, see `LakeTables`. Their names are their identifiers.

    Attributes:
        catalog_name: the name of the catalog.
        properties: its properties, as pyiceberg has them.
        warehouse: the folder in which new tables are created; empty: the catalog decides.
        template: the identifier of a target, with `{schema}` and `{table}`.
    """

    catalog_name: str
    properties: tuple[tuple[str, str], ...]
    warehouse: str = ""
    template: str = "{schema}.{table}"

    @property
    def catalog(self) -> Catalog:
        """The catalog, which is opened once in a process."""
        with asking(self.catalog_name):
            return catalog(self.catalog_name, self.properties)

    def _load(self, name: str) -> Table:
        with asking(name):
            return self.catalog.load_table(_identifier(name))

    def name(self, target: str) -> str:
        """Returns the identifier of a target. Dots in names are encoded, as they separate namespaces.

        >>> IcebergTables("c", ()).name("shop.item")
        'shop.item'
        >>> IcebergTables("c", (), template="lake.{table}").name("shop.a.b")
        'lake.a%2Eb'
        """
        schema, _, table = target.partition(".")
        return self.template.format(schema=schema, table=table.replace(".", "%2E"))

    def exists(self, name: str) -> bool:
        """Whether there is a table of that name."""
        try:
            with asking(name):
                return self.catalog.table_exists(_identifier(name))
        except NoSuchNamespaceError:
            return False

    def open(self, name: str, version: int | None = None) -> IcebergTable:
        """Opens a version of a table; None: the newest one."""
        table = self._load(name)
        if version is None:
            return IcebergTable(name, table, table.current_snapshot())
        for one in _snapshots(table):
            if one.sequence_number == version:
                return IcebergTable(name, table, one)
        what = "the snapshot of this version was removed"
        raise PositionError(what, where=f"{name}, version {version}", hint=LATER)

    @contextmanager
    def opened(self, name: str) -> Iterator[IcebergTable]:
        """Yields the newest version of a table."""
        yield self.open(name)

    def open_until(self, name: str, app_id: str, number: int) -> IcebergTable | None:
        """Opens the newest version whose progress is at most a change number, see `LakeTables`."""
        table = self._load(name)
        for one in _snapshots(table):
            found = IcebergTable(name, table, one)
            if order_key(found.progress(app_id)) <= number:
                return found
        return None

    def scratch_folder(self, name: str) -> str:
        """Returns the table's folder."""
        return local(self._load(name).location())

    def versions(self, name: str) -> list[int]:
        """Returns the versions of a table that can be read, in order."""
        table = self._load(name)
        return sorted(one.sequence_number or 0 for one in _snapshots(table))

    def is_newer_than(self, name: str, version: int) -> bool:
        """Whether a table has a version after one."""
        return self.exists(name) and self.open(name).version > version

    def applications(self, name: str, after: int | None = None) -> set[str]:
        """Returns the application ids that have recorded progress, see `LakeTables`."""
        if not self.exists(name):
            return set()
        table = self._load(name)
        found, before = dict[str, str](), dict[str, str]()
        for one in reversed(list(_snapshots(table))):
            said = {k: n for k, n in summary_of(one).items() if k.startswith(PROGRESS)}
            if after is not None and (one.sequence_number or 0) <= after:
                before = said or before
                continue
            # Each commit repeats the progress of all applications.
            found |= {k: n for k, n in said.items() if before.get(k) != n}
        return {name.removeprefix(PROGRESS) for name in found}

    def set_property(self, name: str, key: str, value: str) -> None:
        """Sets a property of a table."""
        guards.check()

        def once() -> None:
            self._load(name).transaction().set_properties({key: value}).commit_transaction()

        retrying.retried(once, CommitFailedException)

    def create(
        self,
        name: str,
        columns: pa.Schema,
        properties: Mapping[str, str] | None = None,
        rule_columns: Collection[str] = (),
        physical: PhysicalLayout = UNPARTITIONED,
    ) -> None:
        """Creates an empty table; does nothing if it exists."""
        if self.exists(name):
            return
        guards.check()
        schema = types.with_ids(columns, {}, 0)
        said = {**PROPERTIES, **types.properties(schema, columns, rule_columns), **(properties or {})}
        identifier = _identifier(name)
        self.catalog.create_namespace_if_not_exists(identifier[:-1])
        location = f"{self.warehouse}/{'/'.join(identifier)}" if self.warehouse else None
        try:
            self.catalog.create_table(
                identifier, schema, location=location, partition_spec=physical.spec(schema, name),
                sort_order=physical.order(schema, name), properties=said,
            )  # fmt: skip
        except TableAlreadyExistsError:
            return

    def rename(self, old: str, new: str) -> None:
        """Renames a table, in one step."""
        self.catalog.create_namespace_if_not_exists(_identifier(new)[:-1])
        self.catalog.rename_table(_identifier(old), _identifier(new))

    def drop(self, name: str) -> None:
        """Removes a table and its files; does nothing if it does not exist."""
        guards.check()
        try:
            folder = self.scratch_folder(name)
            self.catalog.drop_table(_identifier(name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return
        fs, path = filesystem(folder)
        fs.delete_dir(path)


def _identifier(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _snapshots(table: Table) -> Iterator[Snapshot]:
    """Yields the snapshots of a table's main branch, the newest first."""
    yield from lineage(table, table.current_snapshot())
