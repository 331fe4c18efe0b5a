"""A whole task in one process: capture, store and apply as they are, over memory, one step at a time.

Whatever a step does, at any look it takes at a table or write to it another process may take a step of its
own, or it is killed, or fails: `Step.at`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tailrace.apply.rounds import Rounds
from tailrace.config.groups import GroupSettings
from tailrace.config.policies import EVERYTHING
from tailrace.errors import TailraceError
from tailrace.lake import failpoints
from tailrace.state import commands

from .applying import Applying, Setup
from .capturing import Capturing
from .ram import RamLake
from .source import Source
from .target import Find, Held, NotFitError, found

ACTIONS = (
    commands.PAUSE,
    commands.RESUME,
    commands.RESYNC,
    commands.REMOVE,
    commands.ADD,
    commands.RESYNC_EXACT,
)
KILL, FAIL = "kill", "fail"
ALL = -1
"""In the place of a table's number: an order for all of them."""


class Killed(BaseException):
    """The process is gone: nothing that it would still do happens."""


@dataclass(frozen=True)
class Step:
    """A step, its numbers, and what happens in it at its `at[0]`-th access to a table."""

    name: str
    a: int = 0
    b: int = 0
    at: tuple[int, str | Step] | None = None

    def __str__(self) -> str:
        inner = f"  -- at access {self.at[0]}: {self.at[1]}" if self.at else ""
        return f"{self.name}({self.a}, {self.b}){inner}"


@dataclass
class _Armed:
    left: int
    action: str | Step
    step: str


class World:
    """The task; `said` tells what each step did."""

    def __init__(self, setup: Setup, home: str) -> None:
        self.setup = setup
        self.ram = RamLake(self._access)
        self.source = Source(setup.tables, setup.keyless)
        self.held: dict[str, Held] = {}
        self.capturing: Capturing | None = None
        self.pipeline: Applying | None = None
        self.said: list[str] = []
        self._dead: set[str] = set()
        self._running: list[str] = []
        self._armed: list[_Armed] = []
        self.refuse: dict[str, int] = {}
        self.lost: set[str] = set()
        self.counted = 0
        groups = {"g": GroupSettings(tables=["s.t0"], retries=3)} if setup.group else {}
        self.task: Any = SimpleNamespace(
            name="t",
            home=home,
            log_path="log",
            relations_path="relations",
            tracking_path="tracking",
            commands_path="control/commands",
            run_path=str(Path(home) / "run"),
            groups=groups,
            control_path=lambda name: f"control/{name}",
            changes_path=lambda table: f"changes/{table}",
            policy=lambda table: EVERYTHING,
            table=lambda table: SimpleNamespace(identity=None),
            group=lambda table: "g" if setup.group and table == "s.t0" else None,
            source=SimpleNamespace(tables=["s.*"], exclude=[]),
            baseline=SimpleNamespace(enabled=True, window="auto"),
            maintenance=SimpleNamespace(keep_ledger=0.0, small_files=1),
        )

    # steps

    def take(self, step: Step) -> None:
        """Takes a step; a process that is not there is started first."""
        work = getattr(self, f"_{step.name}")
        self._running.append(step.name)
        if step.at is not None:
            self._armed.append(_Armed(step.at[0], step.at[1], step.name))
        place = len(self.said)
        try:
            done = work(step.a, step.b)
        except Killed:
            done = "KILLED"
        except TailraceError as error:
            self._gone(process_of(step.name))
            done = f"ENDS: {error.what}"
            if self.setup.group and "refuses a batch of s.t0" in error.what:
                found(
                    "gate", f"the task ends by an error of s.t0, whose group has it tried again: {error.what}"
                )
        finally:
            self._running.pop()
            if not self._at_work(process_of(step.name)):
                self._dead.discard(process_of(step.name))
            if step.at is not None:
                self._armed.pop()
        self.said.insert(place, f"{'    ' * len(self._running)}{step.name}: {done}")

    def _transaction(self, seed: int, _: int) -> str:
        return self.source.transaction(seed)

    def _ddl(self, seed: int, _: int) -> str:
        return self.source.ddl(seed)

    def _order(self, which: int, table: int) -> str:
        action, names = ACTIONS[which % len(ACTIONS)], sorted(self.source.now)
        chosen = names if table == ALL else [names[table % len(names)]]
        number = commands.give("control/commands", action, chosen, why="nemesis", who="nemesis")
        return f"{action} {', '.join(chosen)} is {number}"

    def _refuses(self, table: int, many: int) -> str:
        name = sorted(self.source.now)[table % self.setup.tables]
        self.refuse[name] = many + 1
        return f"the next {many + 1} batches of {name}"

    def _lose(self, which: int, _: int) -> str:
        """Somebody removes a target."""
        if not self.held:
            return "nothing"
        name = sorted(self.held)[which % len(self.held)]
        del self.held[name]
        self.lost.add(name)
        return f"the target of {name}"

    def refused(self, table: str) -> bool:
        """Whether the target refuses this batch."""
        self.refuse[table] = self.refuse.get(table, 0) - 1
        return self.refuse[table] >= 0

    def _look(self, window: int, _: int) -> str:
        return f"{self._capture_process().look(window)} baselines begin"

    def _capture(self, many: int, _: int) -> str:
        return f"{self._capture_process().capture(max(many, 1))} records"

    def _land(self, which: int, more: int) -> str:
        process = self._capture_process()
        names = [
            f"{one.table} no. {one.attempt.number}{' open' * one.open}, order {one.order}"
            for one in process.reading
        ]
        done = [process.land(which) for _ in range(1 + more)]
        return f"{sum(done)} of {names}"

    def _store(self, many: int, cursor: int) -> str:
        return str(self._pipeline_process().store(max(many, 1), cursor))

    def _apply(self, _: int, __: int) -> str:
        return str(self._pipeline_process().apply())

    def _shorten(self, _: int, __: int) -> str:
        return str(self._pipeline_process().shorten())

    def _kill(self, which: int, _: int) -> str:
        name = ("capture", "pipeline")[which % 2]
        if self._at_work(name):
            return "nobody"
        self._gone(name)
        return name

    def _capture_process(self) -> Capturing:
        if self.capturing is None:
            self.capturing = Capturing(
                self.task, self.source, self.ram, self.held, self._heard, 7 * self.setup.opened
            )
        return self.capturing

    def _pipeline_process(self) -> Applying:
        if self.pipeline is None:
            self.pipeline = Applying(self.task, self.setup, self.ram, self.held, self.refused)
        return self.pipeline

    def _heard(self, number: int) -> bool:
        return self.pipeline is None or self.pipeline.scheduler.command >= number

    def _at_work(self, process: str) -> bool:
        return process in map(process_of, self._running)

    def _gone(self, process: str) -> None:
        if process == "capture":
            self.capturing = None
        elif process == "pipeline":
            self.pipeline = None

    # accesses

    def _access(self, what: str, path: str) -> None:
        if not self._running:
            return
        process = process_of(self._running[-1])
        if process in self._dead:
            raise Killed
        self.counted += 1
        if not self._armed or self._armed[-1].step != self._running[-1]:
            return
        armed = self._armed[-1]
        armed.left -= 1
        if armed.left == 0:
            self._act(armed.action, what, path, process)

    def _act(self, action: str | Step, what: str, path: str, process: str) -> None:
        margin = "    " * len(self._running)
        if action == KILL:
            self.said.append(
                f"{margin}KILL, about to {what} {path}"
                if what != "wrote"
                else f"{margin}KILL, {path} is written"
            )
            self._dead.add(process)
            self._gone(process)
            raise Killed
        if action == FAIL:
            self.said.append(f"{margin}about to {what} {path}: an error")
            raise NotFitError("injected")
        assert isinstance(action, Step)
        if process_of(action.name) == process and not self._inside(action.name, process):
            return
        self.said.append(f"{margin}about to {what} {path}:")
        self._armed.append(_Armed(-1, KILL, "none"))
        self.take(action)
        self._armed.pop()

    def _inside(self, step: str, process: str) -> bool:
        """Whether a step may be taken while its own process takes another one: by another thread."""
        if process != "pipeline":
            return process == "nobody"
        return self.pipeline is not None and step not in self._running

    def _met(self, one: Any) -> None:
        """A fail point that is armed: the process that came to it is killed."""
        one.left -= 1
        if one.left == 0 and self._running:
            self._act(KILL, "pass", f"the fail point {one.name}", process_of(self._running[-1]))

    def _together(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Fewer tables than the setup says have jobs of their own."""
        least = self.setup.together
        return lambda mine, last, counts: run(mine, last, counts) if len(counts) >= least else ({}, {})

    @contextmanager
    def in_place(self) -> Iterator[World]:
        """The code's access to tables goes to memory while the context lasts."""
        with (
            self.ram.in_place(),
            mock.patch.object(Rounds, "_apply_together", self._together(Rounds._apply_together)),
            mock.patch.object(failpoints, "_met", self._met),
        ):
            yield self


PROCESS = {
    "look": "capture",
    "capture": "capture",
    "land": "capture",
    "store": "pipeline",
    "apply": "pipeline",
    "shorten": "pipeline",
}
"""Which process takes a step; those of the pipeline have a thread each."""


def process_of(step: str) -> str:
    """The process that takes a step."""
    return PROCESS.get(step, "nobody")


@contextmanager
def world(setup: Setup) -> Iterator[World]:
    """A new one."""
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-nemesis-") as home,
        World(setup, home).in_place() as made,
    ):
        yield made


Check = Callable[[World], None]
__all__ = ["FAIL", "KILL", "Find", "Setup", "Step", "World", "world"]
