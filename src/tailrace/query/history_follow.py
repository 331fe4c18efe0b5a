"""Events of a history from a change table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ..engine.change_arrays import WHY, B, Bools, ChangeArrays, D, Ints, T
from ..engine.columns import one
from ..engine.event_rows import CARRIES, EMPTIED, GONE, OPERATION, SEQUENCE, TIME, UPSERT
from ..engine.kept_history import HistoryRules
from ..engine.picked import Picked
from ..engine.rebuild import rebuild
from ..errors import GapError, UnsupportedError
from ..lake import delta as lake
from ..model import sequence
from ..model.mask import ALWAYS, pack
from .base_rows import whole
from .change_files import ChangeRows
from .history_checks import refuse_own
from .history_columns import KeptColumns
from .history_places import FOLLOWS
from .history_progress import ANOTHER, Followed, Onward
from .history_table import HistoryTable
from .identity import Names
from .points import Place, Point

_ANOTHER = f"a history cannot go on across that: {ANOTHER}"
_BEGUN = "tailrace.begun"
MOVED = "its row came from another key, and the image lacks columns that nothing tells"


@dataclass(frozen=True)
class Begun:
    """Where a history was told to begin, and the layout of then (the change sequence from which it is valid);
    a property of its table, which counts until the history has changes."""

    start: str
    layout: str | None

    @staticmethod
    def of(path: str) -> Begun | None:
        """Of the history at a path; None: it begins with the oldest change, or there is none."""
        said = DeltaTable(path).metadata().configuration.get(_BEGUN) if lake.exists(path) else None
        return None if said is None else Begun(**json.loads(said))

    def as_property(self) -> dict[str, str]:
        """The property."""
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
        start: Place | None = None,
        end: Place | None = None,
        columns: Sequence[str] | None = None,
        *,
        names: Names | Mapping[int, str] = "now",
        defaults: bool = False,
    ) -> ChangeArrays:
        """Its changes between two places, both included."""

    def named(self, base: pa.Table) -> pa.Table:
        """Rows of before with the names that their columns have by now."""

    def layout_at(self, last: int | None) -> str | None:
        """The change sequence from which the layout at a change number is valid (None: at the end)."""

    def broken(self, first: str, last: str) -> str | None:
        """Why columns are not the same ones between two change sequences; None: they are."""

    def numbered(self, layout: str | None) -> dict[str, int]:
        """The numbers of its columns, by name, in a layout (None: the newest)."""

    @property
    def defaults(self) -> dict[int, pa.Array]:
        """The values of columns in rows from before they were added, by their numbers."""


def follow(
    changes: FollowedTable, path: str, rules: HistoryRules, base: pa.Table | None, start: Place | None = None
) -> HistoryTable:
    """The history at a path, with the changes that it has not got yet; see `TableChanges.keep_history`."""
    refuse_own(rules, changes.name)
    last, begun = Followed.of(path), Begun.of(path)
    if begun is not None and (start is None or last is not None):
        start = begun.start
    elif last is not None:
        start = None
    under = None
    if last is None and base is not None:
        under = whole(changes.named(base), rules.columns, changes.name)
    on = None if last is None else last.next(changes.files, path)
    since = start if on is None or on.since is None else on.since
    # Before anything is made: it may be refused.
    number = None if last is None else last.number
    layout = changes.layout_at(number) if last is not None or begun is None else begun.layout
    columns = KeptColumns.of(changes, path, layout)
    found = _since(changes, last, since, columns.names, path)
    why = changes.broken(layout, found.seq[-1].as_py()) if len(found) and layout else None
    if len(found) and (why := why or columns.taken) is not None:
        raise UnsupportedError(why, where=path, hint=_ANOTHER)
    if columns.taken is not None:
        return HistoryTable.open(path)  # no change has the column yet
    data = pa.schema([changes.files.schema.field(n).with_name(columns.called(n)) for n in rules.columns])
    rules = columns.rules(rules)
    noted = {} if start is None else Begun(Point.of(start).text, layout).as_property()
    history = HistoryTable.make(
        path, data, rules, pa.string(), {FOLLOWS: "true", **noted}, columns.values(changes.defaults)
    )
    columns.note(path)
    found = _with_columns(found, history.data)
    history.finish()  # the changes that are to come are told on top of its rows
    if under is not None:
        history.apply(_base(under, history.data))
    now = Followed.upto(changes.files, found, since, last, on)
    # The first time, even if there are none: it tells from where on changes are needed. `start` does, too.
    if now != last and (len(found) or found.aside.num_rows or last is not None or start is None):
        history.take(_told(found, history, on), now.progress)
    return history


def _told(found: ChangeArrays, history: HistoryTable, on: Onward | None) -> pa.Table:
    """The events of the changes that were found, and those that no question can use."""
    there, anew = history.events(), on is not None and on.since is None
    events = events_of(found, there.at_first() if anew else history.current().table())
    if on is not None and on.fewer and found.sparse:
        events = there.untold(events)  # what had completed their images may be gone
    return pa.concat_tables([events, _unusable(found)], promote_options="default")


def _since(
    changes: FollowedTable, last: Followed | None, start: Place | None, names: Mapping[int, str], path: str
) -> ChangeArrays:
    """The changes from `start` on, for a history which has those up to `last` (None: it is new).

    Raises:
        GapError: some were never captured.
    """
    try:
        if last is not None:
            changes.files.refuse_gaps(Point.of(last.number), None)
        return changes.arrays(start, None, names=names, defaults=True)
    except GapError as error:
        raise GapError(error.what, where=path, hint=f"{error.hint}; {_ANOTHER}") from error


def _with_columns(found: ChangeArrays, data: pa.Schema) -> ChangeArrays:
    """The changes with all columns of a history, in its order: those that the source has no more are NULL."""
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


def _unusable(changes: ChangeArrays) -> pa.Table:
    """Change rows that no question can use, with their reasons."""
    rows = changes.aside
    made = rows.select([*changes.columns, WHY]).append_column(SEQUENCE, rows[changes.header("change_seq")])
    return made.append_column(OPERATION, rows[changes.header("change_oper")])


def _base(rows: pa.Table, data: pa.Schema) -> pa.Table:
    """Rows of before all changes, as upserts."""
    made = rows.cast(data)
    made = made.append_column(SEQUENCE, pa.repeat(sequence.FIRST, rows.num_rows))
    return made.append_column(OPERATION, pa.repeat(UPSERT, rows.num_rows))


def events_of(changes: ChangeArrays, before: pa.Table) -> pa.Table:
    """What changes are to a history: an update of the key deletes the old one.

    Args:
        changes: the changes.
        before: the rows of before, for images of moved rows that lack columns.
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
    letters = np.where(oper == T, EMPTIED, np.where((oper == D) | (oper == B), GONE, UPSERT))[kept]
    full = carries[kept].all(axis=1) | (letters != UPSERT)
    masks = pack(carries[kept], range(len(changes.columns)))
    masks = pc.if_else(pa.array(full), pa.nulls(len(masks), pa.binary()), masks)
    place = Picked(kept)
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
    """Of each before image the update that moves its row to another key, and of each such update its before
    image; -1: none."""
    from ..engine.lines import Lines

    out, into = (np.full(len(changes), -1, np.int64) for _ in range(2))
    if not len(changes):
        return out, into
    lines = Lines.of(changes, changes.rows.select(list(changes.columns))[:0])
    left, came = np.flatnonzero(lines.left), np.flatnonzero(lines.came)
    out[lines.at[left]] = lines.at[lines.partner[left]]
    into[lines.at[came]] = lines.at[lines.partner[came]]
    return out, into


def _carries(changes: ChangeArrays) -> Bools:
    found = [changes.carries(n) for n in changes.columns]
    every = np.ones(len(changes), np.bool_)
    return np.stack([every if f is None else f for f in found], axis=1)


def _mixed(rows: pa.Table, whole: ChangeArrays, changes: ChangeArrays, came: Bools) -> pa.Table:
    """The rows, those that moved with whole images."""
    for name in changes.columns:
        column = pc.if_else(pa.array(came), one(whole.rows[name]), one(rows[name]))
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows
