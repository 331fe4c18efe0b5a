"""Spark for a command: announced with its purpose before it starts; then a bar over its tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ..execution import Job, described
from .output import err
from .screen_steps import bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..model.steps import Steps

_EVERY_S = 0.2


@contextmanager
def started(
    name: str,
    why: str,
    doing: str,
    *,
    quiet: bool = False,
    conf: Mapping[str, str] | None = None,
    reads: Sequence[str] = (),
) -> Iterator[SparkSession]:
    """A session until the block ends.

    Args:
        name: the application's name.
        why: the purpose of Spark.
        doing: a label for the work of the block.
        quiet: print nothing if there is no terminal.
        conf: settings of the session.
        reads: the files and folders that it reads; empty if it reads others, too.
    """
    with ExitStack() as stack, bar(err, quiet=quiet) as steps:
        steps.now(f"starting Spark: {why}")
        from ..runtime.local_settings import is_little
        from ..runtime.session import session

        little = bool(reads) and all(map(is_little, reads))
        spark = session(name, conf=conf, little=little)
        steps.now(doing)
        stack.enter_context(
            described(spark, Job(name.rsplit(maxsplit=1)[-1], f"{doing} {', '.join(reads)}".strip()))
        )
        if not err.is_terminal:
            yield spark
            return
        with _tasks(spark, steps):
            yield spark


@contextmanager
def _tasks(spark: SparkSession, steps: Steps) -> Iterator[None]:
    """Draws how many of the running stages' tasks are done."""
    over, tracker = threading.Event(), spark.sparkContext.statusTracker()

    def watch() -> None:
        while not over.wait(_EVERY_S):
            if stages := [s for i in tracker.getActiveStageIds() if (s := tracker.getStageInfo(i))]:
                steps.draw("", sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages))

    thread = threading.Thread(target=watch, daemon=True, name="bar")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
