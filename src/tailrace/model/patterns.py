"""Names of tables and patterns for them: `*`, `?` and `[...]` as in file names, case-sensitive."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

_SIGNS = frozenset("*?[")


def is_pattern(said: str) -> bool:
    """Returns whether a text may match several names.

    >>> is_pattern("shop.*"), is_pattern("shop.item")
    (True, False)
    """
    return not _SIGNS.isdisjoint(said)


def fits(name: str, *said: str) -> bool:
    """Returns whether a name equals or matches one of the given texts.

    >>> fits("shop.item", "log.*", "shop.*"), fits("shop.a[1]", "shop.a[1]"), fits("shop.item")
    (True, True, False)
    """
    return any(name == one or fnmatchcase(name, one) for one in said)


def fitting(names: Iterable[str], *said: str) -> list[str]:
    """Returns the names that `fits` accepts.

    >>> fitting(["shop.item", "log.a"], "shop.*")
    ['shop.item']
    """
    return [name for name in names if fits(name, *said)]
