"""Which columns of a target can become another type, or its key, with the values they have."""

from __future__ import annotations

from ...errors import BaselineNeededError
from ...model.change import Column, Relation
from ...model.types import arrow_type
from ...store.tables import widens

TEXTS = frozenset({"text", "varchar"})
"""Kinds whose text stays the same when one is made into the other."""


def refuse_retype(table: str, old: Column, new: Column, *, as_text: bool) -> None:
    """Refuses what the values kept here cannot be turned into as the source turned them.

    `as_text`: whether the target writes values of the old type as text in PostgreSQL's own words.

    Raises:
        BaselineNeededError: the column needs the source's own values.
    """
    if old.type == new.type:
        if old.kind == new.kind or old.type != "string" or {old.kind, new.kind} <= TEXTS:
            return
    elif new.type == "string":
        if as_text and new.kind in {*TEXTS, "numeric"}:
            return
    elif widens(arrow_type(old.type), arrow_type(new.type)):
        return
    raise BaselineNeededError(
        f"column {old.name!r} changed from {old.source_type} to {new.source_type}: "
        "its earlier values cannot be turned into that without the source",
        where=table,
        hint="`tailrace resync` takes a new baseline of the table",
    )


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
