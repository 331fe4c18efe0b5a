"""Names of change tables that vendors know by an id, and whose name only some of their rows tell: later files
go where earlier ones went, whatever rows they have.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ...errors import ApplyError
from .table_notes import TableNotes

NAMES = "_table_names"
"""The Delta table that says which names tables had: `TableNotes` with `id`, the vendor's."""
_VALUES = pa.schema([("id", pa.string())])


class TableNames:
    """The names that the tables of a task had when they were applied; a table below the folder `root`."""

    def __init__(self, root: str, task: str) -> None:
        self._notes = TableNotes(f"{root.rstrip('/')}/{NAMES}", task, _VALUES)
        ids: dict[str, str] = {}
        for table, values in self._notes.rows():
            ids.pop(table, None)  # the newest comes last
            ids[table] = values["id"]
        self._known = {i: table for table, i in ids.items()}

    def of(self, given: Mapping[str, str]) -> dict[str, str]:
        """The names by the vendor's id; `given` ones come first, and a name is that of one table."""
        taken = set(given.values())
        return {**{i: table for i, table in self._known.items() if table not in taken}, **given}

    def note(self, ids: Mapping[str, str]) -> None:
        """Writes down the vendor's ids of tables that have a target, or are about to get one."""
        new = {table: i for table, i in ids.items() if self._known.get(i) != table}
        self._notes.add((table, {"id": i}) for table, i in sorted(new.items()))
        self._known |= {i: table for table, i in new.items()}


def refuse_unnamed(unnamed: Mapping[str, str], option: str | None, where: str) -> None:
    """Raises ApplyError for tables whose earlier changes may have gone to a target of another name: they are
    called by their id, because of what `unnamed` says."""
    if not unnamed:
        return
    example = "; ".join(f"{i}=TABLE" for i in sorted(unnamed))
    said = "; ".join(f"{table}: {why}" for table, why in sorted(unnamed.items()))
    raise ApplyError(
        f"which target these changes belong to is not known: {said}",
        where=where,
        hint=f"name it: `--option '{option}={example}'` (its id is a name, too); or apply them with "
        "earlier or later files that do",
    )
