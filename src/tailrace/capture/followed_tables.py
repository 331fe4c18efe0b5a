"""Decides which tables capture follows, from commands, the task file and the source's catalog, and acts when
that changes.

Publication and baselines follow from the decision. Commands may arrive at any moment, also while others are
carried out. A command that arrives too late for one check is left to the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from ..apply.ddl import APPLY, IGNORE, STOP
from ..config.policies import MEDIUM
from ..config.task import Task
from ..errors import ConnectionLostError, SourceError, TableMovedError, TailraceError
from ..sources.base import Finding, LogSource
from ..state import commands, lifecycle, streams
from ..state.capture_gaps import UNLOGGED_VALUES
from ..state.lifecycle import TableLifecycle
from ..state.open_warnings import CAPTURE, OpenWarnings
from .added_tables import AddedTables, unfit
from .attached_tables import AttachedTables
from .ddl_watch import DdlWatch, recreate_policy, rewrite_policy
from .locked_tables import LockedTables
from .replica_identities import ReplicaIdentities, left_out_reasons
from .stream import ALTERED, MISSING, RECREATED
from .table_errors import suspend_unfit
from .table_selection import TAKE_BACK, KnownTables, MovedTables, drop_targets, wanted_tables
from .target_rename import TargetRenames
from .unlisted_tables import add_listed_again, find_unlisted, remove_unlisted, warn_of_archives

logger = logging.getLogger("tailrace.capture")
_TRACKED = "at its level it gets no baseline: what was changed meanwhile is not tracked"

Findings: TypeAlias = Callable[[LogSource, Sequence[str]], list[Finding]]
"""Returns the errors for which tables cannot be captured."""


class Stream(Protocol):
    """The stream of a session, see `stream.Streams`."""

    def prepare(self, source: LogSource, tables: Sequence[str]) -> bool:
        """Calls `LogSource.prepare` as the stream's state allows."""

    def lost(self, source: LogSource, tables: Sequence[str], *, now: bool = True) -> dict[str, str]:
        """Returns the tables of which changes may be missing, with the reason; some are noticed later without
        `now`."""

    @property
    def unidentified(self) -> Mapping[str, str]:
        """Tables whose changes do not identify the changed row, with the reason, as of the last `lost`."""


class BaselineWork(Protocol):
    """The baselines of a session."""

    @property
    def busy(self) -> set[str]:
        """Tables that are being read, or whose window is open."""

    def due(self, wanted: Sequence[str], task: Task, known: KnownTables, busy: set[str]) -> list[str]:
        """Returns the tables that need a baseline, and for which none was running before `known` was read."""

    def begin(self, tables: Sequence[str], task: Task) -> None:
        """Starts to read them."""

    def unsent(self, tables: Collection[str]) -> None:
        """Records that changes of these tables are missing in the stream: a baseline that is read before they
        are `sent` answers no command."""

    def sent(self, tables: Collection[str]) -> None:
        """Records that the stream has all changes of these tables from now on."""


class FollowedTables:
    """The tables of one run of capture.

    Args:
        task: the task.
        findings: returns the errors for which new tables, or suspended ones that are to get a baseline,
            cannot be captured.
        reload: reads the task file again; without it, the task does not change.

    Attributes:
        task: the task as its file is now.
        tables: the captured tables.
        known: the state by commands and baselines.
        watch: the state in the source's catalog.
        message: why the task file, or a table, is not used; None if all are used.
    """

    def __init__(self, task: Task, findings: Findings, reload: Callable[[], Task] | None = None) -> None:
        self.task, self._findings, self._reload = task, findings, reload
        self.tables: list[str] = []
        self.known = KnownTables(task)
        self.watch = DdlWatch(task)
        self.message: str | None = None
        self._moved = MovedTables()
        self._added, self._attached = AddedTables(), AttachedTables(task)
        self._identities, self._locked = ReplicaIdentities(), LockedTables()
        self._renaming = TargetRenames(task)
        self._behind = False  # a finding or a command is not acted on yet
        self._began = False
        self._waits: dict[str, str] = {}
        self._open = OpenWarnings(task, CAPTURE)
        self._fit: dict[str, int] = {}  # the newest command of each table that can be captured

    def begin(self, source: LogSource) -> None:
        """Determines the tables at the start of a session.

        Tables that the task file no longer selects are removed only in the first session, as the file may be
        half-edited later on. A suspended table that cannot be captured waits: it may have lost its rights
        when it was created again.
        """
        self._renaming.continue_all(self.task)
        self.drop_targets()
        wanted = self._wanted(source)
        first, self._began = not self._began, True
        if first and (unlisted := find_unlisted(self.task, self.known, wanted, self._moved.gone)):
            remove_unlisted(self.task, unlisted)
            self.known.refresh()
            wanted = self._wanted(source)  # other commands may have arrived with these
        # Tables that were added since the last session may have to wait, and suspended ones do not delay the
        # others.
        checked = wanted if first else self.tables
        self.tables = self._ready(source, wanted, [t for t in checked if t not in self.suspended])

    def _ready(self, source: LogSource, wanted: Sequence[str], fit: Sequence[str]) -> list[str]:
        """Returns those wanted tables that can be captured; those in `fit` need no check."""
        asked = self._unchecked()
        ready = self._added.ready(wanted, fit, partial(self._findings, source))
        self._fit |= {t: number for t, number in asked.items() if t in ready}
        self.message = self._added.message
        return ready

    def suspend_unfit(self, source: LogSource, findings: Sequence[Finding]) -> list[Finding]:
        """Suspends the tables with errors in the checks at a start, and leaves out tables that cannot be
        captured; returns the other findings."""
        left = suspend_unfit(self.task, findings, self.tables)
        if self.known.refresh():
            self.tables = self._ready(
                source, self.tables, [t for t in self.tables if t not in self.suspended]
            )
        return left

    def _unchecked(self) -> dict[str, int]:
        """Returns the suspended tables that are to get a baseline and were not checked since, with the number
        of the command."""
        asked = {t: self.known.states[t].wanted for t in self.suspended}
        return {t: number for t, number in asked.items() if number > self._fit.get(t, 0)}

    @property
    def locked(self) -> str | None:
        """Which tables are locked, and by which session; None if none is known."""
        return self._locked.message

    @property
    def left_out(self) -> dict[str, str]:
        """Tables that the wildcards of the task file leave out, with the reason."""
        return left_out_reasons(self.task, self._identities.left)

    @property
    def suspended(self) -> set[str]:
        """The suspended tables."""
        return {t for t, one in self.known.states.items() if one.held == lifecycle.SUSPENDED}

    def given_up(self, why: str) -> int:
        """Commands apply to let the targets wait for new baselines, because the stream is given up.

        Changes in between are in no change table. Returns the number of the command.
        """
        states, task = self.known.states, self.task
        mine = {*self.known.baselines, *(t for t in self.tables if task.policy(t).level >= MEDIUM)}
        mine -= {t for t, one in states.items() if one.removed}
        number = commands.give(task.commands_path, commands.ANEW, sorted(mine), why=why, who="capture")
        self._fit |= dict.fromkeys(mine.intersection(self.tables), number)  # they were checked before
        return number

    def follow(self, source: LogSource, work: BaselineWork, stream: Stream) -> None:
        """Publishes wanted tables, withdraws removed ones, and starts the baselines that are due.

        A command that arrives meanwhile is left to the next check, as only baselines depend on it here.
        """
        late = self._withdraw(source, work)
        # Before commands and baselines are read: a table that is no longer being read is recorded there.
        busy = work.busy
        late = self.known.refresh() or late
        waiting = self._handle_lost(source, work, stream, busy) | self._unchecked().keys()
        self._identities.give(source, self.task, self.tables)
        waiting |= self._identities.waits.keys() - streams.newest(self.task).published
        ready = [t for t in self.tables if t not in waiting]
        fresh = stream.prepare(source, ready)
        self._locked.unpublished(source.unpublished)
        ready = [t for t in ready if t not in source.unpublished]
        work.sent(ready)
        busy = work.busy
        late = self.known.refresh() or late
        # A baseline that is requested for a waiting table begins later.
        unchecked = self._unchecked()
        due = [t for t in work.due(ready, self.task, self.known, busy) if t not in unchecked]
        if due or fresh:
            work.begin(due, self.task)
        self._behind = late or bool(self._identities.waits or source.unpublished)
        self._suspend_unidentified(stream)

    def check(self, source: LogSource, work: BaselineWork, stream: Stream) -> None:
        """Picks up commands, and tables added to the task file."""
        try:
            self.task = self._reload() if self._reload else self.task
            busy = work.busy
            self._behind = self.known.refresh() or self._behind
            self.watch.follow(self.task)
            self._locked.check(source, self.tables)
            wanted = self._wanted(source)
            asked = self._unchecked()
            wanted = self._ready(source, wanted, [t for t in self.tables if t not in asked])
        except ConnectionLostError:
            raise
        except TailraceError as error:
            # The file may be half-edited: the current settings stay in force, and the status has the reason.
            self.message = f"the changed task file is not used: {error.what}"
            return
        if new := [t for t in wanted if t not in self.tables]:
            logger.info("adding %s", ", ".join(new))
        self.tables = wanted
        due = work.due(wanted, self.task, self.known, busy)
        if new or due or self._behind or stream.lost(source, wanted, now=False):
            self._behind = True
            try:
                self.follow(source, work, stream)
            except TableMovedError as error:  # the next check finds it under its new name
                logger.info("%s; checking again", error.what)
                return
        self._suspend_unidentified(stream)
        self._renaming.continue_all(self.task, work.busy)
        self.drop_targets(work.busy)

    def _suspend_unidentified(self, stream: Stream) -> None:
        """Suspends tables while their changes do not identify the changed row."""
        for table, why in stream.unidentified.items():
            held = self.known.states[table].held
            if held != lifecycle.SUSPENDED and self.task.policy(table).level >= MEDIUM:
                logger.warning("%s: %s", table, why, extra={"table": table})
                commands.suspend(self.task.commands_path, table, why, who="capture")
                self._behind = True

    def drop_targets(self, busy: Collection[str] = ()) -> None:
        """Removes the targets for which a command was given, except those whose baseline is being read
        (`busy`).

        It is called at the start and the end of a session, too: with `--once` there may be no check in
        between.
        """
        self._behind = self.known.refresh() or self._behind
        drop_targets(self.task, self.known.states, busy, self._waits)
        self._open.hold("targets to remove", self._waits, TAKE_BACK)

    def _wanted(self, source: LogSource) -> list[str]:
        self._moved = self.watch.moved(source)
        if add_listed_again(self.task, self.known):
            self._behind = self.known.refresh() or self._behind
        warn_of_archives(self.task, self.known)
        published = () if self._began else streams.newest(self.task).published
        while True:
            left = self._identities.left = source.left_out()
            states, moved = self.known.states, self._moved
            wanted = wanted_tables(source, self.task, states, moved, left)
            had = {*self.tables, *self.known.baselines, *published}
            wanted = self._attached.without(source, self.task, states, had, wanted)
            wanted = self._identities.without(self.task, states, moved, had, wanted)
            self._behind = self._behind or self._identities.due(self.task, wanted)
            if not self.known.refresh():
                self._identities.say(self.task)
                return wanted
            # Partitions were suspended, or other commands arrived: they may change the wanted tables.
            self._behind = True

    def _removed(self) -> list[str]:
        """Returns the removed tables, except dropped ones whose name a followed table has now."""
        removed = {t for t, one in self.known.states.items() if one.removed}
        renamed = {one.known: one.now for one in self._moved.renamed}
        used = {now for known, now in renamed.items() if known not in removed}
        return sorted(t for t in removed if t in renamed or t not in used)

    def _withdraw(self, source: LogSource, work: BaselineWork) -> bool:
        """Takes removed, renamed and unidentified tables out of the stream; returns whether there are new
        commands.

        Unidentified ones have lost their replica identity. A table that is added again at this moment stays.
        """
        removed, lost = self._removed(), self._identities.lost
        work.unsent({*removed, *lost})
        late = self.known.refresh()  # a baseline may have answered an earlier `add`
        still = set(self._removed())
        for gone in ([t for t in removed if t in still], [one.known for one in self._moved.old], lost):
            if gone:
                late = not source.withdraw(list(gone)) or late
        return late

    def _handle_lost(self, source: LogSource, work: BaselineWork, stream: Stream, busy: set[str]) -> set[str]:
        """Handles tables that have lost changes, because they were created again, published otherwise, or got
        partitions with rows.

        Only a baseline that begins after they are published again has these changes. Returns the tables that
        must not be captured before one is requested. Tables with new partitions are not among them, as the
        stream has all later changes.
        """
        waiting, path, again = set(), self.task.commands_path, dict[str, int]()
        lost = stream.lost(source, self.tables)
        self._refuse_renamed(source, lost)
        work.unsent(lost)
        for table, why in lost.items():
            state = self.known.states[table]
            due = self._begins(table, state)
            if (due and table not in busy) or (state.wanted and table in self._locked.waits):
                continue
            if self.task.policy(table).level < MEDIUM:
                self._open.happened("untracked", table, f"{why}; {_TRACKED}")
                continue
            asked = due or bool(state.wanted)
            policy = self._policy(table, why, asked)
            if policy == IGNORE and why.startswith(UNLOGGED_VALUES):
                continue
            asked = asked or policy == APPLY
            told = state.held != lifecycle.SUSPENDED or state.why == why
            if not asked and (why in (MISSING, RECREATED, ALTERED) or not told):
                waiting.add(table)  # suspended for another reason; suspended for this one once it is resumed
            # The rows being read are from before: apply has to wait for the requested baseline.
            stale = (asked and table in busy) or (
                not state.wanted and not self._stops(source, table, why, policy)
            )
            if stale and state.held != lifecycle.SUSPENDED:
                logger.warning("%s: %s; its policy is `%s`", table, why, policy, extra={"table": table})
                commands.suspend(path, table, why, who="capture")
            if asked:
                again[table] = commands.resync(path, table, why, who=commands.CAPTURE)
        wait = unfit(list(again), partial(self._findings, source))
        self._fit |= {t: number for t, number in again.items() if t not in wait}
        return waiting.union(wait)

    def _policy(self, table: str, why: str, asked: bool) -> str:
        """Returns the policy for a table that lost changes.

        Args:
            asked: whether a new baseline of it is requested.

        Raises:
            SourceError: its values changed without a record in the log, and the policy for that is `stop`.
        """
        if not why.startswith(UNLOGGED_VALUES):
            return recreate_policy(self.task, table)
        policy = rewrite_policy(self.task, table)
        if policy == STOP and not asked:
            hint = "`tailrace resync` takes a new baseline; or set another policy (`ddl: {retype: ...}`)"
            raise SourceError(f"{why}, and its policy is `stop`", where=table, hint=hint)
        return policy

    def _refuse_renamed(self, source: LogSource, lost: Mapping[str, str]) -> None:
        """Raises TableMovedError if tables were renamed since the last check, and one of those that lost
        changes is not suspended for it.

        A baseline was perhaps requested under a name that it no longer has.
        """
        states = self.known.states
        told = {t for t, why in lost.items() if t in self.suspended and states[t].why == why}
        if lost.keys() - told and self.watch.moved(source) != self._moved:
            raise TableMovedError("tables were renamed meanwhile", hint="they are looked up again")

    def _stops(self, source: LogSource, table: str, why: str, policy: str) -> bool:
        """Returns whether the task is about to end because a table was recreated; not for one that was
        removed from the publication."""
        return policy == STOP and why in (MISSING, RECREATED) and table in self.watch.recreated_tables(source)

    def _begins(self, table: str, state: TableLifecycle) -> bool:
        """Returns whether a baseline that is due in any case has all that a table lost, or it was never in
        the stream."""
        first = table not in self.known.baselines
        if self.task.policy(table).level >= MEDIUM and (state.gap or (first and self.task.baseline.enabled)):
            return True
        return first and table not in streams.newest(self.task).published
