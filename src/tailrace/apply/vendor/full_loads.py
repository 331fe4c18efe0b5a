"""Full loads among change tables that others made: what of them a target has, so that none is passed over.

A full load's rows have no time and the change number 0: a target that has any would skip those that come
later, from files that were not there yet when it was made, or from a new load. Nobody can tell which of them
it lacks, and which are older than the changes that it has; so they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

import pyarrow as pa

from ...errors import ApplyError
from .table_notes import TableNotes

LOADS = "_full_loads"
"""The Delta table that says what targets had: `TableNotes` with `rows` and `began`."""
_VALUES = pa.schema([("rows", pa.int64()), ("began", pa.timestamp("us", "UTC"))])


@dataclass(frozen=True)
class FullLoad:
    """The rows of a table's full load (0: there are none), and when the newest of its files was begun (None:
    nobody says)."""

    rows: int = 0
    began: datetime | None = None

    def goes_beyond(self, other: FullLoad) -> bool:
        """Whether it has rows that another one has not.

        >>> FullLoad(3).goes_beyond(FullLoad(2)), FullLoad(2).goes_beyond(FullLoad(3))
        (True, False)
        """
        newer = self.began is not None and (other.began is None or self.began > other.began)
        return self.rows > other.rows or bool(self.rows and other.rows and newer)


Found = Mapping[str, tuple[FullLoad, int]]
"""The full loads of tables, and the change numbers that their targets had reached (-1: none)."""


class FullLoads:
    """What the targets of a task had of full loads when they were made; a table below the folder `root`."""

    def __init__(self, root: str, task: str) -> None:
        self._notes = TableNotes(f"{root.rstrip('/')}/{LOADS}", task, _VALUES)

    def check(self, found: Found) -> None:
        """Compares the full loads of tables to what their targets had.

        Raises:
            ApplyError: a target lacks rows of a full load; nothing was written.
        """
        had = self._had()
        for table, (load, reached) in sorted(found.items()):
            if reached >= 0 and table in had and load.goes_beyond(had[table]):
                raise ApplyError(
                    f"rows of a full load came after its target was made: {load.rows:,} rows now, "
                    f"{had[table].rows:,} then",
                    where=table,
                    hint="remove the target and apply everything anew, or move the files of that load away",
                )

    def note(self, found: Found) -> None:
        """Writes down what targets get that are about to be made, or have of which nothing is written: before
        they are made, so that a call that ends early has said it."""
        had = self._had()
        new = {t: load for t, (load, reached) in found.items() if reached < 0 or t not in had}
        if any(had.get(t) != load for t, load in new.items()):
            self._notes.add((table, asdict(load)) for table, load in sorted(new.items()))

    def _had(self) -> dict[str, FullLoad]:
        return {table: FullLoad(**values) for table, values in self._notes.rows()}
