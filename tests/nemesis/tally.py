"""Schedules of one seed after the other, for so many seconds, in a process for each core."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from .schedule import make, run, tried
from .target import PASSED_OVER

MOST = 3
"""Of each kind of find so many are printed."""
COLLECT_EVERY = 20
"""After so many schedules garbage is collected, and at no other time."""


@dataclass
class Tally:
    """How many schedules there were, how often they came to a table, and what they found, by kind."""

    schedules: int = 0
    accesses: int = 0
    finds: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu: float = 0.0

    def __str__(self) -> str:
        a_minute, of_cpu = (self.schedules / max(s, 1e-9) * 60 for s in (self.seconds, self.cpu))
        return (
            f"{self.schedules} schedules, {a_minute:.0f} a minute ({of_cpu:.0f} a minute of a core's time), "
            f"{self.accesses} accesses to tables; finds: {dict(self.finds)}"
        )


def tally(seconds: float, seed: int, processes: int | None = None) -> Tally:
    """Runs schedules, in a process for each core that this one may use; prints what is found."""
    if seconds <= 0:
        return Tally()
    many, began = processes or len(os.sched_getaffinity(0)), time.monotonic()
    with ProcessPoolExecutor(many, multiprocessing.get_context("spawn")) as pool:
        work = [pool.submit(_alone, seconds, seed + k, many, sorted(PASSED_OVER)) for k in range(many)]
        each = [one.result() for one in work]
    return Tally(
        sum(t.schedules for t in each),
        sum(t.accesses for t in each),
        sum((t.finds for t in each), Counter()),
        time.monotonic() - began,
        sum(t.cpu for t in each),
    )


def _alone(seconds: float, seed: int, step: int, passed_over: list[str]) -> Tally:
    PASSED_OVER.update(passed_over)
    logging.disable(logging.CRITICAL)
    gc.freeze()  # modules: there is nothing in them to collect
    gc.disable()
    end, done, began = time.monotonic() + seconds, Tally(), time.process_time()
    while time.monotonic() < end:
        find, _, accesses = run(*make(seed))
        done.schedules += 1
        done.accesses += accesses
        if find is not None:
            done.finds[find.kind] += 1
            if done.finds[find.kind] <= MOST:
                print(f"seed {seed}: {tried(seed)}\n", flush=True)
        seed += step
        if done.schedules % COLLECT_EVERY == 0:
            gc.collect()
    done.cpu = time.process_time() - began
    return done
