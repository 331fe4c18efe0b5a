"""A table of a task: its changes, and its rows as of a position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..apply.mapping.table_map import task_map
from ..config.policies import MEDIUM
from ..config.task import Task
from ..engine.change_arrays import ChangeArrays, Ints, T
from ..errors import BaselineNeededError, PositionError, UnsupportedError
from ..lake import log
from ..lake.log import Layout
from ..lake.reading import fitted
from ..model import sequence
from ..model.change import PREFIX
from ..model.positions import BEFORE_ALL
from ..model.types import header_schema, plain_schema, schema_of
from ..query.as_of import OverlaidRows
from ..query.base_rows import LayoutRange, rename_base, tag_columns
from ..query.change_files import POSITION, SEQ, ChangeFiles, and_filter, refuse_reversed, reversed_range
from ..query.diff import diff_rows
from ..query.earlier_rows import EarlierRows, previous_seq
from ..query.positions import PositionLike, PositionRange, resolve_relative
from ..query.result import Result
from ..query.schema import common_layout, rename_to_layout
from ..query.table_changes import QUERY_HEADERS, STATE_HEADERS, TableChanges
from ..state.baselines import Baseline, all_baselines, read_baselines
from ..state.capture_gaps import of_table
from ..state.layouts import policy
from ..state.ledger import Stored
from ..state.totals import last_stored
from .position_checks import after, refuse_later, refuse_older
from .row_keys import RowKeys
from .target_rows import (
    baseline_layout,
    layouts_from,
    order_columns,
    read_rows,
    refuse_differing_column,
    refuse_features,
    refuse_incompatible,
)

if TYPE_CHECKING:
    from ..validate.target_versions import TargetVersion, TargetVersions

_END = "G" * 40
"""A text after every stream position."""


@dataclass(frozen=True, repr=False)
class TaskTable(TableChanges):
    """Queries of a change table, and `as_of`, `current` and `diff`, which also read the target.

    Columns that the task's policies keep out of its images (below level 2) are in no result.
    """

    files: ChangeFiles
    task: Task | None = None
    hidden: frozenset[str] = frozenset()

    @staticmethod
    def of(task: Task, name: str) -> TaskTable:
        """Returns a table of a task."""
        levels = policy(task, name)
        layouts, without = [], set[str]()
        for one in log.history(task.relations_path).get(name) or _baseline_layouts(task, name):
            hidden = levels.hidden(one.relation)
            without |= hidden
            kept = [c for c in one.relation.columns if c.name not in hidden]
            layouts.append(replace(one, relation=one.relation.with_columns(kept)))
        columns = layouts[-1].relation.columns if layouts else ()
        empty = pa.schema([*header_schema(), *schema_of(columns)])
        files = ChangeFiles.at(task.changes_path(name), empty)
        while len(layouts) > 1 and {c.name for c in layouts[-1].relation.columns} - {*files.schema.names}:
            layouts.pop()  # captured, but no change of it is stored yet
        # Read after the changes: a gap in them was recorded before they were captured.
        files = replace(files, gaps=of_table(task, name))
        key = tuple(layouts[-1].relation.key) if layouts else ()
        return TaskTable(name, files, key, layouts, task, frozenset(without))

    @property
    def only_tracked(self) -> bool:
        """Whether its changes are only in `tracking`: its policy is below level 2, and always was."""
        return self.files.delta is None and self._task.policy(self.name).level < MEDIUM

    @property
    def until_removed(self) -> TaskTable:
        """The same table, with ranges that may end after its removal; they have the changes up to it."""
        gaps = tuple(gap for gap in self.files.gaps if gap.ends)
        return replace(self, files=replace(self.files, gaps=gaps))

    def require_table(self) -> None:
        """Raises UnsupportedError for a table that is only tracked, as an empty result would be
        misleading."""
        if self.only_tracked:
            raise UnsupportedError(
                f"{self.name} has no change table: it is only tracked (its policy is below level 2)",
                where=self._task.name,
                hint="query the table `tracking` (`tailrace sql`)",
            )

    def current(self) -> Result:
        """Returns the rows as of the last stored change: the target, and the changes that are not applied to
        it yet."""
        return self.as_of(None)

    def as_of(self, at: PositionLike | None, *, base: pa.Table | None = None) -> Result:
        """Returns the table's rows after all changes up to a position (included).

        The target's newest earlier version is read, and the later changes are applied to it. With a `base`
        (the rows before the oldest stored change) the target is not read.

        Raises:
            PositionError: the position is before the table's baseline, or the necessary changes have been
                removed.
            UnsupportedError: the target is not a copy of the table, or cannot be read by this process.
            ConfigError: the target does not exist (any more).
        """
        return super().as_of(at, base=base) if base is not None else self._rows_at(at).answer

    def _earlier_sources(self, found: ChangeArrays, span: LayoutRange | None) -> Iterator[EarlierRows]:
        """Returns the sources of rows before changes: the target's versions, then earlier changes.

        If the changes begin before the baseline, its rows are those before the changes that follow it.
        """
        begin = self._first_after_baseline()
        if begin is not None:
            first = found.seq[0].as_py()
            yield lambda images: self._target_before(found, span, images)
            if begin > first:
                later = pc.greater_equal(found.seq, begin).to_numpy()
                yield lambda images: self._target_before(found, span, images[later[images]])
        yield from super()._earlier_sources(found, span)

    def _first_after_baseline(self) -> str | None:
        """Returns the change sequence of the first change after the oldest baseline; None if no
        change follows."""
        taken = _baselines(self._task, self.name)
        first = self.files.first(pc.field(POSITION) >= taken[-1].position) if taken else None
        return None if first is None else first[0]

    def _target_before(self, found: ChangeArrays, span: LayoutRange | None, images: Ints) -> pa.Table:
        """Returns the target's rows with the keys of some images, as of just before the first of them."""
        place = previous_seq(found.seq[int(images.min())].as_py()) if len(images) else None
        if place is None or span is None:
            return found.rows.slice(0, 0)
        keys = found.rows.select(list(found.key)).take(pa.array(images))
        rows = self._rows_at(place, RowKeys(keys.cast(tag_columns(keys.schema, span.layout)))).answer
        return self._align_base(rows.table(), found, span)

    def _rows_at(self, at: PositionLike | None, keys: RowKeys | None = None) -> _RowsAt:
        """Returns the rows as of a position, or those with some keys and others that changed since.

        Changes that were stored and applied since this table was opened are included.
        """
        from ..validate.target_versions import TargetVersions, missing_target

        task = self._readable_copy()
        if not (baselines := _baselines(task, self.name)):
            raise BaselineNeededError(
                f"{self.name} has no baseline yet",
                where=task.name,
                hint="`tailrace status` shows when it has one",
            )
        # The target and the record are read before the changes, which then include all of theirs.
        newest = TargetVersions.of(task, baselines[0])
        if newest.newest is None:
            raise missing_target(self.name, newest.path)
        older = (TargetVersions.of(task, *pair) for pair in zip(baselines[1:], baselines, strict=False))
        stored = last_stored(task.control_path("stored"))
        table = TaskTable.of(task, self.name)
        refused: PositionError | None = None
        for taken, versions in zip(baselines, chain([newest], older), strict=True):
            if refused is not None and not versions.intact:
                break
            try:
                table._refuse_before(at, taken, stored)
            except PositionError as error:
                refused = error
            else:
                return table._rows_up_to(at, versions, taken, stored, keys)
        assert refused is not None  # noqa: S101 - there is a baseline
        raise refused

    def _refuse_before(self, at: PositionLike | None, taken: Baseline, stored: Stored | None) -> None:
        """Raises PositionError if a position is not known to be after a baseline."""
        if at is not None:
            point = PositionRange.of(at)
            refuse_older(self.files, point, taken, stored, log.state(self._task.log_path))

    def _rows_up_to(
        self,
        at: PositionLike | None,
        versions: TargetVersions,
        taken: Baseline,
        stored: Stored | None,
        keys: RowKeys | None,
    ) -> _RowsAt:
        point = None if at is None else PositionRange.of(at)
        upto = None if point is None else point.upto()
        if point is not None:
            if self.files.were_removed:
                exact = versions.exactly(self._task.control_path("applied"), self.name, point)
                if exact is not None:
                    return replace(self._overlay(exact, taken, self._no_changes(), keys), stored=stored)
            self.files.refuse_removed(None, point)
            refuse_later(point, taken, stored, self._task.name)
        self.files.refuse_gaps(PositionRange.of(taken.position), point)
        later = None if upto is None else self.files.first(~upto)
        version = versions.before(later[1] if later else _END)
        if version.number < (taken.closes or 0):
            raise UnsupportedError(
                f"the baseline of {self.name} was read while the table was written to; its rows are exact "
                f"after change number {taken.closes}",
                where=self.task.name if self.task else self.name,
                hint="use a later position",
            )
        since = (pc.field(POSITION) >= taken.position) & after(version.number)
        lacks = PositionRange.of(version.number + 1)
        needs = (
            f"rows as of {point.text if point else 'now'} need the changes from number {lacks.text} on, "
            f"which the target's version {version.version} does not have"
        )
        self.files.refuse_removed(lacks, None, needs)
        rows = self.files.rows_where(and_filter(since, upto), self._columns_with(STATE_HEADERS))
        return replace(self._overlay(version, taken, rows, keys), stored=stored)

    def _no_changes(self) -> pa.Table:
        wanted = set(self._columns_with(STATE_HEADERS))
        return pa.schema([f for f in self.files.schema if f.name in wanted]).empty_table()

    def diff(self, start: PositionLike, end: PositionLike | None = None) -> Result:
        """Returns the rows that differ between `as_of(start)` and `as_of(end)`, or `current()` without `end`.

        The operations are those of `net`: insert, delete, update_preimage and update_postimage.

        Raises:
            ConfigError: `end` is known to be before `start`.
            PositionError, UnsupportedError: as for `as_of`.
        """
        start, end = resolve_relative(start), resolve_relative(end)
        known = self._rows_at(start)
        before = known.answer
        first, last = PositionRange.of(start), None if end is None else PositionRange.of(end)
        now = known.table
        now.files.refuse_removed(None, last)
        if last is not None:
            refuse_later(last, known.taken, known.stored, now._task.name)
        now.files.refuse_gaps(PositionRange.of(known.taken.position), last)
        rows = now.files.rows_where(
            and_filter(~first.upto(), last and last.upto()), now._columns_with(QUERY_HEADERS)
        )
        if last is not None and not rows.num_rows:
            now._refuse_reversed(first, last, known)
        changes, schema = now._range(rows, before.schema, known.layouts, self.name)
        base = Result(schema, lambda: (fitted(batch, schema) for batch in before.batches()))
        return Result.of(diff_rows(changes, base), changes.aside)

    def _refuse_reversed(self, first: PositionRange, last: PositionRange, known: _RowsAt) -> None:
        """Raises an error if the rows as of `last` are known to be older than those as of `first`."""
        refuse_reversed(self.files, first, last)
        if self.files.first(first.upto() & ~last.upto()):
            raise reversed_range(first, last)
        refuse_older(self.files, last, known.taken, known.stored, log.state(self._task.log_path))

    def _columns_with(self, headers: tuple[str, ...]) -> list[str]:
        """Returns the data columns of the change table, and some of its headers."""
        names = self.files.schema.names
        return [n for n in names if not n.startswith(PREFIX) or n.removeprefix(PREFIX) in headers]

    def _readable_copy(self) -> Task:
        """Returns the task, if the target is a copy of the table that this process can read."""
        task = self._task
        why, ask = None, "its history, its net changes or its pairs"
        if task.policy(self.name).level < MEDIUM:
            why, ask = (
                "it is only tracked (its policy is below level 2)",
                "the table `tracking` (`tailrace sql`)",
            )
        elif task.target.database:
            why = "its target is a database, which keeps no versions"
        elif not task_map(task, self.name).plain:
            why = "its target is mapped"
        elif task.table(self.name).rule_mode == "archive":
            why = "its target is an archive"
        if why is not None:
            raise UnsupportedError(
                f"the rows of {self.name} are not known as of a position: {why}",
                where=task.name,
                hint=f"query {ask}",
            )
        return task

    @property
    def _task(self) -> Task:
        assert self.task is not None  # noqa: S101 - `of` gives it
        return self.task

    def _overlay(
        self, version: TargetVersion, taken: Baseline, rows: pa.Table, keys: RowKeys | None
    ) -> _RowsAt:
        from ..validate.target_versions import deletion_mark

        where = f"{version.path}, version {version.version}"
        table = version.open()
        refuse_features(table.unread, where)
        data = table.dataset()
        mark = deletion_mark(self.task, self.name) if self.task else None
        layouts = layouts_from(self.layouts, taken, self.hidden, version.number)
        own = [f for f in data.schema if f.name not in {mark, *self.hidden}]
        have = plain_schema(pa.schema(order_columns(own, layouts[0].relation)))
        if rows.num_rows:
            refuse_incompatible(layouts, pc.max(rows[SEQ]).as_py(), where)
        changes, schema = self._range(rows, have, layouts, where)
        if keys is not None:
            mine = rename_base(keys.table, layouts[0].relation.key, self.layouts, layouts[0])
            keys = RowKeys(mine).with_keys_of(changes.rows.filter(pa.array(changes.oper != T)), changes.key)
        living = pc.field(mark).is_null() if mark is not None and mark in data.schema.names else None
        reached = sequence.number_of(pc.max(rows[SEQ]).as_py()) if rows.num_rows else BEFORE_ALL
        layouts = layouts_from(self.layouts, taken, self.hidden, max(version.number, reached))
        schema = tag_columns(schema, layouts[0])
        made = OverlaidRows(
            lambda: read_rows(data, schema, living, where, keys), schema, changes, where
        ).result()
        return _RowsAt(self, made, layouts, taken)

    def _range(
        self, rows: pa.Table, have: pa.Schema, layouts: list[Layout], where: str
    ) -> tuple[ChangeArrays, pa.Schema]:
        """Returns the changes to apply to rows with the columns `have` in the first of these layouts, and the
        columns of the result."""
        names = self.files.schema.names
        if not rows.num_rows:
            key = [k for k in layouts[0].relation.key if k in have.names]
            headers = [f for f in rows.schema if f.name.startswith(PREFIX)]
            nothing = pa.schema([*headers, *have]).empty_table()
            return ChangeArrays.of(nothing, key, have.names, name=self.name), have
        layout = common_layout(layouts, sequence.FIRST, pc.max(rows[SEQ]).as_py())
        relation = layout.relation
        if relation.relid != layouts[0].relation.relid:
            raise UnsupportedError(
                f"{self.name} was dropped and created again before this position",
                where=where,
                hint="use a position before that, or after its new baseline",
            )
        older = {c.attnum for c in layouts[0].relation.columns}
        for c in relation.columns:
            refuse_differing_column(c, have, c.attnum in older, where)
        schema = schema_of(relation.columns)
        chosen = [c.name for c in relation.columns]
        rows, bits = rename_to_layout(rows, names, chosen, layout)
        return ChangeArrays.of(rows, relation.key, chosen, layout=bits, name=self.name), schema


def _baselines(task: Task, name: str) -> list[Baseline]:
    """Returns the baselines of a table to which changes can be applied, the newest first."""
    found = {b.number: b for b in all_baselines(task.control_path("baselines")) if b.table == name and b.done}
    return list(reversed(found.values()))


def _baseline_layouts(task: Task, name: str) -> list[Layout]:
    """Returns the layout of the newest baseline, if there is one, for a table without a layout
    from a change."""
    taken = read_baselines(task.control_path("baselines")).get(name)
    return [] if taken is None else [baseline_layout(taken)]


@dataclass(frozen=True)
class _RowsAt:
    """Rows as of a position.

    Attributes:
        table: the table when they were read.
        answer: the rows.
        layouts: their layout, and later ones.
        taken: the baseline that they are based on.
        stored: the record of the changes stored before they were read.
    """

    table: TaskTable
    answer: Result
    layouts: list[Layout]
    taken: Baseline
    stored: Stored | None = None
