"""The Iceberg tables of a catalog, see `lake.table`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from ...errors import PositionError
from ...model.positions import order_key
from .. import guards, retrying
from ..folders import remove_folder
from ..past import LATER
from ..tiers import TIERS
from . import types
from .catalogs import asking, catalog
from .commit import PROGRESS, lineage, summary_of
from .files import local
from .partitions import UNPARTITIONED, PhysicalLayout
from .table import IcebergTable

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
        remove_folder(folder)


def _identifier(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def _snapshots(table: Table) -> Iterator[Snapshot]:
    """Yields the snapshots of a table's main branch, the newest first."""
    yield from lineage(table, table.current_snapshot())
