"""Progress of an application in a table: recorded in the table's own commits."""

from __future__ import annotations

from dataclasses import dataclass

from ..lake import delta as lake
from ..model.positions import ChangeNumber


@dataclass(frozen=True)
class Progress:
    """The change number up to which an application has written a table; None: it has written nothing yet.

    >>> Progress("tailrace/store", "home/tracking", ChangeNumber(7)).includes(ChangeNumber(7))
    True
    >>> Progress("tailrace/store", "home/tracking", None).includes(ChangeNumber(0))
    False
    """

    application: str
    table: str
    number: ChangeNumber | None

    @staticmethod
    def read(table: str, application: str) -> Progress:
        """The progress in the newest version of a table."""
        return Progress(application, table, lake.progress(table, application))

    def includes(self, number: ChangeNumber) -> bool:
        """Whether the table has everything up to a change number."""
        return self.number is not None and self.number >= number
