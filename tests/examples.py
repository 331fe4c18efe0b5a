"""How many examples a property test tries: few each time, many with `make test EXAMPLES=20`."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

FACTOR = float(os.environ.get("TAILRACE_EXAMPLES", "1"))


def rounds(many: int) -> int:
    """So many, times `EXAMPLES`."""
    return max(1, round(many * FACTOR))


def examples(many: int, **more: Any) -> settings:
    """Hypothesis' settings for so many, times `EXAMPLES`."""
    return settings(max_examples=rounds(many), deadline=None, **more)
