"""Progress of an application in a table: recorded in the table's own commits."""

from __future__ import annotations

from dataclasses import dataclass

from ..lake import delta as lake
from ..model.positions import ChangeNumber


@dataclass(frozen=True)
class Progress:
    """The change number up to which an application has written a table; None: it has written nothing yet.

    >>> Progress("tailrace/store", "home/tracking", ChangeNumber(7)).includes(7)
    True
    >>> Progress("tailrace/store", "home/tracking", None).includes(0)
    False
    """

    application: str
    table: str
    number: ChangeNumber | None

    @staticmethod
    def read(table: str, application: str) -> Progress:
        """The progress in the newest version of a table."""
        return Progress(application, table, number_or_none(lake.progress(table, application)))

    def includes(self, number: int) -> bool:
        """Whether the table has everything up to a change number."""
        return self.number is not None and self.number >= number


def number_or_none(stored: int) -> ChangeNumber | None:
    """The change number that a Delta log records for an application, which has -1 for nothing."""
    return None if stored < 0 else ChangeNumber(stored)
