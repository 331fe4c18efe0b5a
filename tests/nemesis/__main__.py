"""Runs schedules for so many seconds: `python -m tests.nemesis [seconds] [first seed] [kind to pass over ...]`."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from .schedule import make, run, tried
from .target import PASSED_OVER


@dataclass
class Tally:
    """How many schedules there were, how often they came to a table, and what they found, by kind."""

    schedules: int = 0
    accesses: int = 0
    finds: Counter[str] = field(default_factory=Counter)


def tally(seconds: float, seed: int, most: int = 3) -> Tally:
    """Runs schedules; prints what is found, each kind at most so many times."""
    logging.disable(logging.CRITICAL)
    gc.freeze()  # modules: there is nothing in them to collect
    end, done = time.monotonic() + seconds, Tally()
    while time.monotonic() < end:
        find, _, accesses = run(*make(seed))
        done.schedules += 1
        done.accesses += accesses
        if find is not None:
            done.finds[find.kind] += 1
            if done.finds[find.kind] <= most:
                print(f"seed {seed}: {tried(seed)}\n", flush=True)
        seed += 1
    logging.disable(logging.NOTSET)
    return done


if __name__ == "__main__":
    PASSED_OVER.update(sys.argv[3:])
    numbers = [int(a) for a in sys.argv[1:3]] + [60, 0][len(sys.argv) - 1 :]
    found = tally(*numbers)
    print(f"{found.schedules} schedules, {found.accesses} accesses to tables; finds: {dict(found.finds)}")
    sys.exit(1 if found.finds else 0)
