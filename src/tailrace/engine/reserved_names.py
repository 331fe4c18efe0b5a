"""Columns that query results add to a table's own: a table with columns of the same names is refused.

So neither column silently replaces the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ConfigError

_CHOOSE = "choose columns without them: columns=[...]; in SQL columns => [...]"
_PAIRS = "or use `pairs`, which nests the table's columns"
_ALTERNATIVES = {
    "net": f"{_CHOOSE}; {_PAIRS}",
    "net_changes": f"{_CHOOSE}; {_PAIRS}",
    "history": f"{_CHOOSE}; {_PAIRS}",
    "changes": f"{_CHOOSE}; or leave out columns_changed",
    "diff": "compare `as_of` of both positions, which adds no columns",
    "keep_history": "leave them out (except_column_list of a pipeline), or rename them",
}
"""Alternatives per query."""


def refuse_reserved(question: str, columns: Iterable[str], own: Iterable[str], table: str | None) -> None:
    """Raises ConfigError if a table has columns with names that a query's result needs.

    Names are compared without case, as DuckDB and Spark do.

    >>> refuse_reserved("net", ["id", "price"], ["_change_type"], "shop.item")
    >>> refuse_reserved("net", ["id", "_Change_Type"], ["_change_type"], "shop.item")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: `net` adds columns with names that the table has already: _Change_Type
      where: shop.item
      hint: choose columns without them: columns=[...]; in SQL columns => [...]; or use `pairs`, which nests \
the table's columns
    """
    mine = {n.casefold() for n in own}
    if taken := [n for n in columns if n.casefold() in mine]:
        raise ConfigError(
            f"`{question}` adds columns with names that the table has already: {', '.join(taken)}",
            where=table or None,
            hint=_ALTERNATIVES[question],
        )
