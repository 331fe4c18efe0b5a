"""Which changes of a subscription are logged at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChangeRange:
    """The changes of one subscription that are logged at once: change numbers in (after, upto]; `flagged` of
    them."""

    subscription: str
    after: int
    upto: int
    flagged: int
