"""The destination of baselines: worker processes write parts in parallel, and one commit makes the table
visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from ..apply.baseline_staging import Staging
from ..apply.mapping.table_map import STAGED_FOR, place_of, task_map
from ..apply.target_owner import OWNER, claim, owner_of, source_of
from ..errors import TableMovedError
from ..lake import delta as lake
from ..lake import guards
from ..lake.folders import remove_folder
from ..lake.opened import open_table
from ..model.change import Relation
from ..model.positions import ChangeNumber
from ..model.types import schema_of
from ..state import lifecycle
from ..targets.delta.tables import DeltaTables
from ..targets.lake.layout import mark
from ..targets.multi_source import TargetLocation
from ..targets.rule_columns import added_by, rules_of
from ..targets.task_tables import iceberg_tables, physical_layout

if TYPE_CHECKING:
    from ..config.task import Task

TARGET_PROPERTIES = {"delta.enableDeletionVectors": "false"}


class SnapshotPart(Protocol):
    """One part of a baseline while it is written."""

    @property
    def rows(self) -> int:
        """The number of rows written so far."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows, in the layout's types."""

    def close(self) -> lake.AddedFile | None:
        """Finishes the part; returns the file for the commit, if there is one."""

    def discard(self) -> None:
        """Discards the part and its rows."""


class Landing(Protocol):
    """The destination of one table's baseline. It is sent to worker processes, so it is small and
    picklable."""

    def begin(self, relation: Relation, number: int = 1) -> Landing:
        """Prepares a table's baseline of that number and layout; returns the landing to write to and to
        commit."""

    def part(self, relation: Relation, name: str = "") -> SnapshotPart:
        """Returns a new part.

        Of several parts with the same name only one counts: the one whose file is committed, or the first to
        be closed.
        """

    @property
    def address(self) -> Mapping[str, str]:
        """The landing without secrets, as input of `landing_at`."""

    def commit(self, relation: Relation, files: Sequence[lake.AddedFile], after: ChangeNumber) -> int | None:
        """Replaces the table by the rows of all parts, at once.

        Returns the target's version; None if the rows are still to be mapped.

        The target's progress is then the change number `after`, or none, whatever it was before. Changes are
        read from there on, and selected by their positions.
        """

    def drop(self, table: str) -> None:
        """Removes the target, if it exists."""


@dataclass(frozen=True)
class DeltaLanding:
    """A Delta table's folder: parts are Parquet files in it.

    Attributes:
        path: the folder.
        app: the name of the task's progress.
        own: constants that distinguish a mapped table's rows from those of other sources.
        owner: the task that the target belongs to; empty for other folders.
    """

    path: str
    app: str = ""
    own: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""

    def begin(self, relation: Relation, number: int = 1) -> DeltaLanding:
        """Creates the table if it does not exist; raises ApplyError if it belongs to another task."""
        owned = {OWNER: self.owner} if self.owner and not self.own else {}
        lake.create(self.path, schema_of(relation.columns), TARGET_PROPERTIES | owned)
        if owned:
            claim(DeltaTables(""), self.path, self.owner)
        return self

    def part(self, relation: Relation, name: str = "") -> lake.Part:
        """Returns a new Parquet file."""
        return lake.Part(self.path, schema_of(relation.columns), name="baseline")

    @property
    def address(self) -> Mapping[str, str]:
        """The folder's path."""
        return {"path": self.path}

    def commit(self, relation: Relation, files: Sequence[lake.AddedFile], after: ChangeNumber) -> int:
        """Replaces everything in the table in one commit."""
        schema = schema_of(relation.columns)
        fs, folder = lake.filesystem(self.path)
        if lost := [f.path for f in files if fs.get_file_info(f"{folder}/{f.path}").type.name != "File"]:
            raise TableMovedError(
                f"a VACUUM removed {len(lost)} files of the baseline of {relation.table} before it was done",
                where=self.path,
                hint="it is read again; keep unused files longer than a baseline takes",
            )
        progress = {self.app: after} if self.app else {}
        info = mark(relation)
        return lake.replace_all(self.path, list(files), schema=schema, progress=progress, info=info)

    def drop(self, table: str) -> None:
        """Removes the folder; for a target shared with other sources, only the table's own rows."""
        guards.check()
        if not lake.exists(self.path):
            return
        if self.own:
            quoted = {n.replace('"', '""'): v.replace("'", "''") for n, v in self.own.items()}
            mine = " AND ".join(f"\"{n}\" = '{v}'" for n, v in quoted.items())
            lake.retried(lambda: open_table(self.path).delete(mine))
            return
        remove_folder(self.path)


@dataclass(frozen=True)
class StagedLanding:
    """A mapped table's landing: rows wait in a staging table until apply writes them to the target.

    Attributes:
        staging: the task's staging tables.
        mapping: the digest of the mapping.
        target: the target's landing.
        at: the staging table, once begun.
    """

    staging: Staging
    mapping: str
    target: Landing
    at: DeltaLanding = DeltaLanding("")

    def begin(self, relation: Relation, number: int = 1) -> StagedLanding:
        """Creates the baseline's staging table; one that an earlier attempt has left is removed."""
        self.staging.remove(relation.table, number)
        return replace(self, at=DeltaLanding(self.staging.path(relation.table, number)).begin(relation))

    def part(self, relation: Relation, name: str = "") -> lake.Part:
        """Returns a new Parquet file."""
        return self.at.part(relation)

    @property
    def address(self) -> Mapping[str, str]:
        """The staging table's folder."""
        return self.at.address

    def commit(self, relation: Relation, files: Sequence[lake.AddedFile], after: ChangeNumber) -> None:
        """Commits the files to the staging table."""
        lake.commit(self.at.path, list(files), progress={}, info={STAGED_FOR: self.mapping})

    def drop(self, table: str) -> None:
        """Removes the staging table and the target; for a target shared with other sources, only the table's
        own rows."""
        self.staging.clear(table)
        self.target.drop(table)


def landings(task: Task) -> Callable[[str], Landing]:
    """Returns a function that returns the landing of a table."""
    target = _targets(task)

    def landing(table: str) -> Landing:
        names = lifecycle.read(task).target_names
        mapping = task_map(task, table)
        to = target(place_of(mapping, names), table)
        if mapping.plain:
            return to
        return StagedLanding(Staging(task.staging_path), mapping.digest, to)

    return landing


def landing_at(task: Task, address: Mapping[str, str]) -> Landing:
    """Returns the landing that parts of a task's baseline are written to, from its `address`."""
    if path := address.get("path"):
        return DeltaLanding(path)
    if folder := address.get("folder"):
        from ..lake.iceberg.files import IcebergFiles
        from ..targets.iceberg.landing import IcebergLanding

        return IcebergLanding(None, files=IcebergFiles(folder, address["schema"], address["spec"]))
    from ..targets.postgresql.connection import Database
    from ..targets.postgresql.load import PostgresLanding

    database = Database.of(str(task.target.database))
    return PostgresLanding(database, task.name, address["table"])


def _targets(task: Task) -> Callable[[TargetLocation, str], Landing]:
    if task.target.type == "iceberg":
        from ..targets.iceberg.landing import IcebergLanding

        tables, owned = iceberg_tables(task), partial(claim, owner=owner_of(task))
        return lambda at, table: IcebergLanding(
            tables, tables.name(at.target), task.apply_app, at.partition, owned,
            physical=physical_layout(task, table),
        )  # fmt: skip
    if not task.target.database:
        return lambda at, _: DeltaLanding(
            task.target_path(at.target), task.apply_app, at.partition, owner_of(task)
        )
    from ..targets.postgresql.connection import Database
    from ..targets.postgresql.load import PostgresLanding

    database = Database.of(task.target.database)

    def of_table(at: TargetLocation, table: str) -> Landing:
        added = added_by(rules_of(task, table))
        return PostgresLanding(database, task.name, at=at, rule_columns=added, source=source_of(task))

    return of_table
