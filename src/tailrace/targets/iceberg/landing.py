"""The destination of baselines of Iceberg targets: worker processes write parts, and one commit makes the
table visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...errors import ConcurrentCommitError, TableMovedError
from ...lake import guards, retrying
from ...lake.iceberg.commit import Commit
from ...lake.iceberg.files import IcebergFiles
from ...lake.iceberg.partitions import UNPARTITIONED, PhysicalLayout
from ...lake.iceberg.tables import IcebergTables
from ...lake.parts import AddedFile, PartWriter
from ...lake.storage import filesystem
from ...model.change import Relation
from ...model.positions import ChangeNumber
from ...model.types import schema_of
from ..lake.multi_source import rewrite_without
from .layout import Replacement


@dataclass(frozen=True)
class IcebergLanding:
    """An Iceberg table whose rows are replaced; see `capture.snapshot_sink.Landing`.

    Attributes:
        tables: the tables of the catalog; None in a process that only writes parts.
        name: the table.
        app: the name of the task's progress.
        own: constants that distinguish a mapped table's rows from those of other sources.
        claim: sets the task as the owner of the table, or raises ApplyError if it belongs to another task.
        files: writes the parts, once begun.
        physical: the partitions and the order of a new table.
    """

    tables: IcebergTables | None
    name: str = ""
    app: str = ""
    own: Mapping[str, str] = field(default_factory=dict)
    claim: Callable[[IcebergTables, str], None] | None = None
    files: IcebergFiles | None = None
    physical: PhysicalLayout = UNPARTITIONED

    def begin(self, relation: Relation, number: int = 1) -> IcebergLanding:
        """Creates the table if it does not exist."""
        assert self.tables is not None  # noqa: S101 - only workers have none
        work = Replacement.of(self.tables, self.name, relation, self.physical)
        if self.claim is not None and not self.own:
            self.claim(self.tables, self.name)
        return replace(self, files=work.files, claim=None)

    def part(self, relation: Relation, name: str = "") -> PartWriter:
        """Returns a new Parquet file."""
        assert self.files is not None  # noqa: S101 - `begin` was called
        return self.files.part(schema_of(relation.columns), name="baseline")

    @property
    def address(self) -> Mapping[str, str]:
        """The folder and the columns of the parts."""
        assert self.files is not None  # noqa: S101 - `begin` was called
        return {"folder": self.files.folder, "schema": self.files.schema, "spec": self.files.spec}

    def commit(self, relation: Relation, files: Sequence[AddedFile], after: ChangeNumber) -> int:
        """Replaces everything in the table in one commit."""
        assert self.tables is not None and self.files is not None  # noqa: S101 - `begin` was called
        fs, folder = filesystem(self.files.folder)
        names = [name for file in files for name in file.paths]
        if lost := [name for name in names if fs.get_file_info(f"{folder}/{name}").type.name != "File"]:
            raise TableMovedError(
                f"{len(lost)} files of the baseline of {relation.table} were removed before it was done",
                where=self.name,
                hint="it is read again; keep unused files longer than a baseline takes",
            )
        progress = {self.app: int(after)} if self.app else {}
        try:
            return Replacement(self.name, relation, self.files).commit(self.tables, files, progress)
        except ConcurrentCommitError as error:
            raise TableMovedError(error.what, where=self.name, hint="the baseline is read again") from error

    def drop(self, table: str) -> None:
        """Removes the table; of a target shared with other sources, only the table's own rows."""
        assert self.tables is not None  # noqa: S101 - only workers have none
        tables, name = self.tables, self.name
        if not self.own:
            tables.drop(name)
            return

        def once() -> None:
            guards.check()
            now = tables.open(name)
            removed, others = rewrite_without(now, self.own, now.schema)
            gone = [now.entries[str(file["path"])] for file in removed]
            if gone:
                Commit(name, now.table, gone, others).run()

        if tables.exists(name):
            retrying.retried(once, ConcurrentCommitError)
