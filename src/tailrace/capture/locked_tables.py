"""Captured tables that another session keeps locked: the others continue, and a warning names the session."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from ..sources.base import LogSource

logger = logging.getLogger("tailrace.capture")
EVERY_S = 5.0
"""Seconds between two checks of the server's locks."""
_SAID = "%s %s: until then it can be neither published nor read for a baseline; the other tables continue"


class LockedTables:
    """The locked tables as of the last check.

    Attributes:
        waits: tables that are to be published, with the session that locks them.
    """

    def __init__(self) -> None:
        self.waits: Mapping[str, str] = {}
        self._locked: Mapping[str, str] = {}
        self._due = 0.0

    def check(self, source: LogSource, tables: Sequence[str]) -> None:
        """Checks the locks if that is due, and warns of new ones."""
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
        """Which tables are locked, and by which session; None if none is."""
        every = {**self._locked, **self.waits}
        return "; ".join(f"{table} {why}" for table, why in sorted(every.items())) or None


def _warn(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    for table, why in now.items():
        if before.get(table) != why:
            logger.warning(_SAID, table, why, extra={"table": table})
