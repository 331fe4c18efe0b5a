"""Keeps a history up to date with a change table: converts its changes to events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...engine.change_arrays import WHY, B, Bools, ChangeArrays, D, Ints, T
from ...engine.chunked_take import ChunkedTake
from ...engine.columns import one
from ...engine.history_events import (
    CARRIES,
    DELETE_EVENT,
    OPERATION,
    SEQUENCE,
    TIME,
    TRUNCATE_EVENT,
    UPSERT_EVENT,
)
from ...engine.history_updates import HistoryRules
from ...engine.rebuild import rebuild
from ...errors import GapError, UnsupportedError
from ...lake import delta as lake
from ...lake.opened import open_table
from ...model import sequence
from ...model.mask import ALWAYS, pack
from ...model.positions import ChangeNumber, ChangeSeq
from ..base_rows import require_columns
from ..change_files import ChangeRows
from ..column_identity import Names
from ..positions import PositionLike, PositionRange
from .checks import check_names
from .columns import HistoryColumns
from .positions import FOLLOWS
from .progress import NEW_HISTORY_HINT, FollowProgress, ReadStart
from .table import HistoryTable

_ANOTHER = f"a history cannot continue after that: {NEW_HISTORY_HINT}"
_BEGUN = "tailrace.begun"
MOVED = "its row came from another key, and some of its values are unknown"


@dataclass(frozen=True)
class HistoryStart:
    """Start of a history that was given by the user, and the change sequence at which the layout of then
    begins.

    It is a property of the history's table, used until the history has changes.
    """

    start: str
    layout: ChangeSeq | None

    @staticmethod
    def of(path: str) -> HistoryStart | None:
        """Reads it from the history at a path; None if the history starts with the oldest change or does not
        exist."""
        said = open_table(path).metadata().configuration.get(_BEGUN) if lake.exists(path) else None
        return None if said is None else HistoryStart(**json.loads(said))

    def as_property(self) -> dict[str, str]:
        """Returns the table property."""
        return {_BEGUN: json.dumps(asdict(self))}


class FollowedTable(Protocol):
    """A table whose history is kept."""

    @property
    def name(self) -> str:
        """The table's name."""

    @property
    def files(self) -> ChangeRows:
        """Its change table."""

    def arrays(
        self,
        start: PositionLike | None = None,
        end: PositionLike | None = None,
        columns: Sequence[str] | None = None,
        *,
        names: Names | Mapping[int, str] = "now",
        defaults: bool = False,
    ) -> ChangeArrays:
        """Returns its changes between two positions, both included."""

    def rename_base(self, base: pa.Table) -> pa.Table:
        """Returns base rows with the current names of their columns."""

    def layout_start(self, last: ChangeNumber | None) -> ChangeSeq | None:
        """Returns the change sequence at which the layout of a change number (None: the newest) begins."""

    def incompatibility(self, first: ChangeSeq, last: ChangeSeq) -> str | None:
        """Returns why the columns at two change sequences are incompatible, or None."""

    def column_numbers(self, layout: ChangeSeq | None) -> dict[str, int]:
        """Returns the column numbers by name in a layout (None: the newest)."""

    @property
    def defaults(self) -> dict[int, pa.Array]:
        """Values, by column number, for rows from before a column was added."""


def follow(
    changes: FollowedTable,
    path: str,
    rules: HistoryRules,
    base: pa.Table | None,
    start: PositionLike | None = None,
) -> HistoryTable:
    """Adds the changes that a history does not have yet; see `TableChanges.keep_history`."""
    check_names(rules, changes.name)
    last, begun = FollowProgress.of(path), HistoryStart.of(path)
    if begun is not None and (start is None or last is not None):
        start = begun.start
    elif last is not None:
        start = None
    under = None
    if last is None and base is not None:
        under = require_columns(changes.rename_base(base), rules.columns, changes.name)
    on = None if last is None else last.next(changes.files, path)
    since = start if on is None or on.since is None else on.since
    # Read before anything is created, because the request may be refused.
    number = None if last is None else last.number
    layout = changes.layout_start(number) if last is not None or begun is None else begun.layout
    columns = HistoryColumns.of(changes, path, layout)
    found = _since(changes, last, since, columns.names, path)
    why = changes.incompatibility(layout, found.seq[-1].as_py()) if len(found) and layout else None
    if len(found) and (why := why or columns.taken) is not None:
        raise UnsupportedError(why, where=path, hint=_ANOTHER)
    if columns.taken is not None:
        return HistoryTable.open(path)  # no change uses the new column yet
    data = pa.schema([changes.files.schema.field(n).with_name(columns.called(n)) for n in rules.columns])
    rules = columns.rules(rules)
    noted = {} if start is None else HistoryStart(PositionRange.of(start).text, layout).as_property()
    history = HistoryTable.make(
        path, data, rules, pa.string(), {FOLLOWS: "true", **noted}, columns.values(changes.defaults)
    )
    columns.note(path)
    found = _with_columns(found, history.data)
    history.finish()  # the next changes are applied on top of its rows
    if under is not None:
        history.apply(_base_events(under, history.data))
    now = FollowProgress.upto(changes.files, found, since, last, on)
    # The first call stores progress even without changes, because later calls need it.
    if now != last and (len(found) or found.aside.num_rows or last is not None or start is None):
        history.take(_new_events(found, history, on), now.progress)
    return history


def _new_events(found: ChangeArrays, history: HistoryTable, on: ReadStart | None) -> pa.Table:
    """Returns the events of the changes, and the rejected changes."""
    there, anew = history.events(), on is not None and on.since is None
    events = events_of(found, there.initial_rows() if anew else history.current().table())
    if on is not None and on.fewer and found.sparse:
        events = there.not_stored(events)  # changes that completed their images may have been removed
    return pa.concat_tables([events, _rejects(found)], promote_options="default")


def _since(
    changes: FollowedTable,
    last: FollowProgress | None,
    start: PositionLike | None,
    names: Mapping[int, str],
    path: str,
) -> ChangeArrays:
    """Returns the changes from `start` on, for a history with those up to `last` (None: a new one).

    Raises:
        GapError: some were never captured.
    """
    try:
        if last is not None:
            changes.files.refuse_gaps(PositionRange.of(last.number), None)
        return changes.arrays(start, None, names=names, defaults=True)
    except GapError as error:
        raise GapError(error.what, where=path, hint=f"{error.hint}; {_ANOTHER}") from error


def _with_columns(found: ChangeArrays, data: pa.Schema) -> ChangeArrays:
    """Returns the changes with all columns of the history in its order; columns that the source dropped are
    NULL."""
    rows, aside, ordinals = found.rows, found.aside, dict(zip(found.columns, found.ordinals, strict=True))
    for field in data:
        if field.name not in ordinals:
            ordinals[field.name] = ALWAYS
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
            place = aside.num_columns - 1  # the reasons stay the last column
            aside = aside.add_column(place, field, pa.nulls(aside.num_rows, field.type))
    return replace(
        found,
        rows=rows,
        aside=aside,
        columns=tuple(data.names),
        ordinals=tuple(ordinals[n] for n in data.names),
    )


def _rejects(changes: ChangeArrays) -> pa.Table:
    """Returns the rejected change rows with their reasons."""
    rows = changes.aside
    made = rows.select([*changes.columns, WHY]).append_column(SEQUENCE, rows[changes.header("change_seq")])
    return made.append_column(OPERATION, rows[changes.header("change_oper")])


def _base_events(rows: pa.Table, data: pa.Schema) -> pa.Table:
    """Returns the rows before all changes, as upserts."""
    made = rows.cast(data)
    made = made.append_column(SEQUENCE, pa.repeat(sequence.FIRST, rows.num_rows))
    return made.append_column(OPERATION, pa.repeat(UPSERT_EVENT, rows.num_rows))


def events_of(changes: ChangeArrays, before: pa.Table) -> pa.Table:
    """Returns the events of changes. An update of the key also deletes the old key.

    Args:
        changes: the changes.
        before: the rows before the changes, to complete images of moved rows.
    """
    moved = _moved(changes)
    came = moved[1] >= 0
    carries = np.ones((len(changes), len(changes.columns)), np.bool_)
    rows = changes.rows
    if changes.sparse:
        if came.any():
            whole = ChangeArrays.of(
                rebuild(changes, base=before.select(list(changes.columns))), changes.key, changes.columns,
                layout=rows.column_names,
            )  # fmt: skip
            rows = _mixed(rows, whole, changes, came)
            carries = _carries(changes)
            carries[came] = _carries(whole)[came]
        else:
            carries = _carries(changes)
    oper = changes.oper
    kept = np.flatnonzero((oper != B) | (moved[0] >= 0))
    letters = np.where(
        oper == T, TRUNCATE_EVENT, np.where((oper == D) | (oper == B), DELETE_EVENT, UPSERT_EVENT)
    )[kept]
    full = carries[kept].all(axis=1) | (letters != UPSERT_EVENT)
    masks = pack(carries[kept], range(len(changes.columns)))
    masks = pc.if_else(pa.array(full), pa.nulls(len(masks), pa.binary()), masks)
    place = ChunkedTake(kept)
    made = {n: place.of(rows[n]) for n in changes.columns}
    times = changes.column("timestamp")
    made[SEQUENCE] = place.of(changes.seq)
    made[OPERATION] = pa.array(letters.astype(object), pa.string())
    made[CARRIES] = masks
    made[TIME] = pa.nulls(len(kept), pa.timestamp("us", "UTC")) if times is None else place.of(times)
    unknown = pa.array(came[kept] & ~full)
    made[WHY] = pc.if_else(unknown, MOVED, pa.scalar(None, pa.string()))
    return pa.table(made)


def _moved(changes: ChangeArrays) -> tuple[Ints, Ints]:
    """Returns for each before image the index of the update that moves its row to another key, and the
    reverse; -1 if none."""
    from ...engine.key_timelines import KeyTimelines

    out, into = (np.full(len(changes), -1, np.int64) for _ in range(2))
    if not len(changes):
        return out, into
    lines = KeyTimelines.of(changes, changes.rows.select(list(changes.columns))[:0])
    left, came = np.flatnonzero(lines.left), np.flatnonzero(lines.came)
    out[lines.at[left]] = lines.at[lines.partner[left]]
    into[lines.at[came]] = lines.at[lines.partner[came]]
    return out, into


def _carries(changes: ChangeArrays) -> Bools:
    found = [changes.carries(n) for n in changes.columns]
    every = np.ones(len(changes), np.bool_)
    return np.stack([every if f is None else f for f in found], axis=1)


def _mixed(rows: pa.Table, whole: ChangeArrays, changes: ChangeArrays, came: Bools) -> pa.Table:
    """Returns the rows, with complete images for moved rows."""
    for name in changes.columns:
        column = pc.if_else(pa.array(came), one(whole.rows[name]), one(rows[name]))
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows
