"""Suggestions for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(word: str, there: Iterable[str], *, many: int = 3, cutoff: float = 0.5) -> str | None:
    """A question with the nearest names; None if none is near.

    >>> meant("shop.itm", ["shop.item", "shop.items", "hr.pay"])
    'did you mean shop.item or shop.items?'
    >>> meant("x", ["shop.item"]) is None
    True
    """
    near = difflib.get_close_matches(word, list(there), n=many, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else None
