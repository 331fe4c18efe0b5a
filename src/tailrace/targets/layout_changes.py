"""Rules for changes of a target's layout: type conversions, new key columns, values of added columns."""

from __future__ import annotations

import re

import pyarrow as pa

from ..errors import ApplyError, BaselineNeededError
from ..model.change import Column, Relation
from ..model.types import arrow_type
from ..store.tables import widens
from ..wire.pgvalues import convert
from .rule_columns import RULE

TEXTS = frozenset({"text", "varchar"})
"""Kinds whose texts stay the same when one is converted to the other."""
_WHOLE = frozenset({"int2", "int4", "int8"})
_TIMES = frozenset({"timestamp", "timestamptz", "time", "timetz"})
_ELEMENTS = (
    ("smallint", "integer"), ("smallint", "bigint"), ("integer", "bigint"),
    *((whole, "numeric") for whole in ("smallint", "integer", "bigint")), ("character varying", "text"),
    ("text", "character varying"),
)  # fmt: skip
"""Conversions of array elements (old type, new type) that leave their texts the same."""
_KINDS = {
    "character": "bpchar", "character varying": "varchar", "numeric": "numeric",
    "time without time zone": "time", "time with time zone": "timetz",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
}  # fmt: skip
"""Kinds of elements whose types have modifiers."""
_NUMBERS = re.compile(r"\((\d+)(?:,(-?\d+))?\)")
_MICROSECONDS = 6


def refuse_retype(table: str, old: Column, new: Column, *, as_text: bool) -> None:
    """Refuses a new type of a column if the target cannot convert its values as the source did.

    Args:
        table: the source table.
        old: the column before.
        new: the column after.
        as_text: whether the target converts values of the old type to text as PostgreSQL does.

    Raises:
        BaselineNeededError: only the source has the values of the new type.
    """
    if old.type == new.type:
        if RULE in (old.kind, new.kind):  # an earlier release or a manually created target did not record it
            return
        if old.kind == new.kind:
            if _unchanged(old, new):
                return
        elif old.type != "string" or {old.kind, new.kind} <= TEXTS:
            return
    elif new.type == "string":
        if as_text and (new.kind in TEXTS or (new.kind == "numeric" and _same_digits(old, new))):
            return
    elif widens(arrow_type(old.type), arrow_type(new.type)):
        return
    named = ""
    if old.name != new.name and _by_types(old, new):
        name, had = f"{table}.{new.name}", f"leave it at {new.type}"
        named = f"give it its type under its new name (`types: {{{name}: {old.type}}}`), or {had}; "
    raise BaselineNeededError(
        f"{changed(old, new)}; its earlier values cannot be converted without the source",
        where=table,
        hint=f"{named}`tailrace resync` takes a new baseline of the table",
    )


def changed(old: Column, new: Column) -> str:
    """Returns a message about a column's new type, at the source or from the setting `types`.

    >>> changed(Column("n", 1, "integer", "int4", "int"), Column("n", 1, "bigint", "int8", "bigint"))
    "column 'n' changed from integer to bigint"
    """
    if old.source_type != new.source_type:
        return f"column {new.name!r} changed from {old.source_type} to {new.source_type}"
    if not _by_types(old, new):
        return f"column {new.name!r} changed from {old.source_type} to another type of that name"
    why = "`types` gave it another type before"
    if old.name != new.name:
        why = f"it was called {old.name!r} before, and `types` goes by names"
    here = f"changed from {old.type} to {new.type} here"
    return f"column {new.name!r} ({old.source_type} at the source) {here}: {why}"


def _by_types(old: Column, new: Column) -> bool:
    """Whether the type at the source is the same, and the lake type is another one."""
    return (old.source_type, old.kind) == (new.source_type, new.kind) and old.type != new.type


def _unchanged(old: Column, new: Column) -> bool:
    """Whether PostgreSQL's conversion between two types of one kind leaves every value the same.

    Their modifiers decide: fewer fractional digits round values. Text is not truncated: PostgreSQL reports an
    error if it is too long, except for trailing blanks.

    >>> old, new = (Column("v", 1, f"time({n}) without time zone", "time", "string") for n in (3, 0))
    >>> _unchanged(new, old), _unchanged(old, new)
    (True, False)
    """
    a, b = old.source_type, new.source_type
    if old.kind in _TIMES:
        return _seconds(b) >= _seconds(a)
    if old.kind == "interval":
        fields = [_NUMBERS.sub("", text) for text in (a, b)]
        return fields[1] in (fields[0], "interval") and _seconds(b) >= _seconds(a)
    if old.kind == "numeric":
        return _keeps_digits(_scale(a), _scale(b), text=old.type == "string")
    if old.kind == "bpchar":  # padded with blanks
        return a == b
    if old.kind == "array":
        return _same_elements(a.rstrip("[]"), b.rstrip("[]"))
    return True


def _keeps_digits(had: int | None, has: int | None, *, text: bool) -> bool:
    """Whether numerics of one scale are the same in another scale; as `text`, only in the same scale."""
    if had is None or has is None:
        return has is None
    return had == has if text else had <= has


def _same_elements(a: str, b: str) -> bool:
    """Like `_unchanged`, for array elements, of which only the names of the types are known."""
    bare = _NUMBERS.sub("", a), _NUMBERS.sub("", b)
    if bare in _ELEMENTS:
        return bare[1] != "numeric" or not _scale(b)
    kind = "interval" if bare[0].startswith("interval") else _KINDS.get(bare[0])
    if a == b or kind is None or (bare[0] != bare[1] and kind != "interval"):
        return a == b
    one, other = (Column("", 0, text, kind, "string") for text in (a, b))
    return _unchanged(one, other)


def _same_digits(old: Column, new: Column) -> bool:
    """Whether a number has the same text as a numeric of the new type."""
    scale = _scale(new.source_type)
    if scale is None or (scale == 0 and old.kind in _WHOLE):
        return True
    return old.kind == "numeric" and scale == _scale(old.source_type)


def _seconds(kind: str) -> int:
    """Returns the number of fractional digits of seconds in a time type."""
    found = _NUMBERS.search(kind)
    return int(found[1]) if found else _MICROSECONDS


def _scale(kind: str) -> int | None:
    """Returns the scale of a numeric type; None if each value has its own."""
    found = _NUMBERS.search(kind)
    return int(found[2] or 0) if found else None


def refuse_new_key(before: Relation, after: Relation) -> None:
    """Refuses a row key with a new column for which older rows have no value, because they could not be
    found.

    Raises:
        BaselineNeededError: the values are not in the source's log.
    """
    had = {c.attnum for c in before.columns}
    for c in after.columns:
        if c.key and c.attnum not in had and c.missing is None:
            raise BaselineNeededError(
                f"column {c.name!r} is new and part of the row key: older rows have no value of it here",
                where=before.table,
                hint="`tailrace resync` takes a new baseline of the table",
            )


def missing_value(column: Column, missing: str) -> pa.Array:
    """Converts the text of the value that rows have in a column which was added after them.

    Returns:
        One value of the column's lake type.

    Raises:
        ApplyError: the type cannot hold the value.

    >>> missing_value(Column("n", 4, "integer", "int4", "int"), "7").to_pylist()
    [7]
    """
    values, bad = convert(column.type, column.kind, pa.array([missing], pa.string()))
    if bad is not None:
        raise ApplyError(
            f"the value {missing!r} that older rows have cannot be held by {column.type}",
            where=column.name,
            hint="give it a wider type (`types`), then `tailrace resync` the table",
        )
    return values
