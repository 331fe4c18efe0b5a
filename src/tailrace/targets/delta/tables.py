"""Delta tables as tables made of files, see `lake.table`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from ...errors import AGAIN, ConcurrentCommitError, OvertakenError
from ...lake import delta as lake
from ...lake import guards, log_retention, written
from ...lake.data_files import DataFiles
from ...lake.failpoints import reach
from ...lake.one_commit import commit_actions
from ...lake.opened import open_table
from ...lake.past import at_version
from ...model.positions import ChangeNumber, order_key
from . import table_info
from .applications import applications

_FILE = ("path", "size_bytes", "num_records")


@dataclass(frozen=True)
class DeltaLakeTable:
    """One version of a Delta table, see `LakeTable`. `delta`: the table, open."""

    name: str
    delta: DeltaTable

    @property
    def version(self) -> int:
        """The open version."""
        return int(self.delta.version())

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, in plain Arrow types."""
        return lake.arrow_schema(self.delta)

    @property
    def files(self) -> DataFiles:
        """Reads and writes data files of the table."""
        return DataFiles(self.name)

    @property
    def has_vectors(self) -> bool:
        """Whether rows of the table may be marked as deleted in deletion vectors."""
        return table_info.has_vectors(self.delta)

    @property
    def unread(self) -> Sequence[str]:
        """Features of the table that only Spark can read."""
        return lake.unread(self.delta)

    @property
    def replaces_files(self) -> bool:
        """Whether files may be replaced here."""
        return table_info.is_plain(self.delta)

    @property
    def accepts_files(self) -> bool:
        """Whether complete files may be added here without reading rows."""
        return table_info.accepts_files(self.delta)

    @property
    def rule_columns(self) -> set[str]:
        """The columns that rules have added."""
        return table_info.rule_columns(self.delta)

    def history(self, most: int) -> list[dict[str, Any]]:
        """Returns version and metadata of the newest commits."""
        return self.delta.history(most)

    def progress(self, app_id: str) -> ChangeNumber | None:
        """Returns the progress of an application in this version; None if it has none."""
        return lake.reached(self.delta, app_id)

    def data_files(self, column: str = "") -> list[dict[str, Any]]:
        """Returns the files, see `LakeTable`."""
        found = table_info.actions(self.delta)
        names = [n for n in (*_FILE, f"min.{column}", f"max.{column}") if n in found.column_names]
        rows: list[dict[str, Any]] = found.select(names).to_pylist()
        return rows

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return {k: v for k, v in self.delta.metadata().configuration.items() if v is not None}

    def dataset(self) -> ds.Dataset:
        """Returns the rows."""
        return lake.dataset(self.delta)

    def exchange(
        self,
        removed: Sequence[Mapping[str, Any]],
        added: Sequence[lake.AddedFile],
        app_id: str,
        end: int,
        info: Mapping[str, str],
    ) -> int:
        """Replaces files in one commit on exactly this version, see `LakeTable`."""
        now, table, version = int(time.time() * 1000), self.delta, self.version
        reach("delta.local")
        guards.check()
        try:
            commit_actions(
                table,
                [
                    *[RemoveAction(f["path"], True, now, f["size_bytes"], {}) for f in removed],
                    *[AddAction(p.path, p.size, {}, p.modified, True, p.stats) for p in added],
                ],
                progress=[Transaction(app_id, end)],
                info=info,
            )
        except CommitFailedError as error:
            raise ConcurrentCommitError.at(self.name, version) from error
        written.add(table.table_uri, [p.size for p in added])
        return version + 1

    def append(
        self, added: Sequence[lake.AddedFile], app_id: str, end: int, start: int, info: Mapping[str, str]
    ) -> int:
        """Adds files to the newest version, see `LakeTable`."""
        try:
            version = lake.commit(
                self.name, added, progress={app_id: end}, info=info,
                after={app_id: None if start < 0 else start},
            )  # fmt: skip
        except OvertakenError as error:
            raise ConcurrentCommitError(error.what, where=self.name, hint=AGAIN) from error
        assert version is not None  # noqa: S101 - the progress was `start`, which is lower than `end`
        return version


@dataclass(frozen=True)
class DeltaTables:
    """Delta tables below a root folder, see `LakeTables`. Their names are their paths."""

    root: str

    def name(self, target: str) -> str:
        """Returns the path of a target."""
        return f"{self.root}/{lake.file_name(target)}"

    def exists(self, name: str) -> bool:
        """Whether there is a table at this path."""
        return lake.exists(name)

    def open(self, name: str, version: int | None = None) -> DeltaLakeTable:
        """Opens a version of a table; None: the newest one."""
        return DeltaLakeTable(name, open_table(name) if version is None else at_version(name, version))

    @contextmanager
    def opened(self, name: str) -> Iterator[DeltaLakeTable]:
        """Yields the newest version of a table from a cache."""
        with lake.opened(name) as delta:
            yield DeltaLakeTable(name, delta)

    def open_until(self, name: str, app_id: str, number: int) -> DeltaLakeTable | None:
        """Opens the newest version whose progress is at most a change number, see `LakeTables`."""
        for version in range(open_table(name).version(), -1, -1):
            try:
                found = open_table(name, version=version)
            except DeltaError:  # its log is cleaned up
                return None
            if order_key(lake.reached(found, app_id)) <= number:
                return DeltaLakeTable(name, found)
        return None

    def versions(self, name: str) -> list[int]:
        """Returns the versions that can be opened, in order."""
        return log_retention.versions(name)

    def is_newer_than(self, name: str, version: int) -> bool:
        """Whether a table has a version after one, by one file access."""
        fs, folder = lake.filesystem(name)
        found = fs.get_file_info(f"{folder}/_delta_log/{version + 1:020}.json")
        return bool(found.type == pyarrow.fs.FileType.File)

    def applications(self, name: str, after: int | None = None) -> set[str]:
        """Returns the application ids that have recorded progress, see `LakeTables`."""
        return applications(name, after)

    def set_property(self, name: str, key: str, value: str) -> None:
        """Sets a property of a table."""
        guards.check()
        lake.retried(
            lambda: open_table(name).alter.set_table_properties({key: value}, raise_if_not_exists=False)
        )

    def scratch_folder(self, name: str) -> str:
        """Returns the table's folder."""
        return name
