"""Layouts of targets that are made of files: which ones a target accepts, and which one it has.

`attnum` identifies a column, so a renamed column stays, and a column that was dropped and created again is
new. Columns that another process added to a target belong to neither layout; they stay with their values.

A commit that replaces all rows, by a new layout or a baseline, has a mark of the layout. If names of columns
were exchanged, or a column was created again, only the newest mark identifies the layout that the target has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ApplyError, UnsupportedError
from ...lake.table import LakeTable
from ...model.change import Column, Relation
from ...model.types import arrow_type, spark_type
from ..layout_changes import refuse_new_key, refuse_retype
from ..multi_source import refuse_column_loss, shared_layouts
from ..rule_columns import rule_column

_MARK = "tailrace.layout"
_MARK_COMMITS = 50
"""The number of newest commits among which a mark is searched."""

_TO_TEXT = frozenset({"boolean", "smallint", "int", "bigint", "date", "timestamp_ntz", "timestamp", "binary"})
"""Types whose values are converted to text as PostgreSQL does; so are decimals."""


def refuse_layout(now: LakeTable, before: Relation, after: Relation, *, shared: bool = False) -> None:
    """Refuses a layout that a target cannot get; `shared`: other sources may write to the target.

    Raises:
        ApplyError: columns of other sources would be removed or replaced.
        BaselineNeededError: the values of existing rows cannot be converted.
    """
    if shared:
        refuse_column_loss(before, after, now.name)
    old = {c.attnum: c for c in before.columns}
    for c in after.columns:
        if c.attnum in old:
            was = old[c.attnum]
            plain = was.type in _TO_TEXT or was.type.startswith("decimal")
            refuse_retype(before.table, was, c, as_text=plain)
    refuse_new_key(before, after)
    extended_layouts(now, before, after, shared=shared)


def extended_layouts(
    now: LakeTable, before: Relation, after: Relation, *, shared: bool
) -> tuple[Relation, Relation]:
    """Returns two layouts extended by the columns that other processes added to the target. `shared`: other
    sources may write to it.

    Raises:
        ApplyError: a column of the new layout would replace an added column.
    """
    return (_layouts_of_shared if shared else _layouts_with_added)(now, before, after)


def _layouts_with_added(now: LakeTable, before: Relation, after: Relation) -> tuple[Relation, Relation]:
    """Returns two layouts extended by the columns that another process added to the target.

    Raises:
        ApplyError: a column of the new layout would replace an added column.
    """
    fields, ruled = {f.name: f.type for f in now.schema}, now.rule_columns
    known, new = {c.name for c in before.columns}, {c.name for c in after.columns}
    more = [_added(now.name, n, kind, ruled) for n, kind in fields.items() if n not in known | new]
    old_layout, new_layout = (one.with_columns([*one.columns, *more]) for one in (before, after))
    taken = [n for n in fields if n in new - known]
    if taken and not has_mark(now, new_layout) and (full := [n for n in taken if has_values(now, n)]):
        raise ApplyError(
            f"the target {now.name} already has a column {full[0]!r} with values that another process wrote; "
            "the source has a new column of that name",
            where=after.table,
            hint="drop the column in the target, or rename it, then `tailrace resume` the table",
        )
    return old_layout, new_layout


def has_values(table: LakeTable, name: str) -> bool:
    """Whether a column has values; also true if only Spark can read the files."""
    return bool(table.unread or table.dataset().count_rows(filter=pc.field(name).is_valid()))


def _added(path: str, name: str, kind: pa.DataType, ruled: Collection[str]) -> Column:
    """Returns a column that another process added to a target, for use in a layout.

    Raises:
        ApplyError: tailrace cannot write its type.
    """
    try:
        column = rule_column(name, spark_type(kind))
    except UnsupportedError:
        raise ApplyError(
            f"the target {path} has a column {name!r} of the type {kind}, which another process added and "
            "tailrace cannot write: a new layout would lose its values",
            where=path,
            hint="move the column to another table, then `tailrace resume` the table",
        ) from None
    return column if name in ruled else replace(column, kind=column.type)


def _layouts_of_shared(now: LakeTable, before: Relation, after: Relation) -> tuple[Relation, Relation]:
    """Returns two layouts of a source extended by the changes of other sources of the target.

    Raises:
        ApplyError: the new layout would remove or replace columns.
    """
    have = {f.name: spark_type(f.type) for f in now.schema}
    layouts = shared_layouts(before, after, have, now.rule_columns)
    refuse_column_loss(*layouts, now.name)
    return layouts


def fits(table: LakeTable, before: Relation, after: Relation) -> bool:
    """Whether the target has the new layout already, after a crash between the layout and its first batch."""
    wanted = {c.name: arrow_type(c.type) for c in after.columns}
    if {f.name: f.type for f in table.schema} != wanted:
        return False
    numbers = {c.name: c.attnum for c in before.columns}
    if all(numbers.get(c.name, c.attnum) == c.attnum for c in after.columns):
        return True
    return has_mark(table, after)  # the names alone do not identify the layout


def mark(relation: Relation) -> dict[str, str]:
    """Returns the commit info with the mark of a layout.

    >>> one = Relation(1, "s", "t", "d", ())
    >>> mark(one) == mark(Relation(2, "s", "t", "d", ())), list(mark(one))
    (True, ['tailrace.layout'])
    """
    columns = json.dumps([[c.attnum, c.name, c.type] for c in relation.columns])
    return {_MARK: hashlib.sha256(columns.encode()).hexdigest()[:16]}


def is_marked(info: Mapping[str, object]) -> bool:
    """Whether the info of a commit has the mark of a layout.

    >>> is_marked(mark(Relation(1, "s", "t", "d", ()))), is_marked({"operation": "WRITE"})
    (True, False)
    """
    return _MARK in info


def has_mark(table: LakeTable, relation: Relation) -> bool:
    """Whether the newest mark of a target is that of a layout."""
    marks = [h[_MARK] for h in table.history(_MARK_COMMITS) if is_marked(h)]
    return bool(marks) and marks[0] == mark(relation)[_MARK]
