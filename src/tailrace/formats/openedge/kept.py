"""What a canonical table's schema keeps of the OpenEdge tables it was read from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
KEPT = "openedge"
"""Metadata key of the column change_seq under which `Kept` is stored as JSON text."""


@dataclass(frozen=True)
class Kept:
    """What a canonical table's schema keeps of the OpenEdge tables it was read from.

    Attributes:
        tables: the vendor's tables there were: plain name (`_file`) -> name as it was given.
        change_table: the name of its change table; None: it had none.
        positions: column -> its bit in field maps.
        rows: metadata rows about it, by plain table name; times are text.
        added: whether the tables have the columns that tailrace adds.
        zoned: columns whose times came as text with their offsets, in order.
    """

    tables: Mapping[str, str]
    change_table: str | None
    positions: Mapping[str, int]
    rows: Mapping[str, Sequence[Row]]
    added: bool = False
    zoned: Sequence[str] = ()

    def to_json(self) -> str:
        """As text, for the schema.

        >>> k = Kept({"_file": "PUB._File"}, None, {"a": 1}, {"_file": [{"_Owner": "PUB"}]}, zoned=["a"])
        >>> Kept.from_json(k.to_json()) == k
        True
        """
        return json.dumps(vars(self), default=str)

    @staticmethod
    def from_json(text: str) -> Kept:
        """Parsed from `to_json`'s text."""
        return Kept(**json.loads(text))
