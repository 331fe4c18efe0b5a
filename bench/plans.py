"""The rule that picks a plan: one task or several, at three sizes of target. On one machine a batch is one task's
while it writes no more than `target.rewrite_limit` bytes of files anew; the other plan is the peer.

Run by `rows` as a process of its own: `plans.py FOLDER [--quick]` prints JSON. Batches are those of `apply`, and so
is the way they are measured.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import apply
from apply import Case, Side
from measure import Row, say
from tailrace.config.settings import TargetSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEER = "the plan that is not picked: several tasks (rewrite)"


def cases(quick: bool) -> list[Case]:
    """The comparisons: three sizes of target, and few changes in the largest."""
    sizes = [(1_000, 100_000), (200_000, 2_000_000), (200_000, 20_000_000), (2_000, 20_000_000)]
    return [
        Case(f"{n:,} changes into {size:,} rows", n, size, 3 if size < 10_000_000 else 2, 0.9)
        for n, size in [(max(20, n // 100), size // 100) if quick else (n, size) for n, size in sizes]
    ]


def rows(folder: Path, *, quick: bool) -> list[Row]:
    """The bench `plans`."""
    say("plans: the one that is picked against the other")
    return apply.measured("plans.py", PEER, folder / "plans", quick=quick)


def one_and_several(spark: SparkSession, case: Case, folder: Path) -> tuple[Side, Side]:
    """The sides of this bench: the plan that is picked, and the other."""
    default = TargetSettings().one_task
    return apply.picked(str(folder / "one"), default), apply.picked(str(folder / "several"), 0)


if __name__ == "__main__":
    apply.main(cases("--quick" in sys.argv), one_and_several, sys.argv[1])
