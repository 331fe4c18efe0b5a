"""Which columns of a target can become another type with the values they have."""

from __future__ import annotations

from ...change import Column
from ...errors import BaselineNeededError
from ...laketypes import arrow_type
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
