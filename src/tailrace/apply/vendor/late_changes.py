"""Changes of change tables that others made, and that come late: after their target has passed their place.

A target's progress is the number of the last change it has, so changes with lower numbers that come in later
files would be skipped, as those are that it has. Which there were is written down each time, file by file;
when there are others now, some have come late. Nobody can put them into the target where they belong.

What a call is going to pass is written down before it begins: should it end early, its target may have
passed that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ...errors import ApplyError
from . import applied_files
from .applied_files import FilePart, Files
from .table_notes import TableNotes

PASSED = "_passed"
"""The Delta table that says which changes targets had passed: `TableNotes` with, of a table, `upto` and
`changes`, and, of each of its files, `changes`, `checksum`, `last` and `there` (false: it is gone). With
`stood`, a call was going to pass them, whose target had that number; it holds until it notes what it did."""
_VALUES = pa.schema(
    [
        ("upto", pa.int64()),
        ("changes", pa.int64()),
        ("file", pa.string()),
        ("checksum", pa.decimal128(38, 0)),
        ("last", pa.string()),
        ("there", pa.bool_()),
        ("stood", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Passed:
    """A change number that a target has reached, and the changes up to it, by file."""

    upto: int = -1
    files: Files = field(default_factory=dict)

    @property
    def changes(self) -> int:
        """How many there are."""
        return applied_files.together(self.files.values()).changes


@dataclass
class _Known:
    """What was noted of a table. `changes`: with the files that are there; `gone`: those of `files` that are
    not; `files` None: an older version noted it, which did not tell files apart. `stood`: see `PASSED`."""

    upto: int = -1
    changes: int = 0
    files: dict[str, FilePart] | None = None
    gone: set[str] = field(default_factory=set)
    stood: int | None = None

    def copy(self) -> _Known:
        """Another one, to which rows may be added."""
        return replace(self, files=None if self.files is None else {**self.files}, gone={*self.gone})

    def add(
        self,
        upto: int | None,
        changes: int,
        file: str | None,
        checksum: Decimal | None,
        last: str | None,
        there: bool | None,
        stood: int | None,
    ) -> None:
        """Adds a row of the notes, of the table or of a file; the newest comes last."""
        self.stood = stood
        if file is None:
            self.upto, self.changes = -1 if upto is None else upto, changes
            if there is not None and self.files is None:
                self.files = {}
            return
        if self.files is None:
            self.files = {}
        self.files[file] = FilePart(changes, int(checksum or 0), last or "")
        (self.gone.discard if there else self.gone.add)(file)

    def late(self, now: Files) -> int:
        """How many changes have come late, at the most."""
        if self.files is None:
            return max(0, applied_files.together(now.values()).changes - self.changes)
        return applied_files.late(now, self.files, self.gone)


class LateChanges:
    """What the targets of a task had passed when they were last applied; a table below the folder `root`."""

    def __init__(self, root: str, task: str) -> None:
        self._notes = TableNotes(f"{root.rstrip('/')}/{PASSED}", task, _VALUES)
        self._noted: dict[str, _Known] = {}
        self._planned: dict[str, _Known] = {}
        for table, said in self._notes.rows():
            planned, whole = said["stood"] is not None, said["file"] is None
            if planned and whole:
                self._planned[table] = self._noted.get(table, _Known()).copy()
            elif whole:
                self._planned.pop(table, None)
            of = self._planned if planned else self._noted
            of.setdefault(table, _Known()).add(**said)
        self._known = dict(self._noted)

    def upto(self, table: str) -> int:
        """The change number up to which changes are to be looked at, for `late`."""
        return self._planned.get(table, self._noted.get(table, _Known())).upto

    def strange(self, tables: Mapping[str, str]) -> dict[str, str]:
        """Those of `tables` that had no changes when others had; none if nothing was applied so far. What a
        call that ended early was going to apply may be there."""
        had = self._known.keys() | self._planned.keys()
        return {t: said for t, said in tables.items() if had and t not in had}

    def late(
        self, found: Mapping[str, Files], reached: Mapping[str, int], look: Callable[[str, int], Files]
    ) -> dict[str, int]:
        """How many changes have come late, at the most, by table, if any.

        Args:
            found: the changes that there are now up to the number that `upto` says.
            reached: the progress of the targets; one that was made anew gets all changes.
            look: gives the changes of a table up to another number: where a call passed nothing of its plan,
                or not all of it.
        """
        counts = {}
        for table, now in sorted(found.items()):
            plan, known, stands = self._planned.get(table), self._known.get(table), reached.get(table, -1)
            if plan is not None and plan.stood is not None and stands > plan.stood:
                known = self._known[table] = plan
            elif known is None and plan is None and self._others_filled(stands):
                known = _Known(stands)
            elif known is None or known.upto > stands:
                continue
            seen = known is plan or (plan is None and table in self._noted)
            passed = now if seen else look(table, known.upto)
            many = known.late(passed)
            if many and stands < known.upto:  # it stopped midway: files that came since count up to its place
                mine = known.files or {}
                since = {f: part for f, part in look(table, stands).items() if f not in mine}
                many = min(many, known.late({f: part for f, part in passed.items() if f in mine} | since))
            if many:
                counts[table] = many
        return counts

    def _others_filled(self, stands: int) -> bool:
        """Whether the progress of a target is that of other tables, for one of which nothing was noted:
        its mapping leads to their target."""
        return stands >= 0 and bool(self._noted or self._planned)

    def plan(self, ends: Mapping[str, Passed], reached: Mapping[str, int]) -> None:
        """Writes down what targets are going to pass, before they do. Where an earlier call has not noted
        what it passed, the target stood where that one found it."""
        rows = []
        for table, end in sorted(ends.items()):
            stands = reached.get(table, -1)
            if end.upto > stands:
                earlier = self._known.get(table, _Known()).stood
                stood = stands if earlier is None else earlier
                self._planned.setdefault(table, _Known())
                rows += [(table, {**one, "stood": stood}) for one in self._new(table, end, stands)]
        self._notes.add(rows)

    def note(self, found: Mapping[str, Passed], reached: Mapping[str, int]) -> None:
        """Writes down what the targets have passed. Files that were taken away are no reason to forget what
        was in them, unless a target was made anew: `reached` is where they stood before."""
        self._notes.add(
            (table, values)
            for table, now in sorted(found.items())
            for values in self._new(table, now, reached.get(table, -1))
        )

    def _new(self, table: str, now: Passed, stood: int) -> Iterator[dict[str, Any]]:
        """The rows of what differs from what is noted of a table: of the table itself, and of its files.
        Where a call has planned something, there is one of the table in any case."""
        known, noted = self._known.get(table, _Known()), self._noted.get(table, _Known())
        had, written = known.files or {}, noted.files or {}
        if (
            table in self._planned
            or noted.files is None
            or (now.upto, now.changes) != (noted.upto, noted.changes)
        ):
            yield {"upto": now.upto, "changes": now.changes, "there": True}
        left = {f: had[f] if stood >= known.upto else FilePart() for f in had.keys() - now.files.keys()}
        for file, part in {**now.files, **left}.items():
            there = file in now.files
            if written.get(file) != part or there == (file in noted.gone):
                yield {"file": file, **asdict(part), "there": there}


def refuse(late: Mapping[str, int], where: str) -> None:
    """Raises ApplyError if changes of any table have come late."""
    if late:
        raise ApplyError(
            f"changes came after their target had passed their place: {'; '.join(said(late))}",
            where=where,
            hint="remove these targets and apply everything anew; or apply without them: `--on-late skip`; "
            "or, if numbers began anew, apply what came since as a folder of its own, with another `--name` "
            "(Delta targets)",
        )


def said(late: Mapping[str, int]) -> Sequence[str]:
    """One text a table.

    >>> said({"shop.item": 1200, "shop.line": 1})
    ['shop.item: 1,200 changes came late', 'shop.line: 1 change came late']
    """
    return [f"{table}: {many:,} change{'s' * (many > 1)} came late" for table, many in late.items()]
