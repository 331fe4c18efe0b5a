"""Schedules: made from a seed, run, shrunk to what fits a screen, printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tailrace.state import commands, lifecycle

from .checks import Checks, at_the_end, followed
from .world import ACTIONS, ALL, FAIL, KILL, Find, Setup, Step, World, world

WEIGHTS = {
    "transaction": 30, "ddl": 2, "look": 5, "capture": 14, "land": 8, "store": 18, "apply": 6, "order": 4,
    "kill": 2, "refuses": 3, "shorten": 4, "lose": 1,
}  # fmt: skip
_BESIDE_CAPTURE = {"transaction": 4, "store": 4, "apply": 5, "order": 3, "lose": 1}
INNER = {
    "apply": {"land": 8, "look": 2, "capture": 1, "order": 3, "store": 6, "shorten": 2},
    "store": {"land": 3, "look": 2, "capture": 4, "order": 2, "apply": 6, "shorten": 2},
    "shorten": {"land": 4, "look": 4, "order": 2, "capture": 2, "apply": 3, "store": 3},
    "order": {"order": 5, "apply": 2, "land": 2, "look": 1},
    "look": _BESIDE_CAPTURE, "capture": _BESIDE_CAPTURE, "land": _BESIDE_CAPTURE,
}  # fmt: skip
ROUNDS = 12
"""So many times everything is driven on before it is said to stall."""


@dataclass(frozen=True)
class Failure:
    """A schedule that found something, and what was said on its way."""

    setup: Setup
    steps: tuple[Step, ...]
    kind: str
    what: str
    said: tuple[str, ...]

    def __str__(self) -> str:
        steps = [f"    {s!r}," for s in self.steps]
        return "\n".join(
            [f"FIND {self.kind}: {self.what}", repr(self.setup), *self.said, "as a test:", *steps]
        )


def make(seed: int, length: int = 40) -> tuple[Setup, tuple[Step, ...]]:
    """The schedule of a seed."""
    rng = Random(seed)
    setup = Setup(
        tables=rng.choice([1, 2, 2, 3]),
        keyless=rng.random() < 0.3,
        group=rng.random() < 0.6,
        together=rng.choice([1, 2, 4]),
        max_changes=rng.choice([1, 1, 2, 4, 1000]),
        opened=rng.random() < 0.3,
    )
    # Most of it happens when there are baselines.
    first = [Step("transaction", rng.randrange(1 << 16)), Step("look")] + [Step("land")] * (2 * setup.tables)
    return setup, (*(first if rng.random() < 0.8 else ()), *(_step(rng) for _ in range(length)))


def _step(rng: Random) -> Step:
    name = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    step = _numbers(rng, name)
    if name not in INNER or rng.random() > 0.35:
        return step
    what = rng.choices([KILL, FAIL, "step"], [3, 1, 4])[0]
    inner: str | Step = what
    if what == "step":
        inner_step = INNER[name]
        inner = _numbers(rng, rng.choices(list(inner_step), list(inner_step.values()))[0])
    return replace(step, at=(1 + int(rng.random() ** 2 * 40), inner))


def _numbers(rng: Random, name: str) -> Step:
    if name in ("transaction", "ddl"):
        return Step(name, rng.randrange(1 << 16))
    if name == "store":
        return Step(name, rng.choice([1, 1, 2, 5]), rng.choice([0, 0, 0, 1, 2]))
    if name == "order":
        return Step(name, rng.choice([0, 0, 1, 1, 2, 2, 3, 4, 5]), rng.choice([ALL, 0, 1, 2]))
    if name == "capture":
        return Step(name, rng.choice([1, 1, 2, 9]))
    if name == "refuses":
        return Step(name, rng.choice([0, 0, 1, 2]), rng.choice([0, 0, 1]))
    return Step(name, rng.choice([0, 1, 1, 2, 3]), rng.randrange(3))


def run(setup: Setup, steps: Sequence[Step]) -> tuple[Find | None, list[str], int]:
    """Takes the steps, then lets everything come to its end; gives what was found, what was said, and how many
    accesses to tables there were."""
    with world(setup) as at:
        try:
            after = Checks(at)
            for step in steps:
                at.take(step)
                after.after_a_step()
            settle(at, after)
        except Find as find:
            return find, at.said, at.counted
        return None, at.said, at.counted


def settle(at: World, after: Checks) -> None:
    """Everything is allowed again, and driven on until nothing is left to do."""
    at.said.append("-- the end: all tables are resumed, everything is driven on")
    at.refuse.clear()
    at.take(Step("look"))  # the second one picks up what came during the first
    at.take(Step("look"))
    followed(at)
    states = lifecycle.of_task("control/commands", {})
    for n, name in enumerate(sorted(at.source.now)):
        if name in states and states[name].removed:
            at.take(Step("order", ACTIONS.index(commands.ADD), n))
        at.take(Step("order", ACTIONS.index(commands.RESUME), n))
        if name in at.lost:
            at.take(Step("order", ACTIONS.index(commands.RESYNC), n))
    for name in sorted(at.source.now):  # DDL is seen with the next change
        at.source.transaction(sum(name.encode()))
    for _ in range(ROUNDS):
        before = (at.held, len(at.source.log))
        for step in (
            Step("look"),
            Step("capture", 99),
            *[Step("land")] * 4,
            Step("store", 99),
            Step("apply"),
        ):
            at.take(step)
            after.after_a_step()
        assert at.capturing is None or before
        if at.capturing is not None and not at.capturing.reading and not at.capturing.behind:
            try:
                at_the_end(at)
                return
            except Find:
                continue
    at_the_end(at)


def shrink(setup: Setup, steps: Sequence[Step], kind: str) -> tuple[Step, ...]:
    """The steps without those that the find does not need."""

    def fails(tried: Sequence[Step]) -> bool:
        find = run(setup, tried)[0]
        return find is not None and find.kind == kind

    found, size = list(steps), max(len(steps) // 2, 1)
    while size:
        k = 0
        while k < len(found):
            tried = found[:k] + found[k + size :]
            if fails(tried):
                found = tried
            else:
                k += size
        size //= 2
    for k, step in enumerate(found):
        for simpler in (replace(step, at=None), replace(step, b=0), replace(step, a=1), replace(step, a=0)):
            if simpler != step and fails(tried := [*found[:k], simpler, *found[k + 1 :]]):
                found = tried
    return tuple(found)


def tried(seed: int, length: int = 40) -> Failure | None:
    """Runs the schedule of a seed; gives it shrunk when it finds something."""
    setup, steps = make(seed, length)
    find = run(setup, steps)[0]
    if find is None:
        return None
    small = shrink(setup, steps, find.kind)
    again, said, _ = run(setup, small)
    shown = again or find
    return Failure(setup, small, shown.kind, shown.what, tuple(said))
