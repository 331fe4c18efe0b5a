"""The size of a table, and its version before a change."""

from __future__ import annotations

from ...errors import ApplyError
from ...lake.table import LakeTable, LakeTables
from ..plans import TableSize


def size_of(table: LakeTable) -> TableSize:
    """Returns the size of a table."""
    files = table.data_files()
    sizes = [file["size_bytes"] for file in files]
    rows = sum(file["num_records"] or 0 for file in files)
    return TableSize(sum(sizes), len(sizes), table.has_vectors, rows)


def open_at(tables: LakeTables, name: str, app_id: str, number: int) -> LakeTable:
    """Opens the newest version of a table whose progress is at most a change number.

    Raises:
        ApplyError: there is no such version any more.
    """
    if (found := tables.open_until(name, app_id, number)) is None:
        raise ApplyError(f"no version of the target before change {number + 1} is left", where=name)
    return found
