"""A table of a task: its changes, and its rows as they stood at any place that the target and they reach."""

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
from ..lake.past import at_version
from ..lake.reading import dataset, fitted
from ..model import sequence
from ..model.change import PREFIX
from ..model.types import header_schema, plain_schema, schema_of
from ..query.as_of import LaidOver
from ..query.base_rows import LayoutRange, named, told
from ..query.change_files import POSITION, SEQ, ChangeFiles, both
from ..query.diff import different
from ..query.earlier_rows import Earlier, just_before
from ..query.layouts import in_layout, layout_of
from ..query.points import Place, Point, absolute
from ..query.ranges import refuse_reversed, reversed_places
from ..query.result import Result
from ..query.table_changes import ORDER, STATE, TableChanges
from ..state.baselines import Baseline, all_baselines, read_baselines
from ..state.capture_gaps import of_table
from ..state.layouts import policy
from ..state.ledger import Stored
from ..state.totals import last_stored
from .place_checks import after, refuse_later, refuse_older
from .row_keys import RowKeys
from .target_rows import begun_by, in_order, layouts_from, read, refuse_broken, refuse_features, refuse_other

if TYPE_CHECKING:
    from ..validate.versions import Version, Versions

_END = "G" * 40
"""Behind every stream position."""


@dataclass(frozen=True, repr=False)
class TaskTable(TableChanges):
    """The same questions as to any change table, and `as_of`, `current` and `diff`, which the target serves.
    Columns that the task's policies keep out of its images (below level 2) are in no answer."""

    files: ChangeFiles
    task: Task | None = None
    hidden: frozenset[str] = frozenset()

    @staticmethod
    def of(task: Task, name: str) -> TaskTable:
        """A table of a task."""
        levels = policy(task, name)
        layouts, without = [], set[str]()
        for one in log.history(task.relations_path).get(name) or _of_baseline(task, name):
            hidden = levels.hidden(one.relation)
            without |= hidden
            kept = [c for c in one.relation.columns if c.name not in hidden]
            layouts.append(replace(one, relation=one.relation.with_columns(kept)))
        columns = layouts[-1].relation.columns if layouts else ()
        empty = pa.schema([*header_schema(), *schema_of(columns)])
        files = ChangeFiles.at(task.changes_path(name), empty)
        while len(layouts) > 1 and {c.name for c in layouts[-1].relation.columns} - {*files.schema.names}:
            layouts.pop()  # captured, and no change of it is stored yet
        # Read after the changes: what they lack was recorded before they were captured.
        files = replace(files, gaps=of_table(task, name))
        key = tuple(layouts[-1].relation.key) if layouts else ()
        return TaskTable(name, files, key, layouts, task, frozenset(without))

    @property
    def only_tracked(self) -> bool:
        """Whether its changes are in `tracking` alone: its policy is below level 2, and always was."""
        return self.files.delta is None and self._task.policy(self.name).level < MEDIUM

    @property
    def until_removed(self) -> TaskTable:
        """The same table, whose ranges may end after its removal: they have what there is of it."""
        gaps = tuple(gap for gap in self.files.gaps if gap.ends)
        return replace(self, files=replace(self.files, gaps=gaps))

    def refuse(self) -> None:
        """Raises UnsupportedError for a table that is only tracked: an answer without rows would say that
        nothing happened."""
        if self.only_tracked:
            raise UnsupportedError(
                f"{self.name} has no change table: it is only tracked (its policy is below level 2)",
                where=self._task.name,
                hint="ask for the table `tracking` (`tailrace sql`)",
            )

    def current(self) -> Result:
        """The table as of the last change that is stored: the target, and what is not applied to it yet."""
        return self.as_of(None)

    def as_of(self, at: Place | None, *, base: pa.Table | None = None) -> Result:
        """The table's rows once all changes up to a place (included) were done.

        The target's newest version of before is read, and the changes since are laid over it. With a `base`
        (the rows before the oldest change that is kept) the target is not asked.

        Raises:
            PositionError: the place is before the table's baseline, or what it needs is not kept any more.
            UnsupportedError: the target is no copy of the table, or cannot be read here.
            ConfigError: there is no target (any more).
        """
        return super().as_of(at, base=base) if base is not None else self._rows_at(at).answer

    def _earlier(self, found: ChangeArrays, span: LayoutRange | None) -> Iterator[Earlier]:
        """What knows rows of before changes: the target's versions, then earlier changes. Where the changes
        begin before the baseline, its rows are those of before the ones that follow it."""
        begin = self._begin()
        if begin is not None:
            first = found.seq[0].as_py()
            yield lambda images: self._target_before(found, span, images)
            if begin > first:
                later = pc.greater_equal(found.seq, begin).to_numpy()
                yield lambda images: self._target_before(found, span, images[later[images]])
        yield from super()._earlier(found, span)

    def _begin(self) -> str | None:
        """The change sequence of the first change after the oldest baseline; None: there is none."""
        taken = _baselines(self._task, self.name)
        first = self.files.first(pc.field(POSITION) >= taken[-1].position) if taken else None
        return None if first is None else first[0]

    def _target_before(self, found: ChangeArrays, span: LayoutRange | None, images: Ints) -> pa.Table:
        """The target's rows with the keys of some images, as of just before the first of them."""
        place = just_before(found.seq[int(images.min())].as_py()) if len(images) else None
        if place is None or span is None:
            return found.rows.slice(0, 0)
        keys = found.rows.select(list(found.key)).take(pa.array(images))
        rows = self._rows_at(place, RowKeys(keys.cast(told(keys.schema, span.layout)))).answer
        return self._laid_under(rows.table(), found, span)

    def _rows_at(self, at: Place | None, keys: RowKeys | None = None) -> _Rows:
        """The rows as of a place, or those with some keys, and others that changed on the way. What was
        applied and stored since this table was opened counts."""
        from ..validate.versions import Versions, missing

        task = self._copied()
        if not (baselines := _baselines(task, self.name)):
            raise BaselineNeededError(
                f"{self.name} has no baseline yet",
                where=task.name,
                hint="`tailrace status` shows when it has",
            )
        # The target and the record first, then the changes: all that those have is among them.
        newest = Versions.of(task, baselines[0])
        if newest.newest < 0:
            raise missing(self.name, newest.path)
        older = (Versions.of(task, *pair) for pair in zip(baselines[1:], baselines, strict=False))
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
                return table._upto(at, versions, taken, stored, keys)
        assert refused is not None  # noqa: S101 - there is a baseline
        raise refused

    def _refuse_before(self, at: Place | None, taken: Baseline, stored: Stored | None) -> None:
        """Raises PositionError when a place is not known to be after a baseline."""
        if at is not None:
            point = Point.of(at)
            refuse_older(self.files, point, taken, stored, log.state(self._task.log_path))

    def _upto(
        self,
        at: Place | None,
        versions: Versions,
        taken: Baseline,
        stored: Stored | None,
        keys: RowKeys | None,
    ) -> _Rows:
        point = None if at is None else Point.of(at)
        upto = None if point is None else point.upto()
        if point is not None:
            if self.files.were_removed:
                exact = versions.exactly(self._task.control_path("applied"), self.name, point)
                if exact is not None:
                    return replace(self._laid_over(exact, taken, self._no_changes(), keys), stored=stored)
            self.files.refuse_gone(None, point)
            refuse_later(point, taken, stored, self._task.name)
        self.files.refuse_gaps(Point.of(taken.position), point)
        later = None if upto is None else self.files.first(~upto)
        version = versions.before(later[1] if later else _END)
        if version.number < taken.closes:
            raise UnsupportedError(
                f"the baseline of {self.name} was read while it was written to; its rows are exact after "
                f"change number {taken.closes}",
                where=self.task.name if self.task else self.name,
                hint="ask for a later place",
            )
        since = (pc.field(POSITION) >= taken.position) & after(version.number)
        lacks = Point.of(version.number + 1)
        needs = (
            f"rows as of {point.text if point else 'now'} need the changes from number {lacks.text} on, "
            f"which the target's version {version.version} lacks"
        )
        self.files.refuse_gone(lacks, None, needs)
        rows = self.files.rows_where(both(since, upto), self._wanted(STATE))
        return replace(self._laid_over(version, taken, rows, keys), stored=stored)

    def _no_changes(self) -> pa.Table:
        wanted = set(self._wanted(STATE))
        return pa.schema([f for f in self.files.schema if f.name in wanted]).empty_table()

    def diff(self, start: Place, end: Place | None = None) -> Result:
        """The rows that differ between two places: those of `as_of(start)` and those of `as_of(end)` (None:
        `current()`), in the words of `net`: insert, delete, update_preimage and update_postimage.

        Raises:
            ConfigError: `end` is known to be before `start`.
            PositionError, UnsupportedError: as for `as_of`.
        """
        start, end = absolute(start), absolute(end)
        known = self._rows_at(start)
        before = known.answer
        first, last = Point.of(start), None if end is None else Point.of(end)
        now = known.table
        now.files.refuse_gone(None, last)
        if last is not None:
            refuse_later(last, known.taken, known.stored, now._task.name)
        now.files.refuse_gaps(Point.of(known.taken.position), last)
        rows = now.files.rows_where(both(~first.upto(), last and last.upto()), now._wanted(ORDER))
        if last is not None and not rows.num_rows:
            now._refuse_reversed(first, last, known)
        changes, schema = now._range(rows, before.schema, known.layouts, self.name)
        base = Result(schema, lambda: (fitted(batch, schema) for batch in before.batches()))
        return Result.of(different(changes, base), changes.aside)

    def _refuse_reversed(self, first: Point, last: Point, known: _Rows) -> None:
        """Raises an error when it is known that the rows as of `last` are older than those as of `first`."""
        refuse_reversed(self.files, first, last)
        if self.files.first(first.upto() & ~last.upto()):
            raise reversed_places(first, last)
        refuse_older(self.files, last, known.taken, known.stored, log.state(self._task.log_path))

    def _wanted(self, headers: tuple[str, ...]) -> list[str]:
        """The data columns of the change table, and some of its headers."""
        names = self.files.schema.names
        return [n for n in names if not n.startswith(PREFIX) or n.removeprefix(PREFIX) in headers]

    def _copied(self) -> Task:
        """The task, when the target is a copy of the table that this process reads."""
        task = self._task
        why, ask = None, "its history, its net changes or its pairs"
        if task.policy(self.name).level < MEDIUM:
            why, ask = (
                "it is only tracked (its policy is below level 2)",
                "the table `tracking` (`tailrace sql`)",
            )
        elif task.target.type != "delta":
            why = "its target is a database, which keeps no versions"
        elif not task_map(task, self.name).plain:
            why = "its target is mapped"
        elif task.table(self.name).rule_mode == "archive":
            why = "its target is an archive"
        if why is not None:
            raise UnsupportedError(
                f"{self.name} cannot be shown as of a place: {why}",
                where=task.name,
                hint=f"ask for {ask}",
            )
        return task

    @property
    def _task(self) -> Task:
        assert self.task is not None  # noqa: S101 - `of` gives it
        return self.task

    def _laid_over(self, version: Version, taken: Baseline, rows: pa.Table, keys: RowKeys | None) -> _Rows:
        from ..validate.versions import mark_of

        where = f"{version.path}, version {version.version}"
        delta = at_version(version.path, version.version)
        refuse_features(delta, where)
        data = dataset(delta)
        mark = mark_of(self.task, self.name) if self.task else None
        layouts = layouts_from(self.layouts, taken, self.hidden, version.number)
        own = [f for f in data.schema if f.name not in {mark, *self.hidden}]
        have = plain_schema(pa.schema(in_order(own, layouts[0].relation)))
        if rows.num_rows:
            refuse_broken(layouts, pc.max(rows[SEQ]).as_py(), where)
        changes, schema = self._range(rows, have, layouts, where)
        if keys is not None:
            mine = named(keys.table, layouts[0].relation.key, self.layouts, layouts[0])
            keys = RowKeys(mine).more(changes.rows.filter(pa.array(changes.oper != T)), changes.key)
        living = pc.field(mark).is_null() if mark is not None and mark in data.schema.names else None
        reached = sequence.number_of(pc.max(rows[SEQ]).as_py()) if rows.num_rows else -1
        layouts = layouts_from(self.layouts, taken, self.hidden, max(version.number, reached))
        schema = told(schema, layouts[0])
        made = LaidOver(lambda: read(data, schema, living, where, keys), schema, changes, where).result()
        return _Rows(self, made, layouts, taken)

    def _range(
        self, rows: pa.Table, have: pa.Schema, layouts: list[Layout], where: str
    ) -> tuple[ChangeArrays, pa.Schema]:
        """The changes to be laid over rows with the columns `have` in the first of these layouts, and the
        columns of what comes out."""
        names = self.files.schema.names
        if not rows.num_rows:
            key = [k for k in layouts[0].relation.key if k in have.names]
            headers = [f for f in rows.schema if f.name.startswith(PREFIX)]
            nothing = pa.schema([*headers, *have]).empty_table()
            return ChangeArrays.of(nothing, key, have.names, name=self.name), have
        layout = layout_of(layouts, "", pc.max(rows[SEQ]).as_py())
        relation = layout.relation
        if relation.relid != layouts[0].relation.relid:
            raise UnsupportedError(
                f"{self.name} was dropped and created again on the way to this place",
                where=where,
                hint="ask for a place before that, or after its new baseline",
            )
        older = {c.attnum for c in layouts[0].relation.columns}
        for c in relation.columns:
            refuse_other(c, have, c.attnum in older, where)
        schema = schema_of(relation.columns)
        chosen = [c.name for c in relation.columns]
        rows, bits = in_layout(rows, names, chosen, layout)
        return ChangeArrays.of(rows, relation.key, chosen, layout=bits, name=self.name), schema


def _baselines(task: Task, name: str) -> list[Baseline]:
    """The baselines of a table on top of which changes may be applied, the newest first."""
    found = {b.number: b for b in all_baselines(task.control_path("baselines")) if b.table == name and b.done}
    return list(reversed(found.values()))


def _of_baseline(task: Task, name: str) -> list[Layout]:
    """The layout of a table that no change has told one of: that of its newest baseline, if there is any."""
    taken = read_baselines(task.control_path("baselines")).get(name)
    return [] if taken is None else [begun_by(taken)]


@dataclass(frozen=True)
class _Rows:
    """Rows as of a place: the table when they were read, the layout that they have, with later ones, and the
    baseline that they begin with, the record of what was stored before they were read."""

    table: TaskTable
    answer: Result
    layouts: list[Layout]
    taken: Baseline
    stored: Stored | None = None
