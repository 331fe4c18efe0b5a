"""The mark that a commit leaves of the layout which it gives to a whole Delta target.

Where names were exchanged, or a column was made again, the names alone do not tell which layout a target has:
the newest mark does. Whatever replaces all rows leaves one, layouts and baselines alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from deltalake import DeltaTable

from ...model.change import Relation

_MARK = "tailrace.layout"
_LOOK_BACK = 50


def mark(relation: Relation) -> dict[str, str]:
    """Commit info for a layout.

    >>> one = Relation(1, "s", "t", "d", ())
    >>> mark(one) == mark(Relation(2, "s", "t", "d", ())), list(mark(one))
    (True, ['tailrace.layout'])
    """
    words = json.dumps([[c.attnum, c.name, c.type] for c in relation.columns])
    return {_MARK: hashlib.sha256(words.encode()).hexdigest()[:16]}


def is_marked(info: Mapping[str, object]) -> bool:
    """Whether a commit, by its info, gives the whole target a layout.

    >>> is_marked(mark(Relation(1, "s", "t", "d", ()))), is_marked({"operation": "WRITE"})
    (True, False)
    """
    return _MARK in info


def has_mark(table: DeltaTable, relation: Relation) -> bool:
    """Whether the newest mark of a target is that of a layout."""
    marks = [h[_MARK] for h in table.history(_LOOK_BACK) if is_marked(h)]
    return bool(marks) and marks[0] == mark(relation)[_MARK]
