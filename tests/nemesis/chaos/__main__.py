"""`python -m tests.nemesis.chaos --minutes 10 --seed 1`: rounds of chaos, then a table; code 1 on a find."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from itertools import count, cycle
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from tailrace.lake import failpoints

from .. import __main__ as schedules
from .driver import Round, keep, play
from .lives import CAPTURE

QUICK = 4


def main(minutes: float, seed: int, share: float, *, kinds: str, only: int | None) -> int:
    """Plays rounds, and schedules for a share of the time; `only` this one of the seed's rounds, when it is told."""
    began, end = time.monotonic(), time.monotonic() + minutes * 60
    points = shuffled(seed)
    quick = cycle([p for p in points if p.partition(".")[0] in CAPTURE])
    slow = cycle([p for p in points if p.partition(".")[0] not in CAPTURE])
    done = schedules.tally(minutes * 60 * share, seed * 1_000_000)
    rounds: list[Round] = []
    for n in count():
        if rounds and (only is not None or time.monotonic() > end):
            break
        # Lives of capture alone are quick: every other round has no others, and no JVM.
        whole = kinds == "whole" or (kinds == "mixed" and n % 2 == 1)
        chosen = [next(quick) for _ in range(QUICK)]
        if whole:
            chosen = [chosen[0], next(slow), ""]
        else:
            chosen.append("")
        if only is None or only == n:
            # Task files go by the number: in `whole` rounds on end it does not skip every other one.
            number = seed * 1000 + (2 * n + 1 if kinds == "whole" else n)
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


def shuffled(seed: int) -> list[str]:
    """All fail points, those of one part of tailrace beside each other: a round's task can reach them all."""
    random = Random(seed)
    parts: dict[str, list[str]] = {}
    for point in sorted(failpoints.POINTS):
        parts.setdefault(point.partition(".")[0], []).append(point)
    names = sorted(parts)
    random.shuffle(names)
    for each in parts.values():
        random.shuffle(each)
    return [point for name in names for point in parts[name]]


def _tables(rounds: list[Round], done: schedules.Tally, seconds: float) -> None:
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
    Console().print(shown)
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
