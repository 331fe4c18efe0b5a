"""Runs schedules for so many seconds: `python -m tests.nemesis [seconds] [first seed] [kind to pass over ...]`."""

from __future__ import annotations

import sys

from .tally import tally
from .target import PASSED_OVER

if __name__ == "__main__":
    PASSED_OVER.update(sys.argv[3:])
    numbers = [int(a) for a in sys.argv[1:3]] + [60, 0][len(sys.argv) - 1 :]
    found = tally(*numbers)
    print(found)
    sys.exit(1 if found.finds else 0)
