"""Repairs of a running task: `tailrace validate --repair` asks for them, and the task's pipeline makes them.

JSON files in `<home>/run/repairs`, each replaced whole:

- `ID.json`: a request: tables, options, and who asks; touched once a second while its command lives;
- `ID.steps.json`: what the repair does now;
- `ID.end.json`: its result, or the error that ended it.

The command removes them when it has read the result, or is ended. What a command that is gone has left, the
pipeline removes; its repair ends before the next step. What was repaired by then stays, as after a crash.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .. import errors
from ..config import logs
from ..config.task import Task
from ..errors import CancelledError, TailraceError, from_spark
from ..lake import json_files
from ..model.steps import Steps
from ..state import live
from ..state.lease_files import age
from ..validate.compare import TableResult
from ..validate.repair import Repair, RepairResult
from ..validate.validation import ValidationReport

logger = logging.getLogger("tailrace.pipeline")
LOOK_S, BEAT_S = 0.2, 1.0
"""Seconds between two looks for a result, and between two signs of life."""
LOST_S = 10.0
"""Seconds without a sign of life after which a command counts as dead."""
_AGAIN = "run the command again: what was repaired stays, the rest is found again"


class Outcome(NamedTuple):
    """What was found before a repair, what was done, and what is found after it (None: nothing was done)."""

    before: ValidationReport
    done: list[RepairResult]
    after: ValidationReport | None


class Options(NamedTuple):
    """Options of a repair: tables (none: all), `--dry-run`, samples to show, seconds to wait until the
    snapshot is stored, and the user."""

    tables: tuple[str, ...]
    dry_run: bool
    samples: int
    timeout_s: float
    who: str


def repair_with(repair: Repair, validated: Callable[..., ValidationReport], options: Options) -> Outcome:
    """Validates tables, repairs those that differ, and validates them again."""
    validated = partial(validated, samples=options.samples, timeout_s=options.timeout_s)
    repair.finish(options.tables)
    before = validated(tables=options.tables, amend=repair)
    repair.add_not_compared(before.tables)
    changed = [one.table for one in repair.done if one.changes and not options.dry_run]
    return Outcome(before, repair.done, validated(tables=changed) if changed else None)


def ask(task: Task, options: Options, steps: Steps) -> Outcome:
    """Has the running task make a repair, and waits for it.

    Raises:
        TailraceError: the repair's; or the task has ended before it was made.
    """
    folder, name = _folder(task), uuid.uuid4().hex
    steps.now("the running task makes the repair")
    json_files.write(folder, name, options._asdict())
    try:
        said, beat = None, 0.0
        while (end := json_files.read(folder, f"{name}.end")) is None:
            if time.monotonic() - beat > BEAT_S:
                _beat(task, folder / f"{name}.json")
                beat = time.monotonic()
            now = json_files.read(folder, f"{name}.steps")
            if now is not None and now != said:
                said = now
                steps.draw(now["words"], now["done"], now["all"])
            time.sleep(LOOK_S)
    finally:
        _remove(folder, name)
    if "error" in end:
        raise errors.from_json(end["error"])
    after = end["after"]
    done = [RepairResult(**one) for one in end["done"]]
    return Outcome(_report(end["before"]), done, None if after is None else _report(after))


def _beat(task: Task, request: Path) -> None:
    """Gives a sign of life, and looks for that of the task."""
    try:
        os.utime(request)
    except FileNotFoundError:
        what = f"the task gave up the repair: this command was silent for {LOST_S:.0f} s, or no result could "
        what += "be written"
        raise TailraceError(what, where=task.name, hint=_AGAIN) from None
    if not live.locked(task.run_path, "pipeline"):
        raise TailraceError("the task has ended during the repair", where=task.name, hint=_AGAIN)


class RepairRequests:
    """The pipeline's side: one repair at a time, in a thread of its own.

    Args:
        work: makes a repair.
        over: set when the pipeline ends: the repair ends before its next step.
    """

    def __init__(self, task: Task, work: Callable[[Options, Steps], Outcome], over: threading.Event) -> None:
        self._task, self._folder, self._work, self._over = task, _folder(task), work, over
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Begins the next repair, unless one is being made; removes what commands that are gone have left."""
        if (self._thread is not None and self._thread.is_alive()) or not self._folder.is_dir():
            return
        names = [file.name.split(".") for file in self._folder.iterdir() if not file.name.startswith(".")]
        ended = {name[0] for name in names if name[1] == "end"}
        for one in sorted({name[0] for name in names}):
            if not self._asks(one):
                _remove(self._folder, one)
            elif one not in ended and (said := json_files.read(self._folder, one)):
                self._thread = threading.Thread(
                    target=self._make, args=(one, said), name="repair", daemon=True
                )
                self._thread.start()
                return

    def join(self) -> None:
        """Waits until the repair that is being made has ended."""
        if self._thread is not None:
            self._thread.join()

    def _asks(self, name: str) -> bool:
        """Whether a request's command lives."""
        file = self._folder / f"{name}.json"
        return file.exists() and age(self._folder, file) < LOST_S

    def _make(self, name: str, said: Mapping[str, Any]) -> None:
        try:
            options = Options(**{n: said[n] for n in Options._fields} | {"tables": tuple(said["tables"])})
            outcome = self._work(options, Steps(partial(self._tell, name)))
            result = _words(outcome)
            for one in () if options.dry_run else [one for one in outcome.done if one.changes]:
                words = (one.table, options.who, one.inserts, one.updates, one.deletes)
                logs.event("repair of %s by %s: %d inserts, %d updates, %d deletes", *words, table=one.table)
        except Exception as error:
            logger.debug("repair", exc_info=True)
            result = {"error": errors.to_json(from_spark(error, where=self._task.name))}
        try:
            if self._asks(name):
                json_files.write(self._folder, f"{name}.end", result)
        except (OSError, TailraceError):  # otherwise the repair would be made again and again
            _remove(self._folder, name)

    def _tell(self, name: str, words: str, done: int, every: int) -> None:
        """Reports a step; ends the repair if nobody waits for it any more."""
        if self._over.is_set() or not self._asks(name):
            raise CancelledError("the task has ended during the repair", where=self._task.name, hint=_AGAIN)
        if words:
            json_files.write(self._folder, f"{name}.steps", {"words": words, "done": done, "all": every})


def _words(outcome: Outcome) -> dict[str, Any]:
    before, done, after = outcome
    reports = {"before": before.as_dict(), "after": None if after is None else after.as_dict()}
    return {**reports, "done": [asdict(one) for one in done]}


def _report(words: Mapping[str, Any]) -> ValidationReport:
    return ValidationReport(words["position"], [TableResult(**one) for one in words["tables"]])


def _folder(task: Task) -> Path:
    return Path(task.run_path).absolute() / "repairs"


def _remove(folder: Path, name: str) -> None:
    """Removes a request, then what belongs to it."""
    for file in (f"{name}.json", f"{name}.steps.json", f"{name}.end.json"):
        (folder / file).unlink(missing_ok=True)
