"""Which columns changes have: one layout for a whole range, or an error that says where it changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from ..errors import UnsupportedError
from ..lake import log
from ..lake.log import Layout
from ..model import sequence
from ..model.change import PREFIX, Column, Relation
from ..model.types import arrow_type
from ..store.tables import kept_as, widens
from .points import Point


def layout_of(
    layouts: Sequence[Layout],
    first: str,
    last: str,
    *,
    before: bool = False,
    only: Collection[str] | None = None,
    names: bool = True,
    defaults: bool = False,
) -> Layout:
    """The layout of changes from one change sequence to another; columns that were added on the way are NULL
    before, as they are in the source.

    Args:
        layouts: those of the table, in order.
        first, last: the change sequences; `first` may be empty: the oldest of the layouts counts, too.
        before: of rows, too, that have the layout before that of the first change.
        only: the columns that are asked for; None: all.
        names: a column is told by its name; else by its identity, whatever it is called.
        defaults: columns that were added with a default have it in older rows, too.

    Raises:
        UnsupportedError: a column was renamed, retyped or added with a default in between, its name is now
            another column's, or the key became another one: rows of before and after cannot be told as one
            table's.
    """
    now = layouts[_valid(layouts, last)]
    if (
        why := broken(layouts, first, last, before=before, only=only, names=names, defaults=defaults)
    ) is not None:
        raise UnsupportedError(
            f"{why}, within the range",
            where=now.relation.table,
            hint="ask for places (and a base) on one side of it, or, where one can, for other columns",
        )
    return now


def broken(
    layouts: Sequence[Layout],
    first: str,
    last: str,
    *,
    before: bool = False,
    only: Collection[str] | None = None,
    names: bool = True,
    defaults: bool = False,
) -> str | None:
    """Why there is no one layout of all changes from one change sequence to another, and at which it breaks;
    None: there is. The arguments are those of `layout_of`."""
    newest, oldest = (_valid(layouts, place) for place in (last, first))
    now = layouts[newest].relation
    for k in range(newest, max(oldest - before, 0), -1):
        old, new = layouts[k - 1].relation, layouts[k].relation
        why = _differs(old, new, only, names, defaults) or (_replaced(old, now, only) if names else None)
        if why is not None:
            return f"{why} at change_seq {layouts[k].from_seq}"
    return None


def in_force(layouts: Sequence[Layout], place: Point) -> Layout:
    """The layout that changes at the end of a place have; the oldest one for places before all of them."""
    begun = [one for one in layouts if _begin(one, place.column) <= place.high]
    return begun[-1] if begun else layouts[0]


def before(layouts: Sequence[Layout], first: str) -> Layout:
    """The layout of rows of before a change, which may be the first of its own."""
    return layouts[max(_valid(layouts, first) - 1, 0)]


def in_layout(
    rows: pa.Table, names: Sequence[str], columns: Sequence[str], layout: Layout
) -> tuple[pa.Table, list[str]]:
    """Rows with columns of a layout under the names that they had there, also if they were set aside later;
    and the names of all columns of the change table, to go with these rows: a place among them is a bit of
    the masks.

    Args:
        rows: headers, and data columns under the names of the change table.
        names: all of that table's names, in order.
        columns: the wanted names.
        layout: where these are valid.
    """
    kept = {kept_as(names, c, log.number(layout)): c for c in columns}
    mine = [n for n in rows.column_names if n.startswith(PREFIX) or n in kept]
    own = set(kept.values())
    # A column that was set aside has its name back, and the one that has it since goes without.
    named = [kept.get(n, "" if n in own else n) for n in names]
    return rows.select(mine).rename_columns([kept.get(n, n) for n in mine]), named


def between(layouts: Sequence[Layout], first: str, last: str) -> Sequence[Layout]:
    """The layouts that changes from one change sequence to another have, in order."""
    return layouts[_valid(layouts, first) : _valid(layouts, last) + 1]


def _valid(layouts: Sequence[Layout], place: str) -> int:
    """Which of the layouts is in force at a change sequence; the oldest one before all of them."""
    return max((k for k, one in enumerate(layouts) if k == 0 or one.from_seq <= place), default=0)


def _begin(layout: Layout, column: str) -> str:
    """Where a layout became valid, in the words of a place's column."""
    if column == "stream_position":
        return layout.from_position.hex().upper()
    return layout.from_seq[sequence.TIME_DIGITS :] if column == "number" else layout.from_seq


def _replaced(old: Relation, new: Relation, only: Collection[str] | None) -> str | None:
    """Which name another column has by now; None: none."""
    names = {c.name: c.attnum for c in old.columns}
    found = [
        c.name
        for c in new.columns
        if names.get(c.name, c.attnum) != c.attnum and (only is None or c.name in only)
    ]
    return f"the column {found[0]} was replaced by another one of its name" if found else None


def _differs(
    old: Relation, new: Relation, only: Collection[str] | None, names: bool, defaults: bool
) -> str | None:
    """Why images of two layouts cannot stand in one table; None: they can."""
    had = {c.attnum: c for c in old.columns}
    if [c.attnum for c in old.columns if c.key] != [c.attnum for c in new.columns if c.key]:
        return "the key became another one"
    for c in new.columns:
        before = had.get(c.attnum)
        if only is not None and not {c.name, before.name if before else c.name} & {*only}:
            continue
        if before is None:
            if c.missing is not None and not defaults:
                return f"the column {c.name} was added with a default"
        elif names and before.name != c.name:
            return f"the column {before.name} was renamed to {c.name}"
        elif (why := retyped(before.type, c)) is not None:
            return why
    return None


def retyped(old: str, new: Column) -> str | None:
    """Why a column's values of before, of a type, are not as those of it now; None: they are."""
    if old == new.type or widens(arrow_type(old), arrow_type(new.type)):
        return None
    return f"the column {new.name} became {new.type}"
