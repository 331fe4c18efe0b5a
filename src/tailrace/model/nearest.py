"""Suggestions for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


def meant(word: str, there: Iterable[str], *, many: int = 3, cutoff: float = 0.5) -> str | None:
    """Returns a question with the nearest names, or None if none is near. Case is ignored.

    >>> meant("shop.itm", ["shop.item", "shop.items", "hr.pay"])
    'did you mean shop.item or shop.items?'
    >>> meant("SHOP.ITEM", ["shop.item"])
    'did you mean shop.item?'
    >>> meant("x", ["shop.item"]) is None
    True
    """
    spelled: dict[str, list[str]] = {}
    for name in there:
        spelled.setdefault(name.lower(), []).append(name)
    near = difflib.get_close_matches(word.lower(), list(spelled), n=many, cutoff=cutoff)
    near = [name for low in near for name in spelled[low]][:many]
    return f"did you mean {' or '.join(near)}?" if near else None


def meant_tables(pattern: str, there: Collection[str]) -> str | None:
    """Returns a question with the nearest tables or schemas for a pattern, or None.

    >>> meant_tables("Shop.*", ["shop.item", "crm_2.pay"])
    'did you mean shop.* or shop.item?'
    """
    return meant(pattern, [*sorted({f"{t.partition('.')[0]}.*" for t in there}), *there])
