"""The mappings that targets of `tailrace apply` were filled through: one that is edited later does not fit
the rows that are there."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ...errors import ApplyError
from .table_notes import TableNotes

MAPPINGS = "_mappings"
"""The Delta table that says through which: `TableNotes` with `digest` (`TableMap`)."""
Found = Mapping[str, tuple[str, int]]
"""The digests of tables' mappings, and the change numbers that their targets had reached (-1: none)."""


class MappingNotes:
    """Through which mappings the targets of a task were filled; a table below the folder `root`."""

    def __init__(self, root: str, task: str) -> None:
        self._notes = TableNotes(f"{root.rstrip('/')}/{MAPPINGS}", task, pa.schema([("digest", pa.string())]))

    def check(self, found: Found) -> None:
        """Raises ApplyError for targets that were filled through other mappings; nothing was written."""
        had = self._had()
        there = {t: digest for t, (digest, reached) in found.items() if reached >= 0}
        if odd := sorted(t for t, digest in there.items() if had.get(t, digest) != digest):
            raise ApplyError(
                "the mapping has changed since the target was filled: the rows that are there are those of "
                "the former one",
                where=", ".join(odd),
                hint="remove the target and apply everything anew; or take the former mapping (`--tables`); "
                "or apply what came since as a folder of its own, with another `--name` (Delta targets)",
            )

    def note(self, found: Found) -> None:
        """Writes down the mappings of targets that are about to be made, or of which nothing is written:
        before they are filled, so that a call that ends early has said it."""
        had = self._had()
        new = {t: digest for t, (digest, reached) in found.items() if reached < 0 or t not in had}
        self._notes.add((t, {"digest": digest}) for t, digest in sorted(new.items()) if had.get(t) != digest)

    def _had(self) -> dict[str, str]:
        return {table: values["digest"] for table, values in self._notes.rows()}
