"""Queries over the changes of one table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..engine import chains, pairs, rebuild, sql_server, transactions
from ..engine import history as versions
from ..engine import net as netted
from ..engine.change_arrays import ChangeArrays, Ints, with_reasons
from ..engine.columns import MaskBits
from ..engine.earlier_rows import rows_after
from ..engine.key_timelines import ABSENT_HEADER, list_names
from ..engine.keyless_changes import as_keyed, net_of_keyless
from ..engine.net import Deduplication
from ..engine.reserved_names import refuse_reserved
from ..engine.sql_server import Style
from ..errors import BaselineNeededError, ConfigError
from ..lake.log import Layout
from ..model.change import PREFIX, Column
from ..model.positions import ChangeNumber, ChangeSeq
from ..store.tables import plain_name
from .as_of import OverlaidRows
from .base_rows import LayoutRange, align_base, rename_base, require_columns, tag_columns
from .change_files import SEQ, ChangeRows, refuse_reversed
from .column_identity import Names, align_columns, names_over_time, rename_layout, with_dropped
from .earlier_rows import EarlierRows, add_earlier_rows, previous_seq
from .positions import PositionLike, PositionRange, resolve_relative
from .result import Result, abbreviate
from .schema import common_layout, incompatibility, layout_at, layouts_between

if TYPE_CHECKING:
    from .history.table import HistoryTable

STATE_HEADERS = ("change_seq", "change_oper", "column_mask", "change_mask")
"""Headers needed to compute the resulting rows."""
QUERY_HEADERS = ("change_seq", "change_oper", "transaction_id", "timestamp", "column_mask", "change_mask")
"""Headers that every query needs."""
CHANGE_HEADERS = (*QUERY_HEADERS, "user_name")
"""Headers of queries that return single changes."""
_MASK_NAMES = {"change_mask": "columns_changed", "column_mask": "columns_present"}


@dataclass(frozen=True, repr=False)
class TableChanges:
    """A change table that is queried without a JVM. The rows that a query reads are held in memory.

    A range goes from `start` to `end`, both included. A position is a time, a `change_seq`, a stream position
    or a change number (`positions.PositionLike`). Without `start`, a range begins with the oldest change that
    is kept. A range that ends before it starts is a ConfigError.

    A column is identified across renames. `names` applies to the columns of a result and to those in
    arguments: `now` uses today's names, `then` those at the end of the range.

    Attributes:
        name: the source table.
        files: its change table.
        key: names of the key's columns.
        layouts: the source table's layouts, in order. If empty, the data columns of the change table are
            used.
    """

    name: str
    files: ChangeRows
    key: tuple[str, ...] = ()
    layouts: Sequence[Layout] = ()

    def __repr__(self) -> str:
        columns = ", ".join(abbreviate(self.columns))
        return f"{type(self).__name__}({self.name!r}, key={list(self.key)}, columns=[{columns}])"

    @property
    def columns(self) -> list[str]:
        """The data columns of the newest layout."""
        if self.layouts:
            return [c.name for c in self.layouts[-1].relation.columns]
        return [n for n in self.files.schema.names if not n.startswith(PREFIX)]

    def changes(
        self,
        start: PositionLike | None = None,
        end: PositionLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        columns_changed: bool = False,
        names: Names = "now",
    ) -> Result:
        """Returns the rows of the change table in order, as they are stored.

        Args:
            start, end: the range.
            columns: the data columns to return, all by default.
            columns_changed: returns `columns_changed` and `columns_present` (lists of column names, NULL:
                all) instead of the change mask and the column mask.
            names: which column names to use.
        """
        found = self._read(start, end, columns, None, names)[0]
        return Result.of(_with_column_names(found) if columns_changed else found.rows, found.aside)

    def as_of(self, at: PositionLike | None, *, base: pa.Table | None = None) -> Result:
        """Returns the table's rows after all changes up to a position.

        Args:
            at: the position (included); None for all changes that are kept.
            base: the rows before the oldest change that is kept. Pass `changes.schema.empty_table()` for a
                table whose changes are all kept.

        Raises:
            BaselineNeededError: `base` is missing, or a value is neither in an image nor in the base.
        """
        if base is None:
            raise BaselineNeededError(
                "the rows before the oldest change are unknown",
                where=self.files.path,
                hint="pass base=rows; if the table was empty: base=changes.schema.empty_table()",
            )
        found, span = self._read(None, at, None, STATE_HEADERS)
        schema = found.rows.select(list(found.columns)).schema
        under = align_base(base, schema, self.layouts, span, self.name)
        rows = require_columns(under, found.columns, self.name).cast(schema)
        schema = schema if span is None else tag_columns(schema, span.layout)
        return OverlaidRows(lambda: iter(rows.to_batches()), schema, found, self.files.path).result()

    @property
    def schema(self) -> pa.Schema:
        """The data columns and types of the newest layout."""
        return pa.schema([self.files.schema.field(n) for n in self.columns])

    def net(
        self,
        start: PositionLike | None = None,
        end: PositionLike | None = None,
        *,
        deduplicationMode: Deduplication = "netChanges",  # noqa: N803 - Spark's names
        computeUpdates: bool = True,  # noqa: N803
        base: pa.Table | None = None,
        columns: Sequence[str] | None = None,
        names: Names = "now",
    ) -> Result:
        """Returns at most one change per key; see `engine.net.net`."""
        return self._query(
            lambda c, base: (
                netted.net(c, base=base, deduplicationMode=deduplicationMode, computeUpdates=computeUpdates)
                if c.key
                else net_of_keyless(c, base=base, mode=deduplicationMode, updates=computeUpdates)
            ),
            start, end, columns, base=base, names=names,
        )  # fmt: skip

    def net_changes(
        self,
        start: PositionLike | None = None,
        end: PositionLike | None = None,
        style: Style = "all",
        *,
        base: pa.Table | None = None,
        columns: Sequence[str] | None = None,
        names: Names = "now",
    ) -> Result:
        """Returns the net changes in a style of SQL Server; see `engine.sql_server.net_changes`."""
        return self._query(
            lambda c, base: sql_server.net_changes(c, style, base=base),
            start,
            end,
            columns,
            base=base,
            names=names,
        )

    def history(
        self,
        start: PositionLike | None = None,
        end: PositionLike | None = None,
        *,
        track_history_column_list: Sequence[str] | None = None,
        track_history_except_column_list: Sequence[str] | None = None,
        committed: bool = False,
        base: pa.Table | None = None,
        columns: Sequence[str] | None = None,
        names: Names = "now",
    ) -> Result:
        """Returns every version of every row that changed in the range; see `engine.history.history`."""
        return self._query(
            lambda c, base: versions.history(
                c,
                base=base,
                track_history_column_list=track_history_column_list,
                track_history_except_column_list=track_history_except_column_list,
                committed=committed,
            ),
            start, end, columns, base=base, names=names,
        )  # fmt: skip

    def keep_history(
        self,
        path: str,
        *,
        stored_as_scd_type: int = 2,
        track_history_column_list: Sequence[str] | None = None,
        track_history_except_column_list: Sequence[str] | None = None,
        bitemporal: bool = False,
        base: pa.Table | None = None,
        start: PositionLike | None = None,
    ) -> HistoryTable:
        """Creates or updates a Delta table with the history of this table, and returns it.

        The first call reads all changes that are kept, later calls only those since. The history is ordered
        by `change_seq`; see `HistoryTable`.

        Args:
            path: folder of the history's Delta table.
            stored_as_scd_type: 1 or 2, as in Spark's AUTO CDC.
            track_history_column_list, track_history_except_column_list: columns whose change starts a new
                version.
            bitemporal: keeps versions that late events replace, with system times.
            base: the table's rows before the first change.
            start: start of a new history; by default the oldest change that is kept.

        Raises:
            PositionError: changes that the history needs are no longer kept, or were never captured.
        """
        from ..engine.history_updates import HistoryRules
        from .history.checks import choose_columns
        from .history.follow import follow

        only, but = track_history_column_list, track_history_except_column_list
        tracked = choose_columns(self.columns, only, but, "track_history_column_list")
        chosen = None if only is None and but is None else tuple(tracked)
        rules = HistoryRules(self.key, tuple(self.columns), stored_as_scd_type, chosen, True, bitemporal)
        return follow(self, path, rules, base, resolve_relative(start))

    def pairs(
        self,
        start: PositionLike | None = None,
        end: PositionLike | None = None,
        *,
        base: pa.Table | None = None,
        columns: Sequence[str] | None = None,
        names: Names = "now",
    ) -> Result:
        """Returns one row per change, with the before and the after image; see `engine.pairs.pairs`."""
        return self._query(
            lambda c, base: pairs.pairs(c if c.key else as_keyed(c), base=base),
            start, end, columns, CHANGE_HEADERS, base, names,
        )  # fmt: skip

    def chain(
        self,
        key: Mapping[str, Any],
        start: PositionLike | None = None,
        end: PositionLike | None = None,
        *,
        base: pa.Table | None = None,
        columns: Sequence[str] | None = None,
        names: Names = "now",
    ) -> Result:
        """Returns the changes of all rows that ever had a key; see `engine.chains.chain`."""
        return self._query(
            lambda c, base: chains.chain(c, key, base=base), start, end, columns, CHANGE_HEADERS, base, names
        )

    def rebuild(
        self,
        start: PositionLike | None = None,
        end: PositionLike | None = None,
        *,
        base: pa.Table | None = None,
        names: Names = "now",
    ) -> Result:
        """Returns the change rows with complete images; see `engine.rebuild.rebuild`."""
        return self._query(lambda c, base: rebuild.rebuild(c, base=base), start, end, None, None, base, names)

    def transactions(self, start: PositionLike | None = None, end: PositionLike | None = None) -> Result:
        """Returns the transactions that changed this table; see `engine.transactions.transactions`."""
        return self._query(
            lambda c, _: transactions.transactions({self.name: c}), start, end, (), CHANGE_HEADERS
        )

    def arrays(
        self,
        start: PositionLike | None = None,
        end: PositionLike | None = None,
        columns: Sequence[str] | None = None,
        *,
        headers: Sequence[str] | None = None,
        names: Names | Mapping[int, str] = "now",
        defaults: bool = False,
    ) -> ChangeArrays:
        """Returns the changes of a range for the functions of `tailrace.engine`.

        Args:
            start, end: the range.
            columns: the data columns to read, all by default.
            headers: the headers to read, without their prefix; all by default.
            names: which column names to use, or names by column number.
            defaults: fills older images of a column that was added with a default.

        Raises:
            ConfigError: `end` is before `start`, or a column does not exist.
            PositionError: some of the changes are no longer kept.
            UnsupportedError: a column changed incompatibly within the range.
        """
        return self._read(start, end, columns, headers, names, defaults)[0]

    def rename_base(self, base: pa.Table) -> pa.Table:
        """Returns base rows with the current names of their columns; see `base_rows.rename_base`."""
        return rename_base(base, self.columns, self.layouts, self.layouts[-1]) if self.layouts else base

    def require_table(self) -> None:
        """Raises an error if there is no change table. Here, there always is one."""

    def layout_start(self, last: ChangeNumber | None) -> ChangeSeq | None:
        """Returns the change sequence at which the layout of a change number begins.

        Args:
            last: the change number; None for the newest layout.

        Returns:
            None if no layouts are known.
        """
        if not self.layouts:
            return None
        return (
            self.layouts[-1] if last is None else layout_at(self.layouts, PositionRange.of(last))
        ).from_seq

    def incompatibility(self, first: ChangeSeq, last: ChangeSeq) -> str | None:
        """Returns why the columns at two change sequences are incompatible, or None if they are compatible.

        Renamed and added columns are compatible.
        """
        return incompatibility(self.layouts, first, last, names=False, defaults=True)

    def column_numbers(self, layout: ChangeSeq | None) -> dict[str, int]:
        """Returns the column numbers by name in a layout; empty if no layouts are known.

        Args:
            layout: the change sequence at which the layout begins; None for the newest.
        """
        if not self.layouts:
            return {}
        one = self.layouts[-1] if layout is None else layouts_between(self.layouts, layout, layout)[-1]
        return {c.name: c.attnum for c in one.relation.columns}

    @property
    def defaults(self) -> dict[int, pa.Array]:
        """The default values, by column number, of columns that were added with a default."""
        from ..targets.layout_changes import missing_value

        first: dict[int, Column] = {}
        for one in self.layouts:
            for c in one.relation.columns:
                first.setdefault(c.attnum, c)
        return {n: missing_value(c, c.missing) for n, c in first.items() if c.missing is not None}

    def _read(
        self,
        start: PositionLike | None,
        end: PositionLike | None,
        columns: Sequence[str] | None,
        headers: Sequence[str] | None,
        names: Names | Mapping[int, str] = "now",
        defaults: bool = False,
    ) -> tuple[ChangeArrays, LayoutRange | None]:
        """Returns the changes of a range with columns named as requested, and their layout (None
        if unknown)."""
        self.require_table()
        stored = self.files.schema.names
        if not self.layouts and (missing := [n for n in columns or () if n not in stored]):
            raise self._no_column(missing, self.columns)
        keys = {*self.key, *(k for one in self.layouts for k in one.relation.key)}
        data = None if columns is None else names_over_time(self.layouts, [*columns, *keys])
        shown = None if headers is None else {PREFIX + n for n in headers}
        wanted = [
            n
            for n in stored
            if (n.startswith(PREFIX) and (shown is None or n in shown))
            or (not n.startswith(PREFIX) and (data is None or n in data or plain_name(n) in data))
        ]
        low, high = (None if p is None else PositionRange.of(p) for p in (start, end))
        rows = self.files.rows(low, high, wanted)
        if not rows.num_rows:
            refuse_reversed(self.files, low, high)
        if not self.layouts:
            found = ChangeArrays.of(rows, self.key, columns, layout=stored, name=self.name)
            bad = self.files.rejects(low, high)
            made = found if bad is None else replace(found, aside=_all_rejects(found.aside, bad))
            return made, None
        span = self._span(rows, high, data, defaults)
        within = layouts_between(self.layouts, span.first, span.last)
        there = span.layout if isinstance(names, str) else with_dropped(span.layout, within, stored)
        shown_as = rename_layout(there, self.layouts, names)
        every = shown_as.relation
        if missing := [n for n in columns or () if n not in {c.name for c in every.columns}]:
            raise self._no_column(missing, [c.name for c in every.columns], " in this range")
        asked = None if columns is None else {*columns, *every.key}
        chosen = [c for c in every.columns if asked is None or c.name in asked]
        shown_as = replace(shown_as, relation=every.with_columns(chosen))
        rows, bits = align_columns(rows, stored, within, there, shown_as, self.defaults if defaults else None)
        made = ChangeArrays.of(rows, every.key, [c.name for c in chosen], layout=bits, name=self.name)
        return made, replace(span, layout=replace(shown_as, relation=every))

    def _no_column(self, missing: Sequence[str], there: Sequence[str], where: str = "") -> ConfigError:
        what = f"{self.name} has no column {', '.join(missing)}{where}"
        return ConfigError(what, hint=f"it has {', '.join(there)}")

    def _span(
        self, rows: pa.Table, end: PositionRange | None, only: Collection[str] | None, defaults: bool
    ) -> LayoutRange:
        """Returns the first and last change sequence of the rows of a range, and their layout.

        Without rows, the layout at the range's end is used: layout changes within the range do not matter
        then.
        """
        if rows.num_rows:
            seqs = pc.min_max(rows[SEQ]).as_py()
            first, last = seqs["min"], seqs["max"]
        else:
            first = last = (self.layouts[-1] if end is None else layout_at(self.layouts, end)).from_seq
        layout = common_layout(self.layouts, first, last, only=only, names=False, defaults=defaults)
        return LayoutRange(layout, first, last)

    def _query(
        self,
        question: Callable[[ChangeArrays, pa.Table | None], pa.Table],
        start: PositionLike | None,
        end: PositionLike | None,
        columns: Sequence[str] | None = None,
        headers: Sequence[str] | None = QUERY_HEADERS,
        base: pa.Table | None = None,
        names: Names = "now",
    ) -> Result:
        found, span = self._read(start, end, columns, headers, names)
        if base is None:
            found = add_earlier_rows(found, self._earlier_sources(found, span))
            return Result.of(question(found, None), found.aside)
        return Result.of(question(found, self._align_base(base, found, span)), found.aside)

    def _align_base(self, base: pa.Table, found: ChangeArrays, span: LayoutRange | None) -> pa.Table:
        """Returns base rows with the columns of the changes."""
        schema = found.rows.select(list(found.columns)).schema
        return align_base(base, schema, self.layouts, span, self.name)

    def _earlier_sources(self, found: ChangeArrays, span: LayoutRange | None) -> Iterator[EarlierRows]:
        """Yields the sources of rows before the changes: the earlier changes that are kept."""
        yield lambda images: self._kept_before(found, span, images)

    def _kept_before(self, found: ChangeArrays, span: LayoutRange | None, images: Ints) -> pa.Table:
        """Returns the rows that the changes before the given images contain."""
        place = previous_seq(found.seq[int(images.min())].as_py())
        if place is None:
            return found.rows.slice(0, 0)
        names = {} if span is None else {c.attnum: c.name for c in span.layout.relation.columns}
        before, older = self._read(None, place, None if span is None else found.columns, STATE_HEADERS, names)
        rows = rows_after(before)
        lists, rows = rows[ABSENT_HEADER], rows.drop_columns([ABSENT_HEADER])
        if older is not None:
            rows = rows.cast(tag_columns(rows.schema, older.layout))
        return self._align_base(rows, found, span).append_column(ABSENT_HEADER, lists)


def _all_rejects(aside: pa.Table, bad: pa.Table) -> pa.Table:
    """Returns the rejects of the changes and of the format in their common columns; the reasons are the last
    column."""
    mine, theirs = aside.column_names[:-1], {*bad.column_names[:-1]}
    rows = aside.select([n for n in mine if n in theirs])
    both = pa.concat_tables([rows, bad.select(rows.column_names).cast(rows.schema)])
    reasons = pa.chunked_array([*aside.columns[-1].chunks, *bad.columns[-1].chunks], pa.string())
    return with_reasons(both, reasons)


def _with_column_names(found: ChangeArrays) -> pa.Table:
    """Returns the rows of `found` with lists of column names instead of masks.

    Raises:
        ConfigError: a data column has the name of such a list.
    """
    rows = found.rows
    masks = {found.header(m): n for m, n in _MASK_NAMES.items() if found.header(m) in rows.column_names}
    refuse_reserved("changes", found.columns, masks.values(), found.name)
    for mask, name in masks.items():
        bits = MaskBits.of(rows[mask], found.ordinals, null=False)
        nulls = rows[mask].is_null().to_numpy()
        names = list_names(bits.bits[bits.codes], found.columns, nulls)
        rows = rows.set_column(rows.column_names.index(mask), name, names)
    return rows
