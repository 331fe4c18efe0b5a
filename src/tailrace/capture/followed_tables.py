"""Which tables capture follows, and what has to be done when that changes: orders, the task file and the
source's catalog decide; publication and baselines come after.

Orders may arrive at any moment, also while others are carried out. What arrives too late for one look is left
to the next one.
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
from .ddl_watch import Watch, recreated, rewritten
from .locked_tables import LockedTables
from .replica_identities import ReplicaIdentities, said
from .stream import ALTERED, MISSING, RECREATED
from .table_errors import suspend_unfit
from .table_selection import TAKE_BACK, Known, Moved, drop_targets, members
from .target_rename import Renaming
from .unlisted_tables import come_back, leave, left_out, warn_of_archives

logger = logging.getLogger("tailrace.capture")
_TRACKED = "at its level it gets no baseline: what was changed meanwhile is not tracked"

Findings: TypeAlias = Callable[[LogSource, Sequence[str]], list[Finding]]
"""What keeps tables from being captured."""


class Stream(Protocol):
    """The stream of a session, see `stream.Streams`."""

    def prepare(self, source: LogSource, tables: Sequence[str]) -> bool:
        """`LogSource.prepare` as the stream's state allows it."""

    def lost(self, source: LogSource, tables: Sequence[str], *, now: bool = True) -> dict[str, str]:
        """The tables of which changes may be missing, and why; some are noticed later without `now`."""

    @property
    def unidentified(self) -> Mapping[str, str]:
        """Why changes of tables do not say which row they change, as `lost` found it."""


class BaselineWork(Protocol):
    """What is asked of the baselines of a session."""

    @property
    def busy(self) -> set[str]:
        """The tables that are being read, or whose window is open."""

    def due(self, wanted: Sequence[str], task: Task, known: Known, busy: set[str]) -> list[str]:
        """The tables that need a baseline, and for which none was running before `known` was read."""

    def begin(self, tables: Sequence[str], task: Task) -> None:
        """Begins to read them."""

    def unsent(self, tables: Collection[str]) -> None:
        """The stream lacks changes of these tables: what is read of them before they are `sent` answers no
        order."""

    def sent(self, tables: Collection[str]) -> None:
        """From now on the stream has all changes of these tables."""


class FollowedTables:
    """The tables of one run of capture.

    Args:
        task: the task.
        findings: what keeps tables from being captured that are new, or suspended and to get a baseline.
        reload: reads the task file again; None: it stays as it is.

    Attributes:
        task: the task as its file is now.
        tables: the tables that are captured.
        known: what orders and baselines say.
        watch: what the source's catalog says.
        message: why the task file, or a table, is not used; None if there is nothing to say.
    """

    def __init__(self, task: Task, findings: Findings, reload: Callable[[], Task] | None = None) -> None:
        self.task, self._findings, self._reload = task, findings, reload
        self.tables: list[str] = []
        self.known = Known(task)
        self.watch = Watch(task)
        self.message: str | None = None
        self._moved = Moved()
        self._added, self._attached = AddedTables(), AttachedTables(task)
        self._identities, self._locked = ReplicaIdentities(), LockedTables()
        self._renaming = Renaming(task)
        self._behind = False  # a finding or an order is not acted on yet
        self._began = False
        self._waits: dict[str, str] = {}
        self._open = OpenWarnings(task, CAPTURE)
        self._fit: dict[str, int] = {}  # the newest order of each table that was found fit to be captured

    def begin(self, source: LogSource) -> None:
        """The tables at the start of a session. Those that the task file selects no longer leave at the first
        one: later on the file may be half-edited. A suspended one waits while it cannot be captured: it may
        have lost its rights when it was created again."""
        self._renaming.carry_on(self.task)
        self.drop_targets()
        wanted = self._wanted(source)
        first, self._began = not self._began, True
        if first and (unlisted := left_out(self.task, self.known, wanted, self._moved.gone)):
            leave(self.task, unlisted)
            self.known.look()
            wanted = self._wanted(source)  # other orders may have come with these
        # Those that came since the last session may have to wait, and suspended ones keep no other from
        # being captured.
        checked = wanted if first else self.tables
        self.tables = self._ready(source, wanted, [t for t in checked if t not in self.suspended])

    def _ready(self, source: LogSource, wanted: Sequence[str], fit: Sequence[str]) -> list[str]:
        """Those of the wanted tables that can be captured, as those in `fit` can."""
        asked = self._unchecked()
        ready = self._added.ready(wanted, fit, partial(self._findings, source))
        self._fit |= {t: number for t, number in asked.items() if t in ready}
        self.message = self._added.message
        return ready

    def suspend_unfit(self, source: LogSource, findings: Sequence[Finding]) -> list[Finding]:
        """Suspends the tables that errors of the checks at a start are about, and leaves out those that
        cannot be captured; returns the other findings."""
        left = suspend_unfit(self.task, findings, self.tables)
        if self.known.look():
            self.tables = self._ready(
                source, self.tables, [t for t in self.tables if t not in self.suspended]
            )
        return left

    def _unchecked(self) -> dict[str, int]:
        """The suspended tables that are to get a baseline, and the number of the order: whether they can be
        captured has not been looked at since."""
        asked = {t: self.known.states[t].wanted for t in self.suspended}
        return {t: number for t, number in asked.items() if number > self._fit.get(t, 0)}

    @property
    def locked(self) -> str | None:
        """Which tables are locked, and by whom; None if none is known."""
        return self._locked.message

    @property
    def left_out(self) -> dict[str, str]:
        """What the wildcards of the task file leave out, and why."""
        return said(self.task, self._identities.left)

    @property
    def suspended(self) -> set[str]:
        """The tables that are suspended."""
        return {t for t, one in self.known.states.items() if one.held == lifecycle.SUSPENDED}

    def given_up(self, why: str) -> int:
        """Tells apply that the stream is given up, so the targets wait for new baselines: changes in between
        are in no change table. Returns the number of the order."""
        states, task = self.known.states, self.task
        mine = {*self.known.baselines, *(t for t in self.tables if task.policy(t).level >= MEDIUM)}
        mine -= {t for t, one in states.items() if one.removed}
        number = commands.give(task.commands_path, commands.ANEW, sorted(mine), why=why, who="capture")
        self._fit |= dict.fromkeys(mine.intersection(self.tables), number)  # they were looked at before
        return number

    def follow(self, source: LogSource, work: BaselineWork, stream: Stream) -> None:
        """Publishes wanted tables, withdraws removed ones, and begins the baselines that are due.

        An order that arrives meanwhile is left to the next look: here, only baselines depend on it.
        """
        late = self._withdraw(source, work)
        # Before orders and baselines are looked at: what is not read any more is recorded there.
        busy = work.busy
        late = self.known.look() or late
        waiting = self._made_again(source, work, stream, busy) | self._unchecked().keys()
        self._identities.give(source, self.task, self.tables)
        waiting |= self._identities.waits.keys() - streams.newest(self.task).published
        ready = [t for t in self.tables if t not in waiting]
        fresh = stream.prepare(source, ready)
        self._locked.unpublished(source.unpublished)
        ready = [t for t in ready if t not in source.unpublished]
        work.sent(ready)
        busy = work.busy
        late = self.known.look() or late
        # Whoever asks for one that waits now is heard later.
        unchecked = self._unchecked()
        due = [t for t in work.due(ready, self.task, self.known, busy) if t not in unchecked]
        if due or fresh:
            work.begin(due, self.task)
        self._behind = late or bool(self._identities.waits or source.unpublished)
        self._suspend_unidentified(stream)

    def look(self, source: LogSource, work: BaselineWork, stream: Stream) -> None:
        """Picks up orders, and tables added to the task file."""
        try:
            self.task = self._reload() if self._reload else self.task
            busy = work.busy
            self._behind = self.known.look() or self._behind
            self.watch.follow(self.task)
            self._locked.look(source, self.tables)
            wanted = self._wanted(source)
            asked = self._unchecked()
            wanted = self._ready(source, wanted, [t for t in self.tables if t not in asked])
        except ConnectionLostError:
            raise
        except TailraceError as error:
            # The file may be half-edited: the running settings stay in force, and the screen shows why
            # nothing changed.
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
            except TableMovedError as error:  # the next look finds it under its new name
                logger.info("%s; checking again", error.what)
                return
        self._suspend_unidentified(stream)
        self._renaming.carry_on(self.task, work.busy)
        self.drop_targets(work.busy)

    def _suspend_unidentified(self, stream: Stream) -> None:
        """Suspends tables whose changes do not say which row they change, as long as that is so."""
        for table, why in stream.unidentified.items():
            held = self.known.states[table].held
            if held != lifecycle.SUSPENDED and self.task.policy(table).level >= MEDIUM:
                logger.warning("%s: %s", table, why, extra={"table": table})
                commands.suspend(self.task.commands_path, table, why, who="capture")
                self._behind = True

    def drop_targets(self, busy: Collection[str] = ()) -> None:
        """Removes the targets for which this is ordered, but those whose baseline is being read (`busy`).

        At the start and the end of a session, too: with `--once` there may be no look in between.
        """
        self._behind = self.known.look() or self._behind
        drop_targets(self.task, self.known.states, busy, self._waits)
        self._open.hold("targets to remove", self._waits, TAKE_BACK)

    def _wanted(self, source: LogSource) -> list[str]:
        self._moved = self.watch.moved(source)
        if come_back(self.task, self.known):
            self._behind = self.known.look() or self._behind
        warn_of_archives(self.task, self.known)
        published = () if self._began else streams.newest(self.task).published
        while True:
            left = self._identities.left = source.left_out()
            states, moved = self.known.states, self._moved
            wanted = members(source, self.task, states, moved, left)
            had = {*self.tables, *self.known.baselines, *published}
            wanted = self._attached.without(source, self.task, states, had, wanted)
            wanted = self._identities.without(self.task, states, moved, had, wanted)
            self._behind = self._behind or self._identities.due(self.task, wanted)
            if not self.known.look():
                self._identities.say(self.task)
                return wanted
            # Partitions were suspended, or other orders came: they may say what is wanted.
            self._behind = True

    def _removed(self) -> list[str]:
        """The tables that were removed, but those that are gone and whose name a followed one has now."""
        removed = {t for t, one in self.known.states.items() if one.removed}
        renamed = {one.known: one.now for one in self._moved.renamed}
        used = {now for known, now in renamed.items() if known not in removed}
        return sorted(t for t in removed if t in renamed or t not in used)

    def _withdraw(self, source: LogSource, work: BaselineWork) -> bool:
        """Takes tables out of the stream that were removed, or whose name another one has now, but those that
        somebody adds again at this moment, and those that lost their replica identity; returns whether there
        are new orders."""
        removed, lost = self._removed(), self._identities.lost
        work.unsent({*removed, *lost})
        late = self.known.look()  # a baseline may have answered an `add` that came before
        still = set(self._removed())
        for gone in ([t for t in removed if t in still], [one.known for one in self._moved.old], lost):
            if gone:
                late = not source.withdraw(list(gone)) or late
        return late

    def _made_again(self, source: LogSource, work: BaselineWork, stream: Stream, busy: set[str]) -> set[str]:
        """Handles tables that have lost changes, because they were created again, published otherwise, or got
        partitions with rows: only a baseline helps that begins when they are published again. Returns those
        that must not be captured before one is requested: not those with new partitions, whose stream has
        all that comes."""
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
                waiting.add(table)  # suspended for something else, it is to be so for this once it is resumed
            # What is being read is of before: apply is to wait for the baseline that is asked for.
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
        """The policy for a table that lost changes; `asked`: a new baseline of it is to come.

        Raises:
            SourceError: its values changed without a record in the log, and the policy for that is `stop`.
        """
        if not why.startswith(UNLOGGED_VALUES):
            return recreated(self.task, table)
        policy = rewritten(self.task, table)
        if policy == STOP and not asked:
            hint = "`tailrace resync` takes a new baseline; or set another policy (`ddl: {retype: ...}`)"
            raise SourceError(f"{why}, and its policy is `stop`", where=table, hint=hint)
        return policy

    def _refuse_renamed(self, source: LogSource, lost: Mapping[str, str]) -> None:
        """Raises TableMovedError if tables have other names since they were looked at, and one is lost of
        which nobody was told: it was perhaps asked for by a name that it has no longer."""
        states = self.known.states
        told = {t for t, why in lost.items() if t in self.suspended and states[t].why == why}
        if lost.keys() - told and self.watch.moved(source) != self._moved:
            raise TableMovedError("tables were renamed meanwhile", hint="they are looked up again")

    def _stops(self, source: LogSource, table: str, why: str, policy: str) -> bool:
        """Whether the task is about to end because a table was made again: not for one that somebody took out
        of the publication."""
        return policy == STOP and why in (MISSING, RECREATED) and table in self.watch.made_again(source)

    def _begins(self, table: str, state: TableLifecycle) -> bool:
        """Whether a table has lost nothing that a baseline will not have which comes by itself, or that is
        asked for; or it was never in the stream."""
        first = table not in self.known.baselines
        if self.task.policy(table).level >= MEDIUM and (state.gap or (first and self.task.baseline.enabled)):
            return True
        return first and table not in streams.newest(self.task).published
