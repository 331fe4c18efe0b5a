"""Reads the change rows of a range from the files of a Delta change table, in order and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ..errors import ConfigError, PositionError
from ..lake import delta as lake
from ..lake.opened import open_table
from ..lake.past import files_there
from ..model import sequence
from ..model.change import PREFIX
from ..model.positions import BEFORE_ALL, ChangeNumber, ChangeSeq, Position
from ..model.types import plain_schema
from ..state.capture_gaps import CaptureGap
from ..state.ledger import STORE_APP
from ..store.kept import Span, kept, kept_time, spans
from .capture_gaps import refuse_gaps
from .positions import PositionRange
from .watch import with_progress

_AGAIN = "open the table again, and request changes that are kept"
SEQ, POSITION = f"{PREFIX}change_seq", f"{PREFIX}stream_position"


class ChangeRows(Protocol):
    """Access to the rows of a change table."""

    @property
    def path(self) -> str:
        """The location for error messages."""

    @property
    def schema(self) -> pa.Schema:
        """Headers, then data columns."""

    def rows(
        self, start: PositionRange | None, end: PositionRange | None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Returns the rows between two positions, both included.

        Raises:
            PositionError: some of them may have been removed.
        """

    def refuse_gaps(self, start: PositionRange | None, end: PositionRange | None) -> None:
        """Raises GapError if changes between two positions, both included, were never captured."""

    def has(self, start: PositionRange, end: PositionRange) -> bool:
        """Returns whether there are rows between two positions, both included; ignores removed rows."""

    @property
    def max_number(self) -> ChangeNumber:
        """The greatest change number that the table is known to have or have had; 0 if unknown."""

    @property
    def monotonic(self) -> bool:
        """Whether change numbers only rise and no row arrives late."""

    def count_until(self, upto: PositionRange) -> int:
        """Returns the number of rows up to a position."""

    def rejects(self, start: PositionRange | None, end: PositionRange | None) -> pa.Table | None:
        """Returns rejected rows with the reason in `why`; None if no row was rejected."""


@dataclass(frozen=True)
class ChangeFiles:
    """One version of a change table. Rows that retention removes later can still be read.

    Attributes:
        path: the table's folder.
        schema: headers, then data columns.
        delta: the Delta table; None for a table without a file.
        gaps: the ranges in which changes were not captured.
    """

    path: str
    schema: pa.Schema
    delta: DeltaTable | None = None
    gaps: tuple[CaptureGap, ...] = ()

    @staticmethod
    def at(path: str, schema: pa.Schema | None = None) -> ChangeFiles:
        """Opens the newest version.

        Args:
            path: the table's folder.
            schema: columns of an empty table that is returned if there is no Delta table.

        Raises:
            ConfigError: there is no table, and no `schema` is given.
        """
        if not lake.exists(path):
            if schema is None:
                raise ConfigError("there is no change table", where=path, hint="pass a Delta table's folder")
            return ChangeFiles(path, schema)
        delta = open_table(path)
        return ChangeFiles(path, plain_schema(pa.schema(delta.schema().to_arrow())), delta)

    @property
    def max_number(self) -> ChangeNumber:
        """The greatest change number that the table has or had; 0 if it has none."""
        if self.delta is None:
            return BEFORE_ALL
        return ChangeNumber(max([0, kept(self.delta) or 0, *(s.high for s in self._spans.values())]))

    @cached_property
    def _spans(self) -> dict[str, Span]:
        """The change range of each file."""
        return {s.path: s for s in spans(self.delta, SEQ)} if self.delta else {}

    @cached_property
    def _dataset(self) -> ds.Dataset:
        assert self.delta is not None  # noqa: S101 - callers check this
        return lake.dataset(self.delta)

    def first(self, which: ds.Expression) -> tuple[ChangeSeq, Position] | None:
        """Returns `change_seq` and stream position of the first change for which a filter holds, or None."""
        best: tuple[ChangeSeq, Position] | None = None
        for fragment in self._fragments(which):
            if best is not None and self._first_of(fragment) > best[0]:
                break
            rows = self._places(fragment, which)
            if rows.num_rows:
                seq = pc.min(rows[SEQ])
                at = (seq.as_py(), rows.filter(pc.equal(rows[SEQ], seq))[POSITION][0].as_py())
                best = at if best is None else min(best, at)
        return best

    def last(self, which: ds.Expression) -> tuple[ChangeSeq, Position] | None:
        """Returns `change_seq` and stream position of the last change for which a filter holds, or None."""
        best: tuple[ChangeSeq, Position] | None = None
        for fragment in reversed(self._fragments(which)):
            span = self._spans.get(fragment.path.removeprefix("/"))
            if best is not None and span and span.high_seq and span.high_seq < best[0]:
                continue
            rows = self._places(fragment, which)
            if rows.num_rows:
                seq = pc.max(rows[SEQ])
                at = (seq.as_py(), pc.max(rows.filter(pc.equal(rows[SEQ], seq))[POSITION]).as_py())
                best = at if best is None else max(best, at)
        return best

    def _places(self, fragment: ds.ParquetFileFragment, which: ds.Expression) -> pa.Table:
        with files_there(self.path, _AGAIN):
            return fragment.to_table(schema=self.schema, columns=[SEQ, POSITION], filter=which)

    def _first_of(self, fragment: ds.ParquetFileFragment) -> str:
        span = self._spans.get(fragment.path.removeprefix("/"))
        return span.low_seq if span else ""

    def _fragments(self, which: ds.Expression | None) -> list[ds.ParquetFileFragment]:
        """Returns the files that may have matching rows, in change order, so that rows rarely
        need sorting."""
        if self.delta is None:
            return []
        return sorted(self._dataset.get_fragments(filter=which), key=self._first_of)

    def rows(
        self, start: PositionRange | None, end: PositionRange | None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Returns the rows between two positions, both included. Files outside the range are not read.

        Raises:
            PositionError: some of them may have been removed, or were never captured.
        """
        self.refuse_removed(start, end)
        self.refuse_gaps(start, end)
        which = and_filter(start and start.since(), end and end.upto())
        found = [(f, self._share(f, start, end)) for f in self._fragments(which)]
        return self._read([(f, None if share == 1 else which) for f, share in found if share], columns)

    def has(self, start: PositionRange, end: PositionRange) -> bool:
        """Returns whether there are rows between two positions, both included. Reads files up to the first
        match."""
        which = start.since() & end.upto()
        found = (f.scanner(self.schema, columns=[SEQ], filter=which) for f in self._fragments(which))
        with files_there(self.path, _AGAIN):
            return any(one.head(1).num_rows for one in found)

    def rows_where(self, which: ds.Expression | None, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the rows for which a filter holds; ignores removed rows."""
        return self._read([(f, which) for f in self._fragments(which)], columns)

    def _read(
        self, files: list[tuple[ds.ParquetFileFragment, ds.Expression | None]], columns: Sequence[str] | None
    ) -> pa.Table:
        names = self.schema.names if columns is None else list(columns)
        wanted = pa.schema([self.schema.field(n) for n in names])
        with files_there(self.path, _AGAIN):
            parts = [
                f.to_table(schema=self.schema, columns=names, filter=which)
                for f, which in with_progress("changes", files)
            ]
        return pa.concat_tables([wanted.empty_table(), *parts])

    def _share(
        self, fragment: ds.ParquetFileFragment, start: PositionRange | None, end: PositionRange | None
    ) -> float:
        """Returns the fraction of a file's rows in a range: 0, 1, or 0.5 for a part or an unknown part.

        Only ranges of change numbers are compared here; Arrow filters by the other columns.
        """
        span = self._spans.get(fragment.path.removeprefix("/"))
        if span is None or not span.known or any(p and p.column != "number" for p in (start, end)):
            return 0.5
        low = 0 if start is None else int(start.low)
        high = span.high if end is None else int(end.high)
        if span.high < low or span.low > high:
            return 0
        return 1 if low <= span.low and span.high <= high else 0.5

    @property
    def monotonic(self) -> bool:
        """Whether change numbers only rise; true for tables that a task stores."""
        return self.delta is None or lake.reached(self.delta, STORE_APP) is not None

    def count_until(self, upto: PositionRange) -> int:
        """Returns the number of rows up to a position."""
        return 0 if self.delta is None else int(self._dataset.count_rows(filter=upto.upto()))

    def rejects(self, start: PositionRange | None, end: PositionRange | None) -> pa.Table | None:
        """Returns None: tailrace stores rejects outside the change table."""
        return None

    def refuse_removed(
        self, start: PositionRange | None, end: PositionRange | None, needs: str | None = None
    ) -> None:
        """Raises PositionError if changes of a range are no longer kept.

        Args:
            start, end: the range.
            needs: the reason for the error message, for ranges that the user did not choose.
        """
        gone = kept(self.delta) if self.delta else None
        if gone is None:
            return
        first = min((s.low_seq for s in self._spans.values() if s.low_seq), default="")
        for one in (start, end):
            if one is not None and self._is_removed(one, gone):
                needed = needs or f"changes at {one.text} are requested"
                raise PositionError(
                    f"{needed}; only those after number {gone} are kept"
                    + (f", from change_seq {first} on" if first else ""),
                    where=self.path,
                    hint="retention removed the others (docs/retention.md): request later changes",
                )

    @property
    def were_removed(self) -> bool:
        """Whether retention has removed changes."""
        return self.delta is not None and kept(self.delta) is not None

    def refuse_gaps(self, start: PositionRange | None, end: PositionRange | None) -> None:
        """Raises GapError if changes of a range were never captured."""
        refuse_gaps(self, start, end)

    def _is_removed(self, one: PositionRange, removed: ChangeNumber) -> bool:
        """Returns whether changes at a position may have been removed.

        If neither the position nor the removed changes have a number or a time, the answer is whether it is
        before the first kept change; True if no change is kept.
        """
        if one.number is not None:
            return one.number <= removed
        assert self.delta is not None  # noqa: S101 - changes were removed from it
        if one.column == "change_seq" and (time := kept_time(self.delta)) is not None:
            return int(one.low[: sequence.TIME_DIGITS]) <= time
        lows = [s.low_seq for s in spans(self.delta, PREFIX + one.column) if s.low_seq]
        return one.low < min(lows) if lows else True


def and_filter(left: ds.Expression | None, right: ds.Expression | None) -> ds.Expression | None:
    """Returns the conjunction of two filters; None means no filter."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


def refuse_reversed(files: ChangeRows, start: PositionRange | None, end: PositionRange | None) -> None:
    """Raises an error if `end` is known to be before `start`.

    Call it for ranges without changes. Positions of different kinds are compared by reading changes.

    Raises:
        ConfigError: `end` is before `start`.
    """
    if start is not None and end is not None and _reversed(files, start, end):
        raise reversed_range(start, end)


def reversed_range(start: PositionRange, end: PositionRange) -> ConfigError:
    """Returns the error for a range that ends before it starts."""
    return ConfigError(f"{end.text} is before {start.text}", hint="pass the older position first")


def _reversed(files: ChangeRows, start: PositionRange, end: PositionRange) -> bool:
    if start.column == end.column:
        return end.high < start.low
    if start.number is not None and end.number is not None:
        return end.number < start.number
    # Times, numbers and positions order changes alike. If no change is between `start` and `end`, a change
    # between `end` and `start` proves that they are reversed. Without one, the order is unknown.
    return not files.has(start, end) and files.has(end.last, start.first)
