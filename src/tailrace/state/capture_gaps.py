"""Gaps in a table's changes: changes made in the source while it was not captured are in no change table.

There are three ways to lose changes. Each ends with a new baseline, which has their result (a table that
stays removed gets none, so its gap does not end):

- the task's stream was lost, and an operator began a new one (`streams`: where LOG ended, where it begins);
- the table was removed, and added again (`commands`, and the baseline that answers `add`);
- the table was dropped and created again, the publication was altered, a partition with rows was attached, or
  values were rewritten (`commands`: capture asks for a baseline itself, or suspends the table until an
  operator does), or it got columns that its change table cannot have (the store asks for one).

A baseline that an operator asks for (`resync`) makes no gap: changes are captured meanwhile.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..config.task import Task
from ..model import sequence
from ..model.positions import ChangeNumber
from . import commands, streams
from .baselines import Baseline, all_baselines
from .commands import Command
from .streams import Renewed

SEQ, POSITION, NUMBER = "change_seq", "stream_position", "number"
_LAST = 10**sequence.NUMBER_DIGITS - 1
NEW_STREAM = "its stream was lost, and `tailrace resync --new-stream` began a new one"
ADDED_AGAIN = "it was removed, and added again"
UNSENT_ROWS = "it got partitions with rows that were never sent"
"""Start of capture's reason when it suspends a table for them."""
UNLOGGED_VALUES = "values of its rows changed without a record in the log"
"""Start of capture's reason when it suspends a table for these."""
UNSTORED = "changes were not stored"
"""Start of the store's reason when it suspends a table whose changes its change table cannot have."""
REMOVED = "it was removed, and is captured no longer"
MADE_AGAIN = (
    "it was dropped and created again, the publication was altered, it got partitions with rows, values "
    "changed without a record in the log, or its change table could not have its columns"
)


@dataclass(frozen=True)
class CaptureGap:
    """Changes are missing between two points of a table's history.

    Attributes:
        table, why: whose they are, and how they were lost.
        split: a kind of point (`change_seq`, `stream_position`) and a value: no change at or before it was
            captured after the gap.
        upto: points up to which none is missing, by their kind (`number` is one, too).
        onwards: points from which on none is missing; empty: not known yet.
        closed: whether the baseline that ends the gap is there.
        ends: whether one is to come, or there; a table that was removed gets none.
    """

    table: str
    why: str
    split: tuple[str, str]
    upto: Mapping[str, str] = field(default_factory=dict)
    onwards: Mapping[str, str] = field(default_factory=dict)
    closed: bool = True
    ends: bool = True


def of_table(task: Task, table: str) -> tuple[CaptureGap, ...]:
    """The gaps of a table, those of new streams first."""
    renewed = streams.renewed(task)
    begun = _begun(one for one in commands.read(task.commands_path) if one.table == table)
    if not renewed and not begun:
        return ()
    taken = [one for one in all_baselines(task.control_path("baselines")) if one.table == table]
    return (*_of_streams(table, renewed, taken), *_of_orders(table, begun, taken))


def needed(given: Iterable[Command], taken: Iterable[Baseline]) -> tuple[set[int], set[tuple[str, int]]]:
    """The records that show gaps: numbers of commands, and baselines (table and number)."""
    by_table: dict[str, list[Command]] = {}
    for order in given:
        by_table.setdefault(order.table, []).append(order)
    numbers, baselines, every = set[int](), set[tuple[str, int]](), list(taken)
    for table, mine in by_table.items():
        for begun, asked in _begun(mine):
            numbers.add(begun.number)
            if asked is None:
                continue
            numbers.add(asked.number)
            if (closes := _closing(asked, [one for one in every if one.table == table])) is not None:
                baselines.add((table, closes.number))
    return numbers, baselines


def _of_streams(table: str, renewed: Iterable[Renewed], taken: Sequence[Baseline]) -> list[CaptureGap]:
    found = []
    for one in renewed:
        closed = any(b.finished_at >= one.at for b in taken)
        upto = dict[str, str]({POSITION: one.after})
        onwards = dict[str, str]({SEQ: sequence.make(_time(one.at), 0)})
        if one.begin:
            onwards[POSITION] = one.begin
        upto |= {SEQ: one.change_seq, NUMBER: _number(sequence.number_of(one.change_seq))}
        onwards[NUMBER] = _number(ChangeNumber(sequence.number_of(one.change_seq) + 1))
        found.append(CaptureGap(table, NEW_STREAM, (POSITION, one.after), upto, onwards, closed))
    return found


def _of_orders(
    table: str, losses: Iterable[tuple[Command, Command | None]], taken: Sequence[Baseline]
) -> list[CaptureGap]:
    found = []
    for begun, asked in losses:
        removed = begun.action == commands.REMOVE
        # Capture had to stop, or to begin again, at this time: changes captured by then are before the gap.
        before = sequence.make(_time(begun.at) - 1, _LAST)
        upto = {SEQ: before} if removed else {}  # otherwise, changes may have been lost long before
        closes, onwards = _closing(asked, taken) if asked else None, dict[str, str]()
        if closes is not None:
            onwards = {POSITION: closes.position, SEQ: sequence.make(_time(closes.finished_at), 0)}
            onwards[NUMBER] = _number(ChangeNumber(closes.after + 1))
        why = (ADDED_AGAIN if asked else REMOVED) if removed else MADE_AGAIN
        closed = closes is not None
        ends = asked is not None or not removed
        found.append(CaptureGap(table, why, (SEQ, before), upto, onwards, closed, ends))
    return found


def _begun(given: Iterable[Command]) -> list[tuple[Command, Command | None]]:
    """The commands for a table that begin a gap, each with the one that asks for the baseline that ends it
    (None: it has not been given yet)."""
    found, removed, unsent = list[tuple[Command, Command | None]](), None, None
    for one in given:
        if one.action == commands.REMOVE:
            removed = removed or one
        elif one.action == commands.SUSPEND and one.why.startswith((UNSENT_ROWS, UNLOGGED_VALUES, UNSTORED)):
            unsent = unsent or one
        elif one.action == commands.RESUME:
            unsent = None  # an operator has checked that there were none
        elif one.action in commands.BASELINES:
            again = removed if one.action == commands.ADD else None
            made_again = one if (one.action, one.who) == (commands.RESYNC, commands.CAPTURE) else None
            if (begun := unsent or again or made_again) is not None:
                found.append((begun, one))
            unsent, removed = None, removed if again is None else None
    return [*found, *((one, None) for one in (unsent, removed) if one is not None)]


def _closing(asked: Command, taken: Iterable[Baseline]) -> Baseline | None:
    done = (one for one in taken if one.done and one.order >= asked.number)
    return min(done, key=lambda one: one.number, default=None)


def _time(at: dt.datetime) -> int:
    return sequence.time_part(at)


def _number(number: ChangeNumber) -> str:
    return f"{number:0{sequence.NUMBER_DIGITS}d}"
