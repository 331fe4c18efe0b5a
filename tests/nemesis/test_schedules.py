"""Capture, store, apply, baselines and orders in every order that a seed makes up, killed and failed anywhere:
targets are always a state of their source, and in the end its present one."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from tailrace.lake import failpoints

from ..examples import FACTOR, rounds
from .applying import Setup
from .kept import KEPT
from .schedule import make, run, tried
from .world import ALL, FAIL, KILL, Step

pytestmark = pytest.mark.unit

KNOWN: tuple[str, ...] = ()
"""Kinds of finds that are being mended: passed over, and what was kept of them may fail."""
SECONDS = float(os.environ.get("TAILRACE_SCHEDULES", "2"))
"""How long schedules are made up; the second half of the seeds, among the slow tests, has four times as long."""

FIRST, MANY = int(os.environ.get("TAILRACE_SEED", "990000000")), 390


HERE = sorted(
    name
    for name in failpoints.POINTS
    if name.partition(".")[0] in ("log", "windows", "store", "commands", "baselines")
    or name in ("ddl.decision", "apply.layout", "apply.errors", "apply.record", "apply.recorded")
    if name
    not in ("store.quarantine", "store.retype", "store.behind")  # no bad values; nothing of LOG is lost
)
"""The fail points of what runs here as it is; `test_failpoints.py` says where the others are."""


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.nemesis.target.PASSED_OVER", set(KNOWN))


@pytest.mark.parametrize("name", list(KEPT))
def test_what_was_found_once_is_not_found_again(name: str) -> None:
    find, said, _ = run(*KEPT[name])
    assert find is None, "\n".join([str(find), *said])


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_schedules_find_nothing(half: int) -> None:
    """The same seeds each time; new ones are for `make chaos`."""
    end = time.monotonic() + SECONDS * (1 + 3 * half)
    for seed in range(FIRST + half * MANY, FIRST + (half + 1) * MANY):
        assert run(*make(seed))[0] is None, f"seed {seed}: {tried(seed)}"
        if time.monotonic() > end:
            return


def test_the_same_seed_is_the_same_schedule() -> None:
    first, again = run(*make(5)), run(*make(5))
    assert (first[1:], str(first[0])) == (again[1:], str(again[0]))


BACKLOG = [
    Step("look"), Step("land", 0, 1), Step("transaction", 3), Step("transaction", 11), Step("capture", 1),
    Step("store"), Step("capture", 1), Step("store"), Step("transaction", 28), Step("capture", 1), Step("store"),
    Step("transaction", 5), Step("capture", 1),
]  # fmt: skip
"""One table has its baseline, one waits to land, there are three slices to apply, and a commit to be stored."""
BETWEEN = [
    KILL, FAIL, Step("land", 0, 2), Step("look"), Step("capture", 9), Step("order", 0, ALL), Step("order", 2, ALL),
    Step("order", 3, ALL), Step("refuses", 0, 0), Step("store"), Step("shorten"),
]  # fmt: skip


@pytest.mark.parametrize(
    "others", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["10th", "others"]
)
@pytest.mark.parametrize("between", BETWEEN, ids=str)
def test_whatever_happens_wherever_in_three_slices(between: str | Step, others: bool) -> None:
    """At accesses to tables, which are others for each event: every tenth; the other half with that index, slow."""
    first = BETWEEN.index(between)
    for n in range(1 + (first + 5 * others) % 10, 45, max(1, round(10 / FACTOR))):
        setup = Setup(tables=2, keyless=True, group=bool(n % 2), together=2, max_changes=1)
        find, said, _ = run(setup, [*BACKLOG, Step("apply", at=(n, between))])
        assert find is None, "\n".join([f"access {n}", str(find), *said])


@pytest.mark.parametrize("point", HERE)
def test_killed_at_a_fail_point_it_goes_on_where_it_was(point: str) -> None:
    """In the first schedule that comes to it."""
    met, seed = 0, 0
    try:
        while met < rounds(1):
            assert seed < 100 * rounds(1), f"{met} of {seed} schedules come to {point}"
            failpoints.arm(point)
            setup, steps = make(seed)
            windows, errors = point.startswith("windows."), point == "apply.errors"
            setup = replace(setup, opened=setup.opened or windows, group=setup.group or errors)
            find, said, _ = run(setup, [replace(step, at=None) for step in steps])
            assert find is None, "\n".join([f"seed {seed}", str(find), *said])
            met, seed = met + (not failpoints.armed()), seed + 1
    finally:
        failpoints.arm(None)
