"""A target that lacks its table's baseline: nothing is applied to it, and nothing is made in its place."""

from __future__ import annotations

from ..errors import BaselineNeededError

GONE = (
    "its target lacks the baseline: it is gone, was made anew or restored from before it, or the task looks "
    "for it elsewhere now"
)
GONE_HINT = "put the target back where it was, or take a new baseline: `tailrace resync TASK %s`"


def gone(table: str) -> BaselineNeededError:
    """The error for a table whose target lacks its baseline."""
    return BaselineNeededError(GONE, where=table, hint=GONE_HINT % table)
