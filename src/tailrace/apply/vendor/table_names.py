"""Names of change tables that vendors identify by an id, and that only some of their rows name.

They are recorded, so that later files go to the same targets.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ...errors import ApplyError
from .table_notes import TableNotes

NAMES = "_table_names"
"""Name of the Delta table that records the vendor's `id` of each table: `TableNotes`."""
_VALUES = pa.schema([("id", pa.string())])


class TableNames:
    """The recorded names of the tables of a task, in a Delta table below the folder `root`."""

    def __init__(self, root: str, task: str) -> None:
        self._notes = TableNotes(f"{root.rstrip('/')}/{NAMES}", task, _VALUES)
        ids: dict[str, str] = {}
        for table, values in self._notes.rows():
            ids.pop(table, None)  # the newest row is the last one
            ids[table] = values["id"]
        self._known = {i: table for table, i in ids.items()}

    def by_id(self, given: Mapping[str, str]) -> dict[str, str]:
        """The names by the vendor's id. `given` names take precedence, and no name has two ids."""
        taken = set(given.values())
        return {**{i: table for i, table in self._known.items() if table not in taken}, **given}

    def record(self, ids: Mapping[str, str]) -> None:
        """Records the vendor's ids of tables that have a target, or are about to get one."""
        new = {table: i for table, i in ids.items() if self._known.get(i) != table}
        self._notes.add((table, {"id": i}) for table, i in sorted(new.items()))
        self._known |= {i: table for table, i in new.items()}


def refuse_unnamed(unnamed: Mapping[str, str], option: str | None, where: str) -> None:
    """Raises ApplyError for tables without a name, as earlier changes may be in a target with a name.

    Args:
        unnamed: the reason for each table, by its id.
        option: the option that names tables.
        where: the path that was read.
    """
    if not unnamed:
        return
    example = "; ".join(f"{i}=TABLE" for i in sorted(unnamed))
    reasons = "; ".join(f"{table}: {why}" for table, why in sorted(unnamed.items()))
    raise ApplyError(
        f"it is not known which target these changes belong to: {reasons}",
        where=where,
        hint=f"name the table: `--option '{option}={example}'` (its id is a valid name); or apply them with "
        "files that name it",
    )
