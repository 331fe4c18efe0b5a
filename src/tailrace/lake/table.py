"""The contract of a table made of Parquet files, and of the tables of one format.

Merges, baselines, validation and queries use targets by this contract only. It has two implementations:
Delta tables (`targets/delta/tables.py`) and Iceberg tables (`lake/iceberg/tables.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds

from ..errors import ApplyError
from ..model.positions import ChangeNumber
from .data_files import DataFiles, FileDataset
from .parts import AddedFile


class LakeTable(Protocol):
    """One version of a table, open.

    Versions are numbers that grow with each commit. A commit has progress: a change number per application
    id, which later commits keep.
    """

    @property
    def name(self) -> str:
        """The name of the table, see `LakeTables`."""

    @property
    def version(self) -> int:
        """The open version."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, in plain Arrow types."""

    @property
    def files(self) -> DataFiles:
        """Reads and writes data files of the table."""

    @property
    def has_vectors(self) -> bool:
        """Whether rows of the table may be marked as deleted in deletion vectors."""

    @property
    def unread(self) -> Sequence[str]:
        """Features of the table that only Spark can read; empty if all rows can be read here."""

    @property
    def replaces_files(self) -> bool:
        """Whether files may be replaced here; otherwise only Spark may write the table."""

    @property
    def accepts_files(self) -> bool:
        """Whether complete files may be added here without reading rows."""

    @property
    def rule_columns(self) -> set[str]:
        """The columns that rules have added (`targets.rule_columns`)."""

    def history(self, most: int) -> list[dict[str, Any]]:
        """Returns `version` and metadata of at most this number of newest commits, the newest first."""

    def progress(self, app_id: str) -> ChangeNumber | None:
        """Returns the progress of an application in this version; None if it has none."""

    def data_files(self, column: str = "") -> list[dict[str, Any]]:
        """Returns the files: `path` (as in `DataFiles.open`), `size_bytes`, `num_records`, and, if known,
        `min.<column>` and `max.<column>`."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""

    def dataset(self) -> ds.Dataset | FileDataset:
        """Returns the rows, see `unread`: a `FileDataset` if Arrow cannot read all files with the table's
        columns."""

    def exchange(
        self,
        removed: Sequence[Mapping[str, Any]],
        added: Sequence[AddedFile],
        app_id: str,
        end: int,
        info: Mapping[str, str],
    ) -> int:
        """Replaces files in one commit on exactly this version, and returns the new version.

        Args:
            removed: files of `data_files`.
            added: new files.
            app_id: the application id of the progress.
            end: the progress after the commit.
            info: more metadata of the commit.

        Raises:
            ConcurrentCommitError: another process has committed since this version; nothing was written.
        """

    def append(
        self, added: Sequence[AddedFile], app_id: str, end: int, start: int, info: Mapping[str, str]
    ) -> int:
        """Adds files to the newest version, whatever other files it has, and returns the new version.

        `start` is the expected progress; -1 if the table has no progress.

        Raises:
            ConcurrentCommitError: the progress is not `start` any more; nothing was written.
        """


def commit_info(**values: object) -> dict[str, str]:
    """Returns metadata of a commit (`LakeTable.exchange`): the values as JSON under the name `tailrace`."""
    return {"tailrace": json.dumps(values)}


def open_at(tables: LakeTables, name: str, app_id: str, number: int) -> LakeTable:
    """Opens the newest version of a table whose progress is at most a change number.

    Raises:
        ApplyError: there is no such version any more.
    """
    if (found := tables.open_until(name, app_id, number)) is None:
        raise ApplyError(f"no version of the target before change {number + 1} is left", where=name)
    return found


def progress(tables: LakeTables, name: str, app_id: str) -> ChangeNumber | None:
    """Returns the progress of an application in the newest version of a table; None if it has none or there
    is no table."""
    if not tables.exists(name):
        return None
    with tables.opened(name) as now:
        return now.progress(app_id)


class LakeTables(Protocol):
    """The tables of one format, by name. Picklable."""

    def name(self, target: str) -> str:
        """Returns the name of the table of a target (`schema.table`)."""

    def exists(self, name: str) -> bool:
        """Whether there is a table of that name."""

    def open(self, name: str, version: int | None = None) -> LakeTable:
        """Opens a version of a table; None: the newest one.

        Raises:
            PositionError: the version was removed.
        """

    def opened(self, name: str) -> AbstractContextManager[LakeTable]:
        """Yields the newest version of a table, for exclusive use; may use a cache."""

    def open_until(self, name: str, app_id: str, number: int) -> LakeTable | None:
        """Opens the newest version whose progress is at most a change number; None if there is no such
        version any more."""

    def versions(self, name: str) -> list[int]:
        """Returns the versions that can be opened, in order."""

    def is_newer_than(self, name: str, version: int) -> bool:
        """Whether a table has a version after one."""

    def applications(self, name: str, after: int | None = None) -> set[str]:
        """Returns the application ids that have recorded progress; empty without a table.

        `after` selects those of later versions, as far as commits are kept; None: those of all.
        """

    def set_property(self, name: str, key: str, value: str) -> None:
        """Sets a property of a table, also if it has another value."""

    def scratch_folder(self, name: str) -> str:
        """Returns a folder on the table's storage, in which batches may have temporary files."""
