"""What the error that ends a task's first start says of what that start leaves at the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..config.task import Task
from ..errors import TailraceError
from ..state.baselines import read_baselines
from ..state.streams import MADE, newest

_CURE = "start the task again, or remove the slot: `tailrace drop TASK --yes`"


@contextmanager
def first_start(task: Task) -> Iterator[None]:
    """Adds a hint to an error that ends the block before the task has a baseline: the replication slot that
    was made in it stays, and with it the source's log."""
    before = newest(task).stream
    try:
        yield
    except TailraceError as error:
        slot = None
        with suppress(TailraceError, OSError):  # what ended it is what matters
            slot = _made(task) if not before else None
        said = f"the replication slot {slot} was made, and keeps the source's log from now on: {_CURE}"
        if slot is not None and said not in (error.hint or ""):
            error.hint = f"{error.hint}\n        {said}" if error.hint else said
        raise


def _made(task: Task) -> str | None:
    """The name of the slot of a task that has no baseline yet; None: it has no slot, or a baseline."""
    now = newest(task)
    began = now.state == MADE and not read_baselines(task.control_path("baselines"))
    return now.identity.get("slot") if began else None
