"""Tables added while capture runs: a table that cannot be captured yet waits, and does not delay
the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ..sources.base import Finding

logger = logging.getLogger("tailrace.capture")

AGAIN_S = 10.0
"""Seconds between two attempts to capture the waiting tables."""
SHARE = 0.05
"""Maximum share of the capture loop's time that these attempts may take."""


class AddedTables:
    """Wanted tables that cannot be captured yet, with the reason."""

    def __init__(self) -> None:
        self._waiting: dict[str, Finding] = {}
        self._again = 0.0

    def ready(
        self, wanted: Sequence[str], known: Sequence[str], findings: Callable[[Sequence[str]], list[Finding]]
    ) -> list[str]:
        """Returns those wanted tables that can be captured now.

        Args:
            wanted: the tables that should be captured.
            known: tables that are captured already, so they are not checked.
            findings: checks the given tables.
        """
        new = [t for t in wanted if t not in known]
        self._waiting = {t: why for t, why in self._waiting.items() if t in new}
        if any(t not in self._waiting for t in new) or time.monotonic() >= self._again:
            began = time.monotonic()
            self._look(new, findings)
            now = time.monotonic()
            self._again = now + max(AGAIN_S, (now - began) / SHARE)
        return self.without(wanted)

    def _look(self, new: Sequence[str], findings: Callable[[Sequence[str]], list[Finding]]) -> None:
        before, self._waiting = self._waiting, unfit(new, findings)
        for table, why in self._waiting.items():
            if table not in before:
                logger.warning("%s is not captured yet: %s; fix: %s", table, why.what, why.cure)

    def without(self, wanted: Sequence[str]) -> list[str]:
        """Returns the wanted tables except those that wait."""
        return [t for t in wanted if t not in self._waiting]

    @property
    def message(self) -> str | None:
        """The message about the waiting tables; None if no table waits."""
        if not self._waiting:
            return None
        table, why = next(iter(self._waiting.items()))
        more = f", and {len(self._waiting) - 1} more" if len(self._waiting) > 1 else ""
        return f"{table}{more} cannot be captured yet: {why.what}; fix: {why.cure}"


def unfit(tables: Sequence[str], findings: Callable[[Sequence[str]], list[Finding]]) -> dict[str, Finding]:
    """Returns the tables that cannot be captured now, with the first reason.

    All tables are checked together first. A reason that concerns the whole task (the slot is missing, and is
    about to be created) excludes no table.
    """

    def errors(these: Sequence[str]) -> list[Finding]:
        return [one for one in findings(these) if one.level == "error"]

    if not tables or not errors(tables):
        return {}
    shared = {one.what for one in errors([])}
    own = {table: [one for one in errors([table]) if one.what not in shared] for table in tables}
    return {table: found[0] for table, found in own.items() if found}
