"""Repairs of a running task: `tailrace validate --repair` requests them, and the task's pipeline does them.

JSON files in `<home>/run/repairs`, each replaced atomically:

- `ID.json`: a request: tables, options and user; touched once a second while its command runs;
- `ID.steps.json`: the current step of the repair;
- `ID.end.json`: its result, or the error that ended it.

The command removes them when it has read the result, or ends early. The pipeline removes the files of a
command that has died, and ends its repair before the next step. Earlier steps stay, as after a crash.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from .. import errors
from ..config import logs
from ..config.task import Task
from ..errors import CancelledError, TailraceError, from_spark
from ..lake import json_files, news
from ..lake.objects import Objects, pace
from ..lake.storage import join
from ..model.steps import Steps
from ..state import live
from ..validate.compare import TableResult
from ..validate.repair import Repair, RepairResult
from ..validate.validation import ValidationReport

logger = logging.getLogger("tailrace.pipeline")
LOOK_S, BEAT_S = 0.2, 1.0
"""Seconds between two checks for a result, and between two heartbeats."""
LOST_S = 10.0
"""Seconds without a heartbeat after which a command counts as dead."""
_AGAIN = "run the command again: finished repairs stay, the other differences are found again"


class Outcome(NamedTuple):
    """The validation before a repair, the repairs, and the validation after it (None: no repair)."""

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


def request_repair(task: Task, options: Options, steps: Steps) -> Outcome:
    """Requests a repair from the running task, and waits for its result.

    Raises:
        TailraceError: the error of the repair; or the task ended before the repair.
    """
    folder, name = _folder(task), uuid.uuid4().hex
    steps.now("waiting for the running task, which does the repair")
    json_files.write(folder, name, options._asdict())
    news.tell(task.log_path)
    try:
        said, beat = None, 0.0
        while (end := json_files.read(folder, f"{name}.end")) is None:
            if time.monotonic() - beat > BEAT_S * pace(folder):
                _heartbeat(task, folder, f"{name}.json")
                beat = time.monotonic()
            now = json_files.read(folder, f"{name}.steps")
            if now is not None and now != said:
                said = now
                steps.draw(now["words"], now["done"], now["all"])
            time.sleep(LOOK_S * pace(folder))
    finally:
        _remove(folder, name)
    if "error" in end:
        raise errors.from_json(end["error"])
    after = end["after"]
    done = [RepairResult(**one) for one in end["done"]]
    return Outcome(_report(end["before"]), done, None if after is None else _report(after))


def _heartbeat(task: Task, folder: str, request: str) -> None:
    """Writes a heartbeat, and checks that the task still runs."""
    try:
        Objects(folder).touch(request)
    except FileNotFoundError:
        what = f"the task gave up the repair: this command was silent for {LOST_S:.0f} s, or no result could "
        what += "be written"
        raise TailraceError(what, where=task.name, hint=_AGAIN) from None
    if not live.locked(task.run_path, "pipeline"):
        raise TailraceError("the task has ended during the repair", where=task.name, hint=_AGAIN)


class RepairRequests:
    """Runs repairs in the pipeline's process, one at a time, in a separate thread.

    Args:
        work: runs a repair.
        over: set when the pipeline ends: the repair ends before its next step.
    """

    def __init__(self, task: Task, work: Callable[[Options, Steps], Outcome], over: threading.Event) -> None:
        self._task, self._folder, self._work, self._over = task, _folder(task), work, over
        self._thread: threading.Thread | None = None
        self._epoch: int | None = None

    def start_next(self) -> None:
        """Starts the next repair, unless one is running; removes the files of commands that have died."""
        before, self._epoch = self._epoch, news.epoch(self._task.log_path)
        if self._thread is not None and self._thread.is_alive():
            self._epoch = None
            return
        if self._epoch is not None and self._epoch == before:
            return  # in an object store, each look is a request
        names = [name.split(".") for name in Objects(self._folder).names() if not name.startswith(".")]
        ended = {name[0] for name in names if name[1] == "end"}
        for one in sorted({name[0] for name in names}):
            if not self._is_waiting(one):
                _remove(self._folder, one)
            elif one not in ended and (said := json_files.read(self._folder, one)):
                self._thread = threading.Thread(
                    target=self._repair, args=(one, said), name="repair", daemon=True
                )
                self._thread.start()
                return

    def join(self) -> None:
        """Waits until the running repair has ended."""
        if self._thread is not None:
            self._thread.join()

    def _is_waiting(self, name: str) -> bool:
        """Whether a request's command still runs."""
        there = Objects(self._folder)
        return there.exists(f"{name}.json") and there.age(f"{name}.json") < LOST_S * pace(self._folder)

    def _repair(self, name: str, said: Mapping[str, Any]) -> None:
        try:
            options = Options(**{n: said[n] for n in Options._fields} | {"tables": tuple(said["tables"])})
            outcome = self._work(options, Steps(partial(self._report_step, name)))
            result = _as_json(outcome)
            for one in () if options.dry_run else [one for one in outcome.done if one.changes]:
                words = (one.table, options.who, one.inserts, one.updates, one.deletes)
                logs.event("repair of %s by %s: %d inserts, %d updates, %d deletes", *words, table=one.table)
        except Exception as error:
            logger.debug("repair", exc_info=True)
            result = {"error": errors.to_json(from_spark(error, where=self._task.name))}
        try:
            if self._is_waiting(name):
                json_files.write(self._folder, f"{name}.end", result)
        except (OSError, TailraceError):  # otherwise the repair would be repeated for ever
            _remove(self._folder, name)

    def _report_step(self, name: str, words: str, done: int, every: int) -> None:
        """Reports a step; ends the repair if its command no longer waits for it."""
        if self._over.is_set() or not self._is_waiting(name):
            raise CancelledError("the task has ended during the repair", where=self._task.name, hint=_AGAIN)
        if words:
            json_files.write(self._folder, f"{name}.steps", {"words": words, "done": done, "all": every})


def _as_json(outcome: Outcome) -> dict[str, Any]:
    before, done, after = outcome
    reports = {"before": before.as_dict(), "after": None if after is None else after.as_dict()}
    return {**reports, "done": [asdict(one) for one in done]}


def _report(words: Mapping[str, Any]) -> ValidationReport:
    return ValidationReport(words["position"], [TableResult(**one) for one in words["tables"]])


def _folder(task: Task) -> str:
    return join(task.run_path, "repairs")


def _remove(folder: str, name: str) -> None:
    """Removes a request, then its other files."""
    for file in (f"{name}.json", f"{name}.steps.json", f"{name}.end.json"):
        Objects(folder).delete(file)
