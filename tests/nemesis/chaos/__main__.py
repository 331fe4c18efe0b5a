"""`python -m tests.nemesis.chaos --minutes 10 --seed 1`: rounds of chaos, then a table; code 1 on a find."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from tailrace.lake import failpoints

from ..tally import Tally, tally
from .driver import Round, keep, play
from .lives import CAPTURE
from .tasks import Plan, plan

QUICK = 4
WIDTH = 120
"""Columns of the table at the end, also where there is no terminal."""


def main(minutes: float, seed: int, share: float, *, kinds: str, only: int | None) -> int:
    """Plays rounds, and schedules for a share of the time; `only` this one of the seed's rounds, when it is told."""
    began, end = time.monotonic(), time.monotonic() + minutes * 60
    points = Points(seed)
    done = tally(minutes * 60 * share, seed * 1_000_000)
    rounds: list[Round] = []
    for n in count():
        if rounds and (only is not None or time.monotonic() > end):
            break
        # Lives of capture alone are quick: every other round has no others, and no JVM.
        whole = kinds == "whole" or (kinds == "mixed" and n % 2 == 1)
        # Plans go by the number: in `whole` rounds on end it does not skip every other one.
        number = seed * 1000 + (2 * n + 1 if kinds == "whole" else n)
        one = plan(number, whole=whole)
        # Of capture alone all lives but the last have one; of a whole task the first two and the last.
        chosen = [points.next(one, alone=k == 0 or not whole) for k in range(3 if whole else QUICK)]
        if not whole:
            chosen.append("")
        if only is None or only == n:
            rounds.append(
                _played(number, chosen, f"--minutes 0 --seed {seed} --kinds {kinds} --only {n}", whole)
            )
    _tables(rounds, done, time.monotonic() - began)
    return 1 if done.finds or any(r.finds for r in rounds) else 0


def _played(number: int, points: list[str], again: str, whole: bool) -> Round:
    at = play(number, points, Path(tempfile.mkdtemp(prefix=f"tailrace-chaos-{number}-")), whole=whole)
    folder = keep(at)
    judged = ", ".join(f"{n} {what}" for what, n in sorted(at.judged.items()))
    print(
        f"round {number}{' (whole)' if whole else ''}: {at.seconds:.0f} s, {at.kills} kills, {at.changes} changes, "
        f"{len(at.finds)} finds; judged {judged}",
        flush=True,
    )
    for find in at.finds:
        print(f"  FIND {find}", flush=True)
    if at.finds:
        print(f"  kept: {folder} (chaos.yaml, events.txt, life-*.log); again: {again}", flush=True)
    return at


class Points:
    """Fail points in an order of the seed's own; each one is given out before one comes again, but for those that
    a round's task does not come to."""

    def __init__(self, seed: int) -> None:
        self._waiting = sorted(failpoints.POINTS)
        Random(seed).shuffle(self._waiting)

    def next(self, one: Plan, *, alone: bool) -> str:
        """The next one that such a task comes to; `alone`: that capture alone does."""
        found = next(p for p in self._waiting if (p.partition(".")[0] in CAPTURE) == alone and one.reaches(p))
        self._waiting.remove(found)
        self._waiting.append(found)
        return found


def _tables(rounds: list[Round], done: Tally, seconds: float) -> None:
    shown = Table(title=f"{seconds / 60:.1f} minutes of chaos")
    for name in (
        "rounds",
        "kills",
        "fail points",
        "schedules",
        "accesses",
        "transactions",
        "layouts",
        "changes",
        "finds",
    ):
        shown.add_column(name, justify="right")
    finds = sum(len(r.finds) for r in rounds) + sum(done.finds.values())
    numbers = (
        len(rounds), sum(r.kills for r in rounds), sum(len(r.points) for r in rounds), done.schedules, done.accesses,
        sum(r.transactions for r in rounds), sum(r.layouts for r in rounds), sum(r.changes for r in rounds), finds,
    )  # fmt: skip
    shown.add_row(*map(str, numbers))
    Console(width=max(Console().width, WIDTH)).print(shown)
    for what, each in (("faults", [r.done for r in rounds]), ("judged", [r.judged for r in rounds])):
        all_ = sum(each, Counter())
        print(f"{what}: " + ", ".join(f"{name} {n}" for name, n in all_.most_common()), flush=True)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(prog="python -m tests.nemesis.chaos")
    asked.add_argument("--minutes", type=float, default=10)
    asked.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    asked.add_argument("--schedules", type=float, default=0.2, help="share of the time for schedules")
    asked.add_argument(
        "--kinds",
        choices=["mixed", "whole", "quick"],
        default="mixed",
        help="quick: capture alone, without a JVM",
    )
    asked.add_argument("--only", type=int, help="this round of the seed alone")
    given = asked.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers and tasks end with it
    sys.exit(main(given.minutes, given.seed, given.schedules, kinds=given.kinds, only=given.only))
