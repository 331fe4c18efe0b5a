"""Adds a hint about the replication slot to an error that ends a task's first start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..config.task import Task
from ..errors import TailraceError
from ..state.baselines import read_baselines
from ..state.streams import MADE, newest

_CURE = "start the task again, or remove the slot: `tailrace drop TASK --yes`"


@contextmanager
def slot_hint(task: Task) -> Iterator[None]:
    """Adds a hint to an error that ends the block before the task has a baseline.

    The replication slot that was created in it remains, and keeps the source's log.
    """
    before = newest(task).stream
    try:
        yield
    except TailraceError as error:
        slot = None
        with suppress(TailraceError, OSError):  # the first error matters
            slot = _made(task) if not before else None
        said = f"the replication slot {slot} was created, and keeps the source's log from now on: {_CURE}"
        if slot is not None and said not in (error.hint or ""):
            error.hint = f"{error.hint}\n        {said}" if error.hint else said
        raise


def _made(task: Task) -> str | None:
    """Returns the name of the slot of a task without a baseline; None if it has no slot, or has a
    baseline."""
    now = newest(task)
    began = now.state == MADE and not read_baselines(task.control_path("baselines"))
    return now.identity.get("slot") if began else None
