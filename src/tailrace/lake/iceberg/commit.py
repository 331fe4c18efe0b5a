"""One commit to an Iceberg table: removed and added files, columns and progress in one snapshot.

The commit asserts the snapshot and the columns that it was made from. pyiceberg repeats a commit by itself on
a newer snapshot; that would apply changes to rows that were not read, so its loop is not used. A catalog may
report an error although it has committed, or answer late. Whether a commit succeeded is therefore read back
from the table, by the id of its snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles

from ...errors import ConcurrentCommitError
from .. import guards, written
from ..failpoints import reach
from ..parts import AddedFile
from .catalogs import lost
from .statistics import data_files

PROGRESS = "tailrace.progress."
"""Prefix of the snapshot properties with the progress of an application."""
MANIFESTS = 16
"""A commit joins manifests once a table has this number of small ones."""
_MANIFEST_BYTES = 8 << 20
_READ_BACK_S = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Delays before a commit with an unknown result is looked up."""


class _Transaction(Transaction):
    """A transaction that computes the resulting metadata once per update; pyiceberg copies all snapshots each
    time that it reads them."""

    _known: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with the staged updates."""
        if not self._updates:
            return self._table.metadata
        if self._known is None or self._known[0] is not self._updates:
            self._known = self._updates, super().table_metadata
        return self._known[1]


class _Exchange(_OverwriteFiles):
    """A snapshot that replaces files. Manifests without files are left out, and small ones joined."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return [m for m in super()._existing_manifests() if m.has_added_files() or m.has_existing_files()]

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return _ManifestMergeManager(_MANIFEST_BYTES, MANIFESTS, True, self).merge_manifests(manifests)


@dataclass(frozen=True)
class Commit:
    """A commit on exactly the snapshot of an open table.

    Attributes:
        name: the table, for messages.
        table: the table, open.
        removed, added: the files.
        progress: the progress by application id; that of other applications stays.
        info: more properties of the snapshot.
        schema: the new columns; None: the same.
        properties: table properties to set.
    """

    name: str
    table: Table
    removed: Sequence[DataFile] = ()
    added: Sequence[AddedFile] = ()
    progress: Mapping[str, int] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    schema: Schema | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> int:
        """Commits, and returns the sequence number of the snapshot.

        Raises:
            ConcurrentCommitError: another process has committed; nothing was written.
            TargetLostError: the catalog does not say whether it has committed. A repetition starts from the
                progress that the table has then.
        """
        table, metadata = self.table, self.table.metadata
        before = table.current_snapshot()
        transaction = _Transaction(table)
        if self.schema is not None:
            newest = max(one.schema_id for one in metadata.schemas)
            schema = Schema(*self.schema.fields, schema_id=newest + 1)
            transaction._stage((AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate()))
        if self.properties:
            transaction._stage((SetPropertiesUpdate(updates=dict(self.properties)),))
        made = self._snapshot(transaction, before)
        reach("delta.local")
        guards.check()
        asserted = (
            *transaction._requirements,
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        )
        try:
            table._do_commit(updates=transaction._updates, requirements=asserted)
        except Exception as error:
            if not self._succeeded(made, before, refused=isinstance(error, CommitFailedException)):
                at = 0 if before is None else before.sequence_number or 0
                raise ConcurrentCommitError.at(self.name, at) from error
        written.add(self.name, [one.size for one in self.added])
        snapshot = self.table.metadata.snapshot_by_id(made)
        assert snapshot is not None and snapshot.sequence_number is not None  # noqa: S101 - it was committed
        return snapshot.sequence_number

    def _snapshot(self, transaction: Transaction, before: Snapshot | None) -> int:
        """Adds the snapshot to a transaction, and returns its id."""
        location = self.table.location_provider().data_path
        spec = self.table.metadata.default_spec_id
        known = {k: v for k, v in properties_of(self.table, before).items() if k.startswith(PROGRESS)}
        now = {PROGRESS + app: str(number) for app, number in self.progress.items()}
        producer = _Exchange(
            operation=Operation.OVERWRITE if self.removed else Operation.APPEND,
            transaction=transaction,
            io=self.table.io,
            snapshot_properties={**known, **now, **self.info},
        )
        for gone in self.removed:
            producer.delete_data_file(gone)
        for entry in (file for one in self.added for file in data_files(one, location, spec)):
            producer.append_data_file(entry)
        producer.commit()
        return producer.snapshot_id

    def _succeeded(self, made: int, before: Snapshot | None, *, refused: bool) -> bool:
        """Whether the snapshot is in the table after an error, read from the catalog.

        Args:
            made: the id of the snapshot.
            before: the snapshot that the commit asserts.
            refused: the catalog has refused the commit. A refusal may also answer a repeated request whose
                first one succeeded.

        Raises:
            TargetLostError: it is not known.
        """
        why: Exception | None = None
        for delay in _READ_BACK_S[:1] if refused else _READ_BACK_S:
            time.sleep(delay)
            try:
                self.table.refresh()
            except NoSuchTableError:
                return False
            except Exception as error:  # noqa: BLE001 - the catalog may answer the next request
                why = error
                continue
            if self.table.metadata.snapshot_by_id(made) is not None:
                return True
            now = self.table.current_snapshot()
            if refused or (now and now.snapshot_id) != (before and before.snapshot_id):
                return False  # the commit asserts a snapshot that is not the current one any more
        raise lost(self.name, why) from why


def summary_of(snapshot: Snapshot) -> dict[str, str]:
    """Returns the properties in the summary of a snapshot."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def properties_of(table: Table, snapshot: Snapshot | None) -> dict[str, str]:
    """Returns the properties of a snapshot, with the progress that earlier snapshots recorded.

    Each commit of tailrace repeats the progress of all applications, so only snapshots of other writers are
    passed over.
    """
    found = dict[str, str]()
    for one in lineage(table, snapshot):
        said = summary_of(one)
        found = {**said, **found}
        if any(name.startswith(PROGRESS) for name in said):
            break
    return found


def lineage(table: Table, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    """Yields a snapshot and those that it follows, the newest first.

    Snapshots in between may be expired, and those after them then have no parent. The next one is the newest
    before them that is not only on another branch.
    """
    if snapshot is None:
        return
    known = {one.snapshot_id: one for one in table.snapshots()}
    others: set[int] | None = None
    while snapshot is not None:
        yield snapshot
        parent = known.get(snapshot.parent_snapshot_id or -1)
        if parent is None:
            if others is None:
                others = _on_other_branches(table)
            number = snapshot.sequence_number or 0
            earlier = [
                one
                for one in known.values()
                if (one.sequence_number or 0) < number and one.snapshot_id not in others
            ]
            parent = max(earlier, key=lambda one: one.sequence_number or 0, default=None)
        snapshot = parent


def _on_other_branches(table: Table) -> set[int]:
    """Returns the ids of the snapshots that only other branches have, as far as their parents are known."""

    def line(head: int) -> set[int]:
        return {one.snapshot_id for one in ancestors_of(table.snapshot_by_id(head), table.metadata)}

    refs = table.metadata.refs
    branches = {name for name, ref in refs.items() if ref.snapshot_ref_type == SnapshotRefType.BRANCH}
    others = {one for name in branches - {MAIN_BRANCH} for one in line(refs[name].snapshot_id)}
    return others - (line(refs[MAIN_BRANCH].snapshot_id) if MAIN_BRANCH in refs else set())
