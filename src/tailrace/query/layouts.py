"""Which columns changes have: one layout for a whole range, or an error that says where it changes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..errors import UnsupportedError
from ..lake import log
from ..lake.log import Layout
from ..model.change import Relation
from ..model.types import arrow_type
from ..store.tables import as_kept, widens


def layout_of(
    layouts: Sequence[Layout], schema: pa.Schema, first: str, last: str, *, before: bool = False
) -> Relation:
    """The layout of changes from one change sequence to another; columns that were added on the way are NULL
    before, as they are in the source. `first` may be empty: the oldest of the layouts counts, too. `before`:
    of rows, too, that have the layout before that of the first change.

    Raises:
        UnsupportedError: a column was renamed, retyped or added with a default in between, its name is now
            another column's, or the key became another one: rows of before and after cannot be told as one
            table's.
    """
    newest, oldest = (
        max((k for k, one in enumerate(layouts) if k == 0 or one.from_seq <= place), default=0)
        for place in (last, first)
    )
    now = layouts[newest]
    for k in range(newest, max(oldest - before, 0), -1):
        old, new = layouts[k - 1].relation, layouts[k].relation
        if (why := _differs(old, new) or _replaced(old, now.relation)) is not None:
            raise UnsupportedError(
                f"{why} at change_seq {layouts[k].from_seq}, within the range",
                where=now.relation.table,
                hint="ask for a range on one side of it",
            )
    kept = as_kept(schema, now.relation, log.number(now))
    if renamed := [
        c.name for c, k in zip(now.relation.columns, kept.columns, strict=True) if c.name != k.name
    ]:
        raise UnsupportedError(
            f"{', '.join(renamed)} became another type after the range",
            where=now.relation.table,
            hint="ask for a range after that, or leave these columns out",
        )
    return now.relation


def _replaced(old: Relation, new: Relation) -> str | None:
    """Which name another column has by now; None: none."""
    names = {c.name: c.attnum for c in old.columns}
    found = [c.name for c in new.columns if names.get(c.name, c.attnum) != c.attnum]
    return f"the column {found[0]} was replaced by another one of its name" if found else None


def _differs(old: Relation, new: Relation) -> str | None:
    """Why images of two layouts cannot stand in one table; None: they can."""
    had = {c.attnum: c for c in old.columns}
    if [c.attnum for c in old.columns if c.key] != [c.attnum for c in new.columns if c.key]:
        return "the key became another one"
    for c in new.columns:
        before = had.get(c.attnum)
        if before is None:
            if c.missing is not None:
                return f"the column {c.name} was added with a default"
        elif before.name != c.name:
            return f"the column {before.name} was renamed to {c.name}"
        elif before.type != c.type and not widens(arrow_type(before.type), arrow_type(c.type)):
            return f"the column {c.name} became {c.type}"
    return None
