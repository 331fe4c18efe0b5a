"""The capture process: copies the source's log to LOG, and takes baselines. It has no JVM and parses no rows.

The loop reads chunks, appends whole transactions to LOG, and acknowledges a position to the source only after
the commit that contains it. In parallel, tasks of the pipeline's Spark session or worker processes read
baselines. The process's state is in `<home>/run/capture.json`, replaced once a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from ..apply.checks.columns import column_findings
from ..apply.checks.keyless import NO_WINDOW, keyless_findings
from ..apply.checks.mapping import plain_findings
from ..apply.checks.target import feeding_findings
from ..apply.target_owner import claim_targets, owner_findings, owner_of
from ..config import logs, state_version
from ..config.task import Task
from ..errors import ConnectionLostError, SourceError, TableMovedError, UnreachableError
from ..lake import guards, json_files, log
from ..lake.failpoints import reach
from ..lake.objects import pace
from ..model.change import Relation
from ..model.positions import Position
from ..sources import open_source
from ..sources.base import Finding, LogSource, PassingFinding
from ..state import commands, live
from ..state.capture_state import RUNNING, STATE_EVERY_S, STOPPED, CaptureState, pause_s
from ..state.intervals import interval_in_force
from ..state.open_warnings import CAPTURE, OpenWarnings
from . import stream_identity
from .baselines import Baselines, Stopped
from .column_notes import warn_of_types
from .first_start import slot_hint
from .followed_tables import FollowedTables
from .incremental_snapshot import Windows
from .replica_identities import identity_errors
from .stream import Streams

logger = logging.getLogger("tailrace.capture")
LOOK_EVERY_S = 1.0
"""Seconds between two checks of commands and the task file."""
READ_S, READ_ONCE_S = 0.5, 0.1
"""Maximum seconds for which one read collects records, and the maximum if a caller waits for the end."""
CALM_S = 60.0
"""A session that lasted this many seconds resets the waiting times.

A shorter one does not, although it reached the source. Otherwise a repeated failure (a proxy, a server that
crashes on the query) would start a session each second, with all checks and unfinished baselines from their
start.
"""


class Capture:
    """One run of capture for one task.

    `run` returns when `stop` is set. With `once` it returns when LOG has everything that was in the source's
    log at the start, and every baseline is taken.
    """

    def __init__(
        self,
        task: Task,
        *,
        once: bool = False,
        stop: threading.Event | None = None,
        reload: Callable[[], Task] | None = None,
        began: Callable[[], None] = lambda: None,
    ) -> None:
        self._once, self._began = once, began
        self.stop = stop or threading.Event()
        self._state, self._telling = CaptureState(), threading.Lock()
        self._reached = False
        self._followed = FollowedTables(task, self._findings, reload)
        self._open = OpenWarnings(task, CAPTURE)
        self._streams: Streams
        self._layouts: dict[int, Relation]

    @property
    def _task(self) -> Task:
        """The task as its file is now."""
        return self._followed.task

    def run(self) -> None:
        """Captures until `stop` is set.

        After a lost connection, or if a table is renamed during the start, it tries again. Any other error
        ends it, and so does a server that was never reached.
        """
        attempt = 0
        held = live.lock(self._task.run_path, "capture")
        with held, live.ending(self._ended), slot_hint(self._task):
            state_version.begin(self._task.home)
            # The state of an earlier process is outdated, except for its tables.
            self._state.tables = (json_files.read(self._task.run_path, "capture") or {}).get("tables") or []
            self._state.tell(self._task.run_path)
            while not self.stop.is_set():
                guards.check()
                began = time.monotonic()
                try:
                    self._session()
                    break
                except TableMovedError as error:
                    logger.info("%s; checking again", error.what)
                    self.stop.wait(pause_s(0))
                except ConnectionLostError as error:
                    if isinstance(error, UnreachableError) and not self._reached:
                        raise
                    if self.stop.is_set():
                        break
                    attempt = 0 if time.monotonic() - began > CALM_S else attempt
                    self._pause(error, pause_s(attempt))
                    attempt += 1
        self._state.state = STOPPED
        self._tell()

    def _ended(self, why: str) -> None:
        self._state.state, self._state.ended = STOPPED, why
        self._tell()

    def _pause(self, error: ConnectionLostError, seconds: float) -> None:
        logger.warning("connection lost, trying again in %.0f s: %s", seconds, error)
        self._state.lost(str(error))
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.stop.is_set():
            self._tell()
            self.stop.wait(min(left, STATE_EVERY_S))

    def _session(self) -> None:
        task, followed = self._task, self._followed
        self._streams = Streams(task)
        self._reached = self._reached or self._streams.now.stream > 0
        source, over = open_source(task), threading.Event()
        source.waits(self._waits, lambda: self.stop.is_set() or over.is_set())
        work: Baselines | None = None
        try:
            writer = log.LogWriter(task.log_path, task.relations_path)
            windows = Windows(task, source)
            work = Baselines(task, source, windows, over, writer)
            self._state.baselines = work.progress
            followed.watch.check(source, writer.state)
            followed.begin(source)
            self._reached = True
            self._give_up(source)
            self._check(source, writer)
            followed.follow(source, work, self._streams)
            claim_targets(self._task, followed.tables)
            latest = list(log.latest(log.layouts(task.relations_path)).values())
            self._layouts = {one.relid: one for one in latest}
            source.start(writer.state.position, latest)
            windows.resume()
            self._began()
            self._loop(source, writer, work, windows)
            followed.drop_targets(work.busy)
        except Stopped:
            return
        finally:
            over.set()  # a baseline restarts in the next session
            if work is not None:
                work.join()
            source.close()
        if work.failed:
            raise work.failed[0]

    def _check(self, source: LogSource, writer: log.LogWriter) -> None:
        stored = self._streams.now.stored
        findings = list(source.check(self._followed.tables, writer.state.position, stored))
        mistakes, held = self._mistakes(source, self._followed.tables), self._followed.suspended
        # A suspended table gets no baseline before it is resumed.
        findings += [one for one in mistakes if one.what != NO_WINDOW or one.where not in held]
        for one in findings:
            if one.level == "warning":
                logger.warning("%s (%s); fix: %s", one.what, one.where, one.cure)
        findings = self._followed.suspend_unfit(source, findings)
        report(findings, waits=self._streams.made)
        stream_identity.check_stream(source, self._task.log_path, writer.state.position, self.stop.is_set)

    def _mistakes(self, source: LogSource, names: Sequence[str]) -> list[Finding]:
        looks = (plain_findings, column_findings, keyless_findings, identity_errors)
        found = [one for look in looks for one in look(self._task, source, names)]
        owner = owner_of(self._task, self._streams.now.identity or source.identity())
        found += owner_findings(self._task, names, owner, self._followed.known.baselines)
        return found + feeding_findings(self._task, names)

    def _findings(self, source: LogSource, names: Sequence[str]) -> list[Finding]:
        """Returns the errors for which tables cannot be captured.

        A table for which only the baseline is impossible is captured, and suspended.
        """
        mistakes = (one for one in self._mistakes(source, names) if one.what != NO_WINDOW)
        return [*source.check(names, None, self._streams.now.stored, settled=False), *mistakes]

    def _give_up(self, source: LogSource) -> None:
        """Gives up a stream after an operator's command.

        Before a new stream begins, apply has to let the targets wait for new baselines: changes in
        between are in no change table.
        """
        if self._streams.anew:
            number = self._followed.given_up(self._streams.now.why)
            while not commands.heard(self._task.run_path, number):
                if self.stop.wait(0.1):
                    raise Stopped
            self._followed.known.refresh()
        self._streams.clear(source)

    def _loop(self, source: LogSource, writer: log.LogWriter, work: Baselines, windows: Windows) -> None:
        task = self._task
        target = source.end_position() if self._once else None
        every = interval_in_force(task)
        wait = min(every, READ_ONCE_S if self._once else READ_S)
        committed = reported = looked = time.monotonic()
        slower = pace(task.run_path)
        since_report = 0
        self._state.runs()
        many = len(self._followed.tables)
        logs.event("capture reads the changes of %s %s", many, "table" if many == 1 else "tables")
        while not self.stop.is_set() and not work.failed:
            chunk = source.read(task.capture.chunk_bytes, wait)
            self._state.read_at = time.time()
            if chunk is not None:
                warn_of_types(self._open, self._layouts, chunk.relations)
                if not writer.takes(chunk):
                    since_report += self._commit(source, writer, windows)
                writer.add(chunk)
            drained = target is not None and self._drained(source, target, work)
            now = time.monotonic()
            due = drained or now - committed >= every
            if writer.ready and (due or writer.pending_bytes >= task.capture.commit_bytes):
                since_report += self._commit(source, writer, windows)
                committed = time.monotonic()
            if not writer.ready:
                windows.passed(source.reached() if windows.ends else None, writer.state.number)
            if now - reported >= STATE_EVERY_S * slower:
                guards.check()
                self._state.rate = since_report / (now - reported)
                since_report, reported = 0, now
                self._tell_lag(source)
            if now - looked >= LOOK_EVERY_S * slower:
                looked, every = now, interval_in_force(self._task)
                self._look(source, work)
                self._followed.watch.check(source, writer.state, waiting=writer.ready)
            if drained:
                break
        if writer.ready:
            self._commit(source, writer, windows)
        self._followed.watch.check(source, writer.state)
        self._tell_lag(source)

    def _drained(self, source: LogSource, target: bytes, work: Baselines) -> bool:
        if work.running:
            return False
        reached = source.reached()
        return reached is not None and reached >= target

    def _commit(self, source: LogSource, writer: log.LogWriter, windows: Windows) -> int:
        began, size = time.monotonic(), writer.pending_bytes
        done = writer.commit()
        if done is None:
            return 0
        self._state.commit_seconds.add(time.monotonic() - began)
        self._state.bytes += size
        reach("log.committed")
        source.acknowledge(done.position)
        reach("log.acknowledged")
        windows.logged(done.messages)
        self._state.position = Position(done.position.hex().upper())
        self._state.records += done.records
        self._state.transactions += done.transactions
        self._state.commits += 1
        said = {"position": self._state.position, "batch": writer.state.number}
        logger.info("captured %d log records of %d transactions", done.records, done.transactions, extra=said)
        return done.records

    def _look(self, source: LogSource, work: Baselines) -> None:
        """Picks up commands and tables added to the task file while it runs."""
        self._followed.check(source, work, self._streams)
        said = [one for one in (self._followed.message, self._followed.locked) if one]
        self._state.message = "; ".join(said) or None

    def _tell_lag(self, source: LogSource) -> None:
        lag = source.lag()
        self._state.lag_bytes, self._state.lag_seconds = lag.bytes, lag.seconds
        self._state.retained_bytes, self._state.left_bytes = lag.retained, lag.left
        self._tell()

    def _waits(self, what: str) -> None:
        """Stores the reason why something waits at the source; once the loop runs, it writes the state."""
        self._state.waits = what or None
        if self._state.state != RUNNING:
            self._tell()

    def _tell(self) -> None:
        with self._telling:
            self._state.tables, self._state.left_out = self._followed.tables, self._followed.left_out
            self._state.tell(self._task.run_path)


def report(findings: Sequence[Finding], *, waits: bool) -> None:
    """Raises an error that lists all findings, if one of them is an error.

    Args:
        findings: the findings of a check.
        waits: whether the task waits for conditions that pass.

    Raises:
        ConnectionLostError: the task `waits`, and all errors are such conditions.
        SourceError: otherwise.
    """
    errors = [f for f in findings if f.level == "error"]
    if not errors:
        return
    passes = waits and all(isinstance(f, PassingFinding) for f in errors)
    hints = ["it is retried until that has passed"] if passes else []
    hints += [f.cure for f in errors if f.cure]
    raise (ConnectionLostError if passes else SourceError)(
        "\n".join(f"{f.what} ({f.where})" for f in errors),
        where="checks before capture",
        hint="\n        ".join(hints),
    )
