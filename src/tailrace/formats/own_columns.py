"""Columns that tailrace adds to a vendor's: no vendor's table has one; people see them under short names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import FormatError
from .base import ASIDE, OWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def refuse_own(tables: Mapping[str, DataFrame], where: str) -> None:
    """Raises FormatError if one of the tables that were read has such a column of its own."""
    for name, df in tables.items():
        own = [c for c in df.columns if c.lower().startswith(OWN)]
        if odd := [c for c in own if c not in ASIDE or own.count(c) > 1]:
            raise FormatError(
                f"{name} has a column {odd[0]}: names that begin with {OWN} are those that tailrace adds",
                where=where,
                hint="give it another name where the files are made",
            )


def shown(columns: Sequence[str]) -> dict[str, str]:
    """Column -> its name in what is kept or shown of rows, for those that were added to them.

    >>> shown(["id", "tailrace__why", "tailrace__row", "_Row"])
    {'tailrace__why': '_why'}
    """
    theirs = {c.lower() for c in columns}
    short = {c: "_" + c.removeprefix(OWN) for c in columns if c in ASIDE}
    return {c: name for c, name in short.items() if name not in theirs}
