"""Captured tables that somebody keeps locked: the others go on, and it is said who keeps which."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from ..sources.base import LogSource

logger = logging.getLogger("tailrace.capture")
EVERY_S = 5.0
"""Seconds between two looks at the server's locks."""
_SAID = "%s %s: until then it can be neither published nor read for a baseline, and the other tables go on"


class LockedTables:
    """The tables that were locked when they were looked at last.

    Attributes:
        waits: those that are to be published, and by whom they are locked.
    """

    def __init__(self) -> None:
        self.waits: Mapping[str, str] = {}
        self._locked: Mapping[str, str] = {}
        self._due = 0.0

    def look(self, source: LogSource, tables: Sequence[str]) -> None:
        """Looks for locks now and then, and warns of new ones."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_S
            before, self._locked = self._locked, source.locked(tables)
            _warn(before, self._locked)

    def unpublished(self, tables: Mapping[str, str]) -> None:
        """Warns of tables that could not be published."""
        before, self.waits = self.waits, dict(tables)
        _warn(before, self.waits)

    @property
    def message(self) -> str | None:
        """What is locked, and by whom."""
        every = {**self._locked, **self.waits}
        return "; ".join(f"{table} {why}" for table, why in sorted(every.items())) or None


def _warn(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    for table, why in now.items():
        if before.get(table) != why:
            logger.warning(_SAID, table, why, extra={"table": table})
