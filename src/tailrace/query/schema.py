"""Layout of a range of changes: one layout for the whole range, or an error that names the change
in between."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from ..errors import UnsupportedError
from ..lake import log
from ..lake.log import Layout
from ..model import sequence
from ..model.change import PREFIX, Column, Relation
from ..model.positions import ChangeSeq
from ..model.types import arrow_type
from ..store.tables import kept_as, widens
from .positions import PositionRange


def common_layout(
    layouts: Sequence[Layout],
    first: ChangeSeq,
    last: ChangeSeq,
    *,
    before: bool = False,
    only: Collection[str] | None = None,
    names: bool = True,
    defaults: bool = False,
) -> Layout:
    """Returns the layout of the changes between two change sequences.

    Columns that were added within the range are NULL before, as in the source.

    Args:
        layouts: the table's layouts, in order.
        first, last: the change sequences. `sequence.FIRST` includes the oldest layout.
        before: includes rows with the layout before that of the first change.
        only: the requested columns; None for all.
        names: identifies columns by name, otherwise by number whatever their name.
        defaults: fills older rows of columns that were added with a default.

    Raises:
        UnsupportedError: a column was renamed, retyped or replaced, a column was added with a default, or the
            key changed.
    """
    now = layouts[_index_at(layouts, last)]
    if (
        why := incompatibility(layouts, first, last, before=before, only=only, names=names, defaults=defaults)
    ) is not None:
        raise UnsupportedError(
            f"{why}, within the range",
            where=now.relation.table,
            hint="choose a range (and a base) on one side of that change, or request other columns",
        )
    return now


def incompatibility(
    layouts: Sequence[Layout],
    first: ChangeSeq,
    last: ChangeSeq,
    *,
    before: bool = False,
    only: Collection[str] | None = None,
    names: bool = True,
    defaults: bool = False,
) -> str | None:
    """Returns why the changes between two change sequences have no common layout, and where; None if they
    have one.

    The arguments are those of `common_layout`.
    """
    newest, oldest = (_index_at(layouts, seq) for seq in (last, first))
    now = layouts[newest].relation
    for k in range(newest, max(oldest - before, 0), -1):
        old, new = layouts[k - 1].relation, layouts[k].relation
        why = _difference(old, new, only, names, defaults) or (_replaced(old, now, only) if names else None)
        if why is not None:
            return f"{why} at change_seq {layouts[k].from_seq}"
    return None


def layout_at(layouts: Sequence[Layout], place: PositionRange) -> Layout:
    """Returns the layout at the end of a position; the oldest one for earlier positions."""
    begun = [one for one in layouts if _begin(one, place.column) <= place.high]
    return begun[-1] if begun else layouts[0]


def layout_before(layouts: Sequence[Layout], first: ChangeSeq) -> Layout:
    """Returns the layout of the rows before a change, which may be the first of its layout."""
    return layouts[max(_index_at(layouts, first) - 1, 0)]


def rename_to_layout(
    rows: pa.Table, names: Sequence[str], columns: Sequence[str], layout: Layout
) -> tuple[pa.Table, list[str]]:
    """Returns rows with the column names of a layout, and the column names for the mask bits.

    The index of a name in the returned list is its bit in the masks.

    Args:
        rows: headers, and data columns under the names of the change table.
        names: all column names of the change table, in order.
        columns: the wanted names.
        layout: the layout in which these names are valid.
    """
    kept = {kept_as(names, c, log.number(layout)): c for c in columns}
    mine = [n for n in rows.column_names if n.startswith(PREFIX) or n in kept]
    own = set(kept.values())
    # A column that was stored under another name gets its own name back; its successor gets no name.
    named = [kept.get(n, "" if n in own else n) for n in names]
    return rows.select(mine).rename_columns([kept.get(n, n) for n in mine]), named


def layouts_between(layouts: Sequence[Layout], first: ChangeSeq, last: ChangeSeq) -> Sequence[Layout]:
    """Returns the layouts of the changes between two change sequences, in order."""
    return layouts[_index_at(layouts, first) : _index_at(layouts, last) + 1]


def _index_at(layouts: Sequence[Layout], seq: ChangeSeq) -> int:
    """Returns the index of the layout at a change sequence; the oldest one for earlier sequences."""
    return max((k for k, one in enumerate(layouts) if k == 0 or one.from_seq <= seq), default=0)


def _begin(layout: Layout, column: str) -> str:
    """Returns the start of a layout as a value of a position's column."""
    if column == "stream_position":
        return layout.from_position.hex().upper()
    return layout.from_seq[sequence.TIME_DIGITS :] if column == "number" else layout.from_seq


def _replaced(old: Relation, new: Relation, only: Collection[str] | None) -> str | None:
    """Returns which name belongs to another column now, or None."""
    names = {c.name: c.attnum for c in old.columns}
    found = [
        c.name
        for c in new.columns
        if names.get(c.name, c.attnum) != c.attnum and (only is None or c.name in only)
    ]
    return f"the column {found[0]} was replaced by another column of that name" if found else None


def _difference(
    old: Relation, new: Relation, only: Collection[str] | None, names: bool, defaults: bool
) -> str | None:
    """Returns why rows of two layouts are incompatible, or None."""
    had = {c.attnum: c for c in old.columns}
    if [c.attnum for c in old.columns if c.key] != [c.attnum for c in new.columns if c.key]:
        return "the key changed"
    for c in new.columns:
        before = had.get(c.attnum)
        if only is not None and not {c.name, before.name if before else c.name} & {*only}:
            continue
        if before is None:
            if c.missing is not None and not defaults:
                return f"the column {c.name} was added with a default"
        elif names and before.name != c.name:
            return f"the column {before.name} was renamed to {c.name}"
        elif (why := type_change(before.type, c)) is not None:
            return why
    return None


def type_change(old: str, new: Column) -> str | None:
    """Returns why older values of a type do not fit a column, or None if they do."""
    if old == new.type or widens(arrow_type(old), arrow_type(new.type)):
        return None
    return f"the type of column {new.name} changed to {new.type}"
