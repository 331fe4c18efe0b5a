"""Change rows from the files of a Delta change table: those of a range, in order, without Spark."""

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
from ..lake.past import files_there
from ..model import sequence
from ..model.change import PREFIX
from ..model.positions import ChangeNumber
from ..model.types import plain_schema
from ..state.capture_gaps import CaptureGap
from ..state.ledger import STORE_APP
from ..store.kept import Span, kept, kept_time, spans
from .capture_gaps import refuse_gaps
from .points import Point
from .watch import watched

_AGAIN = "open the table again; it then says what is kept"
SEQ, POSITION = f"{PREFIX}change_seq", f"{PREFIX}stream_position"


class ChangeRows(Protocol):
    """Where the rows of a change table come from."""

    @property
    def path(self) -> str:
        """The place that errors name."""

    @property
    def schema(self) -> pa.Schema:
        """Headers, then data columns."""

    def rows(self, start: Point | None, end: Point | None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows between two places, both included.

        Raises:
            PositionError: some of them may be gone.
        """

    def refuse_gaps(self, start: Point | None, end: Point | None) -> None:
        """Raises GapError when changes between two places, both included, were never captured."""

    def has(self, start: Point, end: Point) -> bool:
        """Whether there are rows between two places, both included; whatever is gone."""

    @property
    def reached(self) -> ChangeNumber:
        """The greatest change number that it is known to have, or to have had; 0: none."""

    @property
    def rising(self) -> bool:
        """Whether change numbers rise, and no row comes late."""

    def many(self, upto: Point) -> int:
        """How many rows there are up to a place."""

    def bad(self, start: Point | None, end: Point | None) -> pa.Table | None:
        """Rows that are no changes, with the reason in `why`; None: there are none."""


@dataclass(frozen=True)
class ChangeFiles:
    """One version of a change table; what retention takes away later is still read from it.

    `gaps`: where changes of the source are missing in it.
    """

    path: str
    schema: pa.Schema
    delta: DeltaTable | None = None
    gaps: tuple[CaptureGap, ...] = ()

    @staticmethod
    def at(path: str, schema: pa.Schema | None = None) -> ChangeFiles:
        """The newest version; with a `schema` a table that is not there yet is an empty one.

        Raises:
            ConfigError: there is no table.
        """
        if not lake.exists(path):
            if schema is None:
                raise ConfigError("there is no change table", where=path, hint="name a Delta table's folder")
            return ChangeFiles(path, schema)
        delta = DeltaTable(path)
        return ChangeFiles(path, plain_schema(pa.schema(delta.schema().to_arrow())), delta)

    @property
    def reached(self) -> ChangeNumber:
        """The greatest change number that it has or had; 0: none."""
        if self.delta is None:
            return ChangeNumber(0)
        return ChangeNumber(max([0, kept(self.delta) or 0, *(s.high for s in self._spans.values())]))

    @cached_property
    def _spans(self) -> dict[str, Span]:
        """What is known of the changes of each file."""
        return {s.path: s for s in spans(self.delta, SEQ)} if self.delta else {}

    @cached_property
    def _dataset(self) -> ds.Dataset:
        assert self.delta is not None  # noqa: S101 - who asks has looked
        return lake.dataset(self.delta)

    def first(self, which: ds.Expression) -> tuple[str, str] | None:
        """`change_seq` and stream position of the first change for which something holds; None: there is
        none."""
        best: tuple[str, str] | None = None
        for fragment in self._fragments(which):
            if best is not None and self._first_of(fragment) > best[0]:
                break
            rows = self._places(fragment, which)
            if rows.num_rows:
                seq = pc.min(rows[SEQ])
                at = (seq.as_py(), rows.filter(pc.equal(rows[SEQ], seq))[POSITION][0].as_py())
                best = at if best is None else min(best, at)
        return best

    def last(self, which: ds.Expression) -> tuple[str, str] | None:
        """The same of the last change."""
        best: tuple[str, str] | None = None
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
        """The files that may have such rows, in order of their changes: rows need no sorting, as a rule."""
        if self.delta is None:
            return []
        return sorted(self._dataset.get_fragments(filter=which), key=self._first_of)

    def rows(self, start: Point | None, end: Point | None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows between two places, both included; files that have none of them are not read.

        Raises:
            PositionError: some of them may be gone, or were never captured.
        """
        self.refuse_gone(start, end)
        self.refuse_gaps(start, end)
        which = both(start and start.since(), end and end.upto())
        found = [(f, self._share(f, start, end)) for f in self._fragments(which)]
        return self._read([(f, None if share == 1 else which) for f, share in found if share], columns)

    def has(self, start: Point, end: Point) -> bool:
        """Whether there are rows between two places, both included; files are read up to the first one."""
        which = start.since() & end.upto()
        found = (f.scanner(self.schema, columns=[SEQ], filter=which) for f in self._fragments(which))
        with files_there(self.path, _AGAIN):
            return any(one.head(1).num_rows for one in found)

    def rows_where(self, which: ds.Expression | None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows for which something holds, whatever is gone."""
        return self._read([(f, which) for f in self._fragments(which)], columns)

    def _read(
        self, files: list[tuple[ds.ParquetFileFragment, ds.Expression | None]], columns: Sequence[str] | None
    ) -> pa.Table:
        names = self.schema.names if columns is None else list(columns)
        wanted = pa.schema([self.schema.field(n) for n in names])
        with files_there(self.path, _AGAIN):
            parts = [
                f.to_table(schema=self.schema, columns=names, filter=which)
                for f, which in watched("changes", files)
            ]
        return pa.concat_tables([wanted.empty_table(), *parts])

    def _share(self, fragment: ds.ParquetFileFragment, start: Point | None, end: Point | None) -> float:
        """Which share of a file's rows lies between two change numbers: 0, 1, or something between (also
        where its numbers are not known). Of other places, Arrow finds out by itself."""
        span = self._spans.get(fragment.path.removeprefix("/"))
        if span is None or not span.known or any(p and p.column != "number" for p in (start, end)):
            return 0.5
        low = -1 if start is None else int(start.low)
        high = span.high if end is None else int(end.high)
        if span.high < low or span.low > high:
            return 0
        return 1 if low <= span.low and span.high <= high else 0.5

    @property
    def rising(self) -> bool:
        """In what a task stores change numbers rise, and no row comes late."""
        return self.delta is None or lake.reached(self.delta, STORE_APP) >= 0

    def many(self, upto: Point) -> int:
        """How many rows there are up to a place."""
        return 0 if self.delta is None else int(self._dataset.count_rows(filter=upto.upto()))

    def bad(self, start: Point | None, end: Point | None) -> pa.Table | None:
        """Rows that are no changes: tailrace keeps those apart."""
        return None

    def refuse_gone(self, start: Point | None, end: Point | None, needs: str | None = None) -> None:
        """Raises PositionError when changes of a range are not kept any more; `needs`: what needs them, when
        nobody asked for them."""
        gone = kept(self.delta) if self.delta else None
        if gone is None:
            return
        first = min((s.low_seq for s in self._spans.values() if s.low_seq), default="")
        for one in (start, end):
            if one is not None and self._gone(one, gone):
                needed = needs or f"changes at {one.text} are asked for"
                raise PositionError(
                    f"{needed}; only those after number {gone} are kept"
                    + (f", from change_seq {first} on" if first else ""),
                    where=self.path,
                    hint="retention took them (docs/retention.md): ask for later ones",
                )

    @property
    def were_removed(self) -> bool:
        """Whether retention has removed changes."""
        return self.delta is not None and kept(self.delta) is not None

    def refuse_gaps(self, start: Point | None, end: Point | None) -> None:
        """Raises GapError when changes of a range were never captured."""
        refuse_gaps(self, start, end)

    def _gone(self, one: Point, gone: int) -> bool:
        """Whether what is at a place may be gone. Where neither it nor what is gone tells a number or a time,
        all before the first kept is; if none is kept, all."""
        if one.number is not None:
            return one.number <= gone
        assert self.delta is not None  # noqa: S101 - something is gone
        if one.column == "change_seq" and (time := kept_time(self.delta)) is not None:
            return int(one.low[: sequence.TIME_DIGITS]) <= time
        lows = [s.low_seq for s in spans(self.delta, PREFIX + one.column) if s.low_seq]
        return one.low < min(lows) if lows else True


def both(left: ds.Expression | None, right: ds.Expression | None) -> ds.Expression | None:
    """Where two conditions hold; None: always."""
    if left is None or right is None:
        return right if left is None else left
    return left & right
