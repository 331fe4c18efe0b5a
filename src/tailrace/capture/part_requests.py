"""Requests that Spark's tasks of another process read parts of baselines.

Capture has no JVM. It writes a request, and the process with the task's Spark session (`tailrace run`,
`tailrace pipeline`) reads the parts in its tasks. The files are JSON in `<home>/run/parts`, each replaced
atomically:

- `reader.json`: the `state` of the session; touched once a second while its process is alive;
- `ID.json`: a request: tables, parts, snapshot, landing, and the lease of the capture process. It has no
  secrets: the reader opens source and target from the task file;
- `ID.N.json`: the result of part N, written by the task that has read it;
- `ID.end.json`: the end of the job. Parts without a result could not be read, and capture reads them.

Capture removes its request at the end; parts that were not begun by then are not read. The reader removes the
files of a capture process that has ended.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import errors
from ..config.task import Task
from ..errors import CancelledError, ConnectionLostError, TailraceError
from ..execution import BackgroundSession, background, map_tasks
from ..lake import delta as lake
from ..lake import json_files, news
from ..lake.objects import Objects, pace
from ..lake.storage import join
from ..model.change import Relation
from ..sources import open_source
from ..sources.base import BaselinePart, Snapshot
from ..state import live
from ..state.lease_files import newest
from .part_readers import Loaded, PartLoad, PartReader, RequestedPart, part_weights, reading_job, try_read
from .snapshot_sink import Landing, landing_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("tailrace.capture")
READER = "reader"
LOOK_S = 0.1
"""Seconds between two checks for requests, and for results."""
BEAT_S = 1.0
LOST_S = 10.0
"""Seconds after which a reader that does not touch its file counts as dead."""


def _folder(task: Task) -> str:
    return join(task.run_path, "parts")


class Requests:
    """The capture process's side (a `part_readers.SparkReader`).

    Args:
        task: the task.
        workers: the maximum number of parts that are read at once.
        stopped: returns whether the baseline is given up.
    """

    def __init__(self, task: Task, workers: int, stopped: Callable[[], bool]) -> None:
        self._folder, self._workers, self._stopped = _folder(task), workers, stopped
        self._pace = pace(self._folder)
        self.limit, self._log = task.spark.driver_limit, task.log_path
        mine = newest(task.run_path, "capture")
        self._holder = "" if mine is None else mine.id

    @property
    def state(self) -> str:
        """The session's state; empty if there is no session, or its process has ended."""
        said = json_files.read(self._folder, READER)
        if said is None or Objects(self._folder).age(f"{READER}.json") > LOST_S * self._pace:
            return ""
        return str(said["state"])

    def read(
        self, asked: Sequence[RequestedPart], done: Callable[[int, Loaded | TailraceError], None]
    ) -> None:
        """Reads parts.

        Raises:
            ConnectionLostError: the baseline was given up meanwhile.
        """
        request = uuid.uuid4().hex
        json_files.write(self._folder, request, self._words(asked))
        news.tell(self._log)
        try:
            self._follow(request, len(asked), done)
        finally:  # the request is removed first, so that no further part begins
            _remove(self._folder, request)

    def _follow(self, request: str, many: int, done: Callable[[int, Loaded | TailraceError], None]) -> None:
        left, looked = set(range(many)), time.monotonic()
        while left:
            end = json_files.read(self._folder, f"{request}.end")  # before the results
            for at in [at for at in _results(self._folder, request) if at in left]:
                left.discard(at)
                done(at, _result(json_files.read(self._folder, f"{request}.{at}") or {}))
            why = None if end is None else end["error"] or "its tasks do not see the task's home"
            if left and why is None and time.monotonic() - looked > BEAT_S * self._pace:
                looked = time.monotonic()
                why = None if self.state else "its process has ended"
            if left and self._stopped():
                raise ConnectionLostError("the baseline was given up", hint="it is read again")
            if left and why is not None:
                logger.warning(
                    "Spark has not read %d parts of a baseline, so capture reads them: %s", len(left), why
                )
                return
            time.sleep(LOOK_S * self._pace if left else 0)

    def _words(self, asked: Sequence[RequestedPart]) -> dict[str, Any]:
        loads = list({id(one.load): one.load for one in asked}.values())
        places = {id(load): at for at, load in enumerate(loads)}
        parts = [{"load": places[id(one.load)], **asdict(one.part)} for one in asked]
        holder = {"holder": self._holder, "workers": self._workers}
        return {**holder, "loads": [_load_json(one) for one in loads], "parts": parts}


@contextmanager
def reading_for_capture(task: Task, session: SparkSession | BackgroundSession) -> Iterator[None]:
    """Reads parts of baselines for the task's capture process, in tasks of the session, within the block."""
    reader, over = _Reader(task, session), threading.Event()
    thread = threading.Thread(target=reader.run, args=(over,), name="parts for capture", daemon=True)
    reader.tell()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class _Reader:
    """The side of the process with the session: one job at a time reads all requested parts."""

    def __init__(self, task: Task, session: SparkSession | BackgroundSession) -> None:
        self._task, self._folder = task, _folder(task)
        self._files = Objects(self._folder)
        self._late = background(session)
        self._session = session.as_session if isinstance(session, BackgroundSession) else session
        self._told, self._beat = "", 0.0
        self._epoch: int | None = None

    def run(self, over: threading.Event) -> None:
        """Serves requests until `over` is set and the current job is done or cancelled."""
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="parts job") as pool:
                job: Future[None] | None = None
                while not over.is_set() or (job is not None and not job.done()):
                    beats, busy = self.tell(), job is not None and not job.done()
                    waiting = self._waiting() if self._may_wait(beats, busy) else []
                    ends = over.is_set() or (self._late is not None and self._late.cancelled)
                    if waiting and not busy and not ends:
                        job = pool.submit(self._read, waiting)
                    over.wait(LOOK_S * pace(self._folder)) if not over.is_set() else time.sleep(LOOK_S)
        except (OSError, TailraceError) as error:
            logger.warning("capture reads baselines without Spark: %s", error)
        finally:
            with suppress(OSError):
                self._files.delete(f"{READER}.json")

    def tell(self) -> bool:
        """Writes the session's state if it changed, or touches its file once a second; returns whether it
        did."""
        state = self._late.state if self._late else "ready"
        if state == self._told and time.monotonic() - self._beat < BEAT_S * pace(self._folder):
            return False
        if state == self._told and not self._files.remote:
            self._files.touch(f"{READER}.json")
        else:
            json_files.write(self._folder, READER, {"state": state, "pid": os.getpid()})
        self._told, self._beat = state, time.monotonic()
        return True

    def _may_wait(self, beats: bool, busy: bool) -> bool:
        """Whether requests may be waiting; in an object store, only if anything happened in the home."""
        before, self._epoch = self._epoch, news.epoch(self._task.log_path)
        return (beats or not busy) if self._epoch is None else self._epoch != before

    def _waiting(self) -> list[str]:
        """Returns the waiting requests of the current capture process, and removes files of others."""
        names = [name.split(".") for name in self._files.names() if name[0] != "."]
        asked = {name[0] for name in names if len(name) == 2}
        ended = {name[0] for name in names if name[1:] == ["end", "json"]}
        waiting = list[str]()
        for one in sorted({name[0] for name in names} - {READER}):
            if one not in asked or not self._asks(one):
                _remove(self._folder, one)
            elif one not in ended:
                waiting.append(one)
        return waiting

    def _asks(self, request: str) -> bool:
        """Returns whether a request is from the process that captures the task now."""
        said, run = json_files.read(self._folder, request), self._task.run_path
        holder = newest(run, "capture") if live.locked(run, "capture") else None
        return said is not None and holder is not None and said["holder"] == holder.id

    def _read(self, requests: Sequence[str]) -> None:
        """Reads the parts of requests in one job."""
        said = {one: there for one in requests if (there := json_files.read(self._folder, one))}
        why = ""
        try:
            if said:
                self._read_all(said)
        except CancelledError:
            return  # this process ends; capture ends with it, or reads the rest afterwards
        except Exception as error:
            # Capture reads the rest, and raises errors that persist.
            why = error.what if isinstance(error, TailraceError) else f"{type(error).__name__}: {error}"
            logger.debug("parts of baselines", exc_info=True)
        for one in said:
            if self._files.exists(f"{one}.json"):
                json_files.write(self._folder, f"{one}.end", {"error": why})

    def _read_all(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        with closing(open_source(self._task)) as source:
            reader = source.part_reader()
        parts = list[_PartTask]()
        for request, words in said.items():
            loads = [_load(load, reader, lambda at: landing_at(self._task, at)) for load in words["loads"]]
            for number, part in enumerate(words["parts"]):
                one = RequestedPart(loads[part.pop("load")], BaselinePart(**part))
                parts.append(_PartTask(self._folder, request, number, one))
        asked = [one.asked for one in parts]
        map_tasks(
            _read_requested,
            parts,
            session=self._session,
            job=reading_job("baseline", asked),
            weights=part_weights(asked),
            at_once=min(words["workers"] for words in said.values()),
        )


@dataclass(frozen=True)
class _PartTask:
    folder: str
    request: str
    number: int
    asked: RequestedPart


def _read_requested(one: _PartTask) -> int:
    """Reads a part, unless its request was given up, or an earlier attempt has read it; returns the number of
    rows. Runs in tasks."""
    folder, name = one.folder, f"{one.request}.{one.number}"
    there = Objects(folder)
    if there.exists(f"{name}.json") or not there.exists(f"{one.request}.json"):
        return 0
    result = try_read(one.asked)
    json_files.write(folder, name, _result_json(result))
    return result.rows if isinstance(result, Loaded) else 0


def _load_json(load: PartLoad) -> dict[str, Any]:
    assert not isinstance(load.to, str)  # noqa: S101 - a task's
    return {
        "snapshot": load.snapshot.name,
        "position": load.snapshot.position.hex(),
        "relation": load.relation.to_json(),
        "to": load.to.address,
        "keep_bad": load.keep_bad,
        "hidden": sorted(load.hidden),
    }


def _load(
    words: Mapping[str, Any], reader: PartReader, landing: Callable[[Mapping[str, str]], Landing]
) -> PartLoad:
    snapshot = Snapshot(words["snapshot"], bytes.fromhex(words["position"]))
    relation, to = Relation.from_json(words["relation"]), landing(words["to"])
    return PartLoad(reader, snapshot, relation, to, words["keep_bad"], frozenset(words["hidden"]))


def _result_json(result: Loaded | TailraceError) -> dict[str, Any]:
    """Returns a result as JSON.

    >>> one = Loaded(None, 7, [("n", "NaN")])
    >>> _result(_result_json(one)) == one
    True
    """
    if isinstance(result, TailraceError):
        return {"error": errors.to_json(result)}
    added = None if result.added is None else result.added.to_json()
    return {"added": added, "rows": result.rows, "bad": result.bad}


def _result(words: Mapping[str, Any]) -> Loaded | TailraceError:
    if "error" in words:
        return errors.from_json(words["error"])
    added = None if words["added"] is None else lake.AddedFile.from_json(words["added"])
    return Loaded(added, words["rows"], [(column, text) for column, text in words["bad"]])


def _results(folder: str, request: str) -> list[int]:
    """Returns the numbers of the parts that have a result."""
    names = (name.split(".") for name in Objects(folder).names(f"{request}."))
    return sorted(int(name[1]) for name in names if len(name) == 3 and name[1].isdigit())


def _remove(folder: str, request: str) -> None:
    """Removes a request, then its results."""
    there = Objects(folder)
    there.delete(f"{request}.json")
    for name in there.names(f"{request}."):
        there.delete(name)
