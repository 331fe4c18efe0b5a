"""The capture process: source -> LOG, and baselines beside it. No JVM, no row is parsed here.

The loop reads chunks, appends whole transactions to LOG, and acknowledges a position to the source only
after the commit that holds it. Baselines run in worker processes while the loop goes on. What the process
does is told in `<home>/run/capture.json`, replaced once a second.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from . import baseline, lake, log, sequence
from .control import ledger, live
from .control.policies import MEDIUM
from .control.task import Task
from .errors import ConnectionLostError, SourceError, TableMovedError, TailraceError
from .landing import landings
from .sources import open_source
from .sources.base import Finding, LogSource, Snapshot

logger = logging.getLogger("tailrace.capture")
TASK_FILE_CHECK_S = 2.0
BASELINE_TRIES = 20
STATE_EVERY_S = 1.0
READ_S, READ_ONCE_S = 0.5, 0.1
"""How long one read may gather; shorter where somebody waits for the end."""
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass
class _State:
    """What `capture.json` says: positions are hex, lag is bytes and seconds, rate is records a second."""

    state: str = "starting"
    pid: int = field(default_factory=os.getpid)
    position: str | None = None
    records: int = 0
    transactions: int = 0
    commits: int = 0
    rate: float = 0.0
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    baselines: dict[str, dict[str, Any]] = field(default_factory=dict)
    message: str | None = None


class Capture:
    """One run of capture for one task. `run` returns when `stop` is set, or, with `once`, when everything
    that was in the source's log at the start is in LOG and every baseline is taken."""

    def __init__(
        self,
        task: Task,
        *,
        once: bool = False,
        stop: threading.Event | None = None,
        reload: Callable[[], Task] | None = None,
    ) -> None:
        self._task, self._once, self._reload = task, once, reload
        self.stop = stop or threading.Event()
        self._state = _State()
        self._baselines: list[threading.Thread] = []
        self._failed: list[BaseException] = []
        self._known_tables: list[str] = []

    def run(self) -> None:
        """Captures until told to stop; a lost connection is tried again, any other error ends it."""
        attempt = 0
        with live.lock(self._task.run_path, "capture"):
            while not self.stop.is_set():
                began = time.monotonic()
                try:
                    self._session()
                    break
                except ConnectionLostError as error:
                    if self._failed:
                        raise
                    attempt = 0 if time.monotonic() - began > 60 else attempt
                    pause = RETRY_S[min(attempt, len(RETRY_S) - 1)]
                    logger.warning("connection lost, trying again in %.0f s: %s", pause, error)
                    self._tell("reconnecting", str(error))
                    self.stop.wait(pause)
                    attempt += 1
        self._tell("stopped")

    def _session(self) -> None:
        task = self._task
        source = open_source(task)
        try:
            writer = log.LogWriter(task.log_path, task.relations_path)
            self._known_tables = source.tables(task.source.tables, task.source.exclude)
            self._check(source, writer)
            self._prepare(source, self._known_tables)
            source.start(writer.state.position, list(log.latest(log.layouts(task.relations_path)).values()))
            self._loop(source, writer)
        finally:
            self.stop.set() if self._failed else None
            for thread in self._baselines:
                thread.join()
            source.close()
        if self._failed:
            raise self._failed[0]

    def _check(self, source: LogSource, writer: log.LogWriter) -> None:
        identity = live.read(self._task.run_path, "source")
        findings = source.check(self._known_tables, writer.state.position, identity)
        for one in findings:
            if one.level == "warning":
                logger.warning("%s (%s); cure: %s", one.what, one.where, one.cure)
        report(findings)
        live.write(self._task.run_path, "source", source.identity())

    def _prepare(self, source: LogSource, tables: Sequence[str]) -> None:
        """Publication and slot, then baselines for tables that have none, beside the stream."""
        fresh = source.prepare(tables)
        done = ledger.read_baselines(self._task.control_path("baselines"))
        wanted = [t for t in tables if t not in done] if self._task.baseline.enabled else []
        wanted = [t for t in wanted if self._task.policy(t).level >= MEDIUM]
        running = {t for t, s in self._state.baselines.items() if s.get("state") == "running"}
        wanted = [t for t in wanted if t not in running]
        if wanted or fresh:
            ready = threading.Event()
            thread = threading.Thread(target=self._baseline, args=(source, wanted, ready), name="baseline")
            self._baselines.append(thread)
            thread.start()
            # The slot must exist (and its snapshot be held) before the stream begins.
            ready.wait()
            if self._failed:
                raise self._failed[0]

    def _baseline(self, source: LogSource, tables: list[str], ready: threading.Event) -> None:
        for table in tables:
            self._state.baselines[table] = {"state": "running", "rows": 0, "parts": 0, "parts_done": 0}
        try:
            self._baseline_until_done(source, tables, ready)
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self._failed.append(error)
        finally:
            ready.set()

    def _baseline_until_done(self, source: LogSource, tables: list[str], ready: threading.Event) -> None:
        """A table that is truncated or rewritten while it is read is read again, in a new snapshot."""
        task, left = self._task, tables
        for attempt in range(BASELINE_TRIES):
            try:
                with source.snapshot() as snapshot:
                    self._note_layouts(source, left)
                    ready.set()
                    if left:
                        self._read_tables(source, snapshot, left)
                return
            except TableMovedError as error:
                if attempt + 1 == BASELINE_TRIES:
                    raise
                logger.warning("%s; reading again", error.what)
                done = ledger.read_baselines(task.control_path("baselines"))
                left = [t for t in left if t not in done]

    def _note_layouts(self, source: LogSource, tables: Sequence[str]) -> None:
        relations = [source.relation(t) for t in tables]
        known = log.latest(log.layouts(self._task.relations_path))
        log.record_layouts(
            self._task.relations_path,
            [log.Layout(r, b"", sequence.FIRST) for r in relations if r.relid not in known],
        )

    def _read_tables(self, source: LogSource, snapshot: Snapshot, tables: Sequence[str]) -> None:
        task = self._task
        baseline.run(
            source,
            snapshot,
            tables,
            target=landings(task),
            record=task.control_path("baselines"),
            quarantine=task.control_path("quarantine"),
            workers=task.baseline.workers,
            rows_per_part=task.baseline.rows_per_part,
            keep_bad=task.on_bad_value == "quarantine",
            progress=self._baseline_progress,
            stopped=self.stop.is_set,
            hidden=lambda relation: task.policy(relation.table).hidden(relation),
        )

    def _baseline_progress(self, at: baseline.BaselineProgress) -> None:
        state = "done" if at.parts_done == at.parts else "running"
        self._state.baselines[at.table] = {**asdict(at), "state": state}

    def _loop(self, source: LogSource, writer: log.LogWriter) -> None:
        task = self._task
        target = source.end_position() if self._once else None
        wait = min(task.capture.commit_every, READ_ONCE_S if self._once else READ_S)
        committed = told = looked = time.monotonic()
        since_told = 0
        self._state.state = "running"
        while not self.stop.is_set() and not self._failed:
            chunk = source.read(task.capture.chunk_bytes, wait)
            if chunk is not None:
                writer.add(chunk)
            drained = target is not None and self._drained(source, target)
            now = time.monotonic()
            due = drained or now - committed >= task.capture.commit_every
            if writer.ready and (due or writer.pending_bytes >= task.capture.commit_bytes):
                since_told += self._commit(source, writer)
                committed = time.monotonic()
            if now - told >= STATE_EVERY_S:
                self._state.rate = since_told / (now - told)
                since_told, told = 0, now
                self._tell_lag(source)
            if self._reload is not None and now - looked >= TASK_FILE_CHECK_S:
                looked = now
                self._new_tables(source)
            if drained:
                break
        if writer.ready:
            self._commit(source, writer)
        self._tell_lag(source)

    def _drained(self, source: LogSource, target: bytes) -> bool:
        if any(t.is_alive() for t in self._baselines):
            return False
        reached = source.reached()
        return reached is not None and reached >= target

    def _commit(self, source: LogSource, writer: log.LogWriter) -> int:
        done = writer.commit()
        if done is None:
            return 0
        source.acknowledge(done.position)
        self._state.position = done.position.hex().upper()
        self._state.records += done.records
        self._state.transactions += done.transactions
        self._state.commits += 1
        return done.records

    def _new_tables(self, source: LogSource) -> None:
        """Tables added to the task file while it runs: published, then read by a baseline of their own."""
        try:
            self._task = self._reload() if self._reload else self._task
            tables = source.tables(self._task.source.tables, self._task.source.exclude)
        except TailraceError as error:
            # The file may be half-edited; what runs goes on, and the screen says why nothing changed.
            self._state.message = f"task file not taken in: {error.what}"
            return
        self._state.message = None
        new = [t for t in tables if t not in self._known_tables]
        if new:
            logger.info("adding %s", ", ".join(new))
            self._known_tables = tables
            self._prepare(source, tables)

    def _tell_lag(self, source: LogSource) -> None:
        lag = source.lag()
        self._state.lag_bytes, self._state.lag_seconds = lag.bytes, lag.seconds
        self._tell(self._state.state)

    def _tell(self, state: str, message: str | None = None) -> None:
        self._state.state = state
        self._state.message = message or self._state.message
        live.write(self._task.run_path, "capture", asdict(self._state))


def report(findings: Sequence[Finding]) -> None:
    """Raises SourceError when a check found what capture cannot run with; it lists every such finding."""
    errors = [f for f in findings if f.level == "error"]
    if errors:
        raise SourceError(
            "\n".join(f"{f.what} ({f.where})" for f in errors),
            where="checks before capture",
            hint="\n        ".join(f.cure for f in errors if f.cure),
        )


def newest_version(task: Task) -> int:
    """The newest version of the task's LOG; -1 before the first capture."""
    return lake.version(task.log_path)
