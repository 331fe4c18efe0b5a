"""Removes old changes from a table: deletes files that contain nothing else, and rewrites files on the
boundary.

Everything is one commit. Files are removed as a data change; the remaining rows of a boundary file are added
without one, for they were in the table before. So a stream over the table that ignores deletes
(`ignoreDeletes`) continues, and gets no row twice. Files that streams have not read yet stay on disk until
`maintenance.vacuum_after`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ..lake import delta as lake
from ..lake.failpoints import reach
from ..lake.one_commit import commit_actions
from ..lake.opened import open_table
from ..model.types import plain_schema
from . import tracking
from .kept import Span, keeping, kept, spans

_TRIES = 20
LAST = "9" * 35
"""A text greater than every change sequence."""


@dataclass(frozen=True)
class Bound:
    """Defines old changes: those up to a change number and also up to a change sequence."""

    number: int
    seq: str = LAST

    def covers(self, number: int, seq: str = "") -> bool:
        """Whether a change is old, so that it may be removed.

        >>> Bound(7, "2026" + "9" * 31).covers(7, "2026" + "0" * 30 + "7"), Bound(7).covers(8)
        (True, False)
        """
        return 0 <= number <= self.number and seq <= self.seq

    def rows(self, column: pa.Array) -> npt.NDArray[np.bool_]:
        """Returns which values, change sequences or change numbers, belong to old changes."""
        old = _numbers(column) <= self.number
        if pa.types.is_integer(column.type):
            return old
        return np.asarray(old & pc.less_equal(column, self.seq).to_numpy(zero_copy_only=False))


@dataclass(frozen=True)
class Trimmed:
    """The result of a trim: removed files, rewritten files, rows, bytes, and the change number after which
    the table is then complete. A plan (`planned`) does not know the rows of files to be rewritten; it has
    `most`, the greatest change number that may be removed."""

    files: int = 0
    rewritten: int = 0
    rows: int = 0
    size: int = 0
    kept: int = -1
    most: int = -1


@dataclass(frozen=True)
class Choice:
    """The files of a table that a trim affects."""

    whole: list[Span]
    partly: list[Span]

    @property
    def all(self) -> list[Span]:
        """Returns all affected files."""
        return [*self.whole, *self.partly]


Which = Callable[[Span], bool]


def choose(found: list[Span], bound: Bound, partly: Which, old: Which) -> Choice:
    """Selects the files that contain only old changes, and those on the boundary that `partly` allows to
    rewrite."""
    mine = [s for s in found if s.known and old(s)]
    whole = [s for s in mine if bound.covers(s.high, s.high_seq)]
    edge = (s for s in mine if bound.covers(s.low, s.low_seq) and not bound.covers(s.high, s.high_seq))
    return Choice(whole, [s for s in edge if partly(s)])


def nothing(_: Span) -> bool:
    """Selects no file."""
    return False


def everything(_: Span) -> bool:
    """Selects each file."""
    return True


def planned(
    delta: DeltaTable, column: str, bound: Bound, partly: Which = nothing, old: Which = everything
) -> Trimmed:
    """Returns what `trim` would do, according to commits. No file is read, so rows and numbers of files to be
    rewritten are unknown, except for the greatest number that may be removed (`most`)."""
    found, before = choose(spans(delta, column), bound, partly, old), _removed(delta)
    rows, size = sum(s.rows for s in found.whole), sum(s.size for s in found.whole)
    upto = max([before, *(s.high for s in found.whole)])
    most = max((min(s.high, bound.number) for s in found.all), default=-1)
    return Trimmed(len(found.whole), len(found.partly), rows, size, upto, most)


def trim(
    table: str,
    column: str,
    bound: Bound,
    partly: Which = nothing,
    old: Which = everything,
    *,
    dry_run: bool = False,
) -> Trimmed:
    """Removes old changes and returns the result; `column` contains change sequences (text) or numbers
    (bigint).

    Args:
        table: the Delta table. It has no partitions and no deletion vectors.
        column: the column of a change's sequence or number.
        bound: which changes are old.
        partly: whether a file with some old changes is rewritten; otherwise it stays as it is.
        old: whether a file may be changed at all.
        dry_run: only report what would be removed.
    """
    return lake.retried(lambda: _once(table, column, bound, partly, old, dry_run))


def _once(table: str, column: str, bound: Bound, partly: Which, old: Which, dry_run: bool) -> Trimmed:
    delta = open_table(table)
    before = _removed(delta)
    found = choose(spans(delta, column), bound, partly, old)
    if not found.all:
        return Trimmed(kept=before)
    rows = sum(s.rows for s in found.whole)
    highest = max(((s.high, s.high_seq) for s in found.whole), default=(-1, ""))
    for one in found.partly:
        old_rows, last = _old_rows(table, one, column, bound)
        rows, highest = rows + old_rows, max(highest, last)
    upto, size = max(before, highest[0]), sum(s.size for s in found.whole)
    if not dry_run:
        last = highest if highest[0] > before else (before, "")
        _remove(delta, table, found, column, bound, last, {"kept_after": upto, "rows": rows})
    return Trimmed(len(found.whole), len(found.partly), rows, size, upto)


def _remove(
    delta: DeltaTable,
    table: str,
    found: Choice,
    column: str,
    bound: Bound,
    last: tuple[int, str],
    said: dict[str, int],
) -> None:
    """Commits the removal; `last`: the change after which the table is then complete."""
    now, parts = int(time.time() * 1000), list[lake.AddedFile]()
    try:
        for one in found.partly:
            if (rest := _remaining_part(table, one, column, bound)) is not None:
                parts.append(rest)
    except BaseException:
        _discard(table, parts)
        raise
    actions: list[AddAction | RemoveAction] = [
        AddAction(rest.path, rest.size, {}, rest.modified, False, rest.stats) for rest in parts
    ]
    actions += [RemoveAction(s.path, True, now, s.size, {}) for s in found.all]
    reach("maintain.trim")
    try:
        _commit(table, delta, actions, last, said)
    except CommitFailedError:
        _discard(table, parts)
        raise  # after any other error the commit may exist


def _discard(table: str, rests: Sequence[lake.AddedFile]) -> None:
    """Deletes parts, unless the table has them."""
    fs, folder = lake.filesystem(table)
    for path in {rest.path for rest in rests} - _paths(open_table(table)):
        fs.delete_file(f"{folder}/{path}")


def _paths(delta: DeltaTable) -> set[str]:
    return set(pa.table(delta.get_add_actions())["path"].to_pylist())


def _commit(
    table: str,
    delta: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    last: tuple[int, str],
    said: dict[str, int],
) -> None:
    """Commits a removal. Other processes may append in the meantime: the removal stays valid as long as the
    files that it removes are there, and no other process has removed changes.

    Raises:
        CommitFailedError: some files are missing; the removal has to be planned again.
    """
    before, removed = _removed(delta), {one.path for one in actions if isinstance(one, RemoveAction)}
    added = {one.path for one in actions if isinstance(one, AddAction)}
    for left in reversed(range(_TRIES)):
        try:
            commit_actions(delta, actions, progress=keeping(*last), info={"tailrace": json.dumps(said)})
            return
        except CommitFailedError:
            delta = open_table(table)
            present = _paths(delta)
            if added and added <= present:
                return  # it was committed, despite the error
            if not (left and removed <= present and _removed(delta) == before):
                raise


def _removed(delta: DeltaTable) -> int:
    """Returns the change number up to which changes were removed; -1 if none were, so that numbers
    compare."""
    found = kept(delta)
    return -1 if found is None else found


def _old_rows(table: str, one: Span, column: str, bound: Bound) -> tuple[int, tuple[int, str]]:
    """Returns the number of old rows of a file, and their greatest change number with its change sequence
    (empty: they have none)."""
    fs, folder = lake.filesystem(table)
    rows, last = 0, (-1, "")
    with pq.ParquetFile(f"{folder}/{one.path}", filesystem=fs) as file:
        for batch in file.iter_batches(columns=[column], use_threads=False):
            old = batch[column].filter(pa.array(bound.rows(batch[column])))
            if len(old):
                rows += len(old)
                seq = "" if pa.types.is_integer(old.type) else str(pc.max(old))
                last = max(last, (int(_numbers(old).max()), seq))
    return rows, last


def _remaining_part(table: str, one: Span, column: str, bound: Bound) -> lake.AddedFile | None:
    """Writes a part with the rows of a file that are not old."""
    fs, folder = lake.filesystem(table)
    with pq.ParquetFile(f"{folder}/{one.path}", filesystem=fs) as file:
        schema = plain_schema(file.schema_arrow)
        part = lake.Part(table, schema, name="rest")
        try:
            for batch in file.iter_batches(use_threads=False):
                young = pa.array(~bound.rows(batch[column]))
                part.write(pa.Table.from_batches([batch.filter(young)]).cast(schema))
        except BaseException:
            part.discard()
            raise
    return part.close()


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return tracking.numbers(column.cast(pa.string()))
