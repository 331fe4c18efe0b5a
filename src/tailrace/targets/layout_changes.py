"""Which columns of a target can become another type, or its key, with the values they have."""

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
"""Kinds whose text stays the same when one is made into the other."""
_WHOLE = frozenset({"int2", "int4", "int8"})
_TIMES = frozenset({"timestamp", "timestamptz", "time", "timetz"})
_ELEMENTS = (
    ("smallint", "integer"), ("smallint", "bigint"), ("integer", "bigint"),
    *((whole, "numeric") for whole in ("smallint", "integer", "bigint")), ("character varying", "text"),
    ("text", "character varying"),
)  # fmt: skip
"""Elements of arrays whose text stays the same."""
_KINDS = {
    "character": "bpchar", "character varying": "varchar", "numeric": "numeric",
    "time without time zone": "time", "time with time zone": "timetz",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
}  # fmt: skip
"""Kinds of elements whose types have modifiers."""
_NUMBERS = re.compile(r"\((\d+)(?:,(-?\d+))?\)")
_MICROSECONDS = 6


def refuse_retype(table: str, old: Column, new: Column, *, as_text: bool) -> None:
    """Refuses what the values kept here cannot be turned into as the source turned them.

    `as_text`: whether the target writes values of the old type as text in PostgreSQL's own words.

    Raises:
        BaselineNeededError: the column needs the source's own values.
    """
    if old.type == new.type:
        if RULE in (old.kind, new.kind):  # an earlier release, or whoever made the target, did not say so
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
        f"{changed(old, new)}; its earlier values cannot be turned into that without the source",
        where=table,
        hint=f"{named}`tailrace resync` takes a new baseline of the table",
    )


def changed(old: Column, new: Column) -> str:
    """Says that a column has another type: the source's, or the one that `types` gives it here.

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
    """Whether it is the same type at the source, and another one here."""
    return (old.source_type, old.kind) == (new.source_type, new.kind) and old.type != new.type


def _unchanged(old: Column, new: Column) -> bool:
    """Whether PostgreSQL's own conversion between two types of one kind leaves every value as it was.

    Their modifiers tell: fewer digits of a second, or behind the point, round. Text is not cut: what is too
    long is an error, but for blanks at its end.

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
    if old.kind == "bpchar":  # blanks fill it up
        return a == b
    if old.kind == "array":
        return _same_elements(a.rstrip("[]"), b.rstrip("[]"))
    return True


def _keeps_digits(had: int | None, has: int | None, *, text: bool) -> bool:
    """Whether numerics of one scale are the same in another one; as text they have as many digits."""
    if had is None or has is None:
        return has is None
    return had == has if text else had <= has


def _same_elements(a: str, b: str) -> bool:
    """`_unchanged` for the elements of arrays, of which only the words are known."""
    bare = _NUMBERS.sub("", a), _NUMBERS.sub("", b)
    if bare in _ELEMENTS:
        return bare[1] != "numeric" or not _scale(b)
    kind = "interval" if bare[0].startswith("interval") else _KINDS.get(bare[0])
    if a == b or kind is None or (bare[0] != bare[1] and kind != "interval"):
        return a == b
    one, other = (Column("", 0, text, kind, "string") for text in (a, b))
    return _unchanged(one, other)


def _same_digits(old: Column, new: Column) -> bool:
    """Whether a number is written alike as a numeric of this type."""
    scale = _scale(new.source_type)
    if scale is None or (scale == 0 and old.kind in _WHOLE):
        return True
    return old.kind == "numeric" and scale == _scale(old.source_type)


def _seconds(words: str) -> int:
    """Digits of a second that a type of times has."""
    found = _NUMBERS.search(words)
    return int(found[1]) if found else _MICROSECONDS


def _scale(words: str) -> int | None:
    """Digits behind the point; None: as many as each value has."""
    found = _NUMBERS.search(words)
    return int(found[2] or 0) if found else None


def refuse_new_key(before: Relation, after: Relation) -> None:
    """Refuses a row key with a column that older rows have no value of: they would not be found again.

    Raises:
        BaselineNeededError: the source gave them values that are not in its log.
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
    """The value that rows older than a column have, from the text of the source: one row of its lake type.

    Raises:
        ApplyError: the type cannot hold it.

    >>> value_of(Column("n", 4, "integer", "int4", "int"), "7").to_pylist()
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
