"""Columns that answers add to a table's own: a table that has columns of such names is refused.

Neither of the two may silently stand for the other one.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ConfigError

_CHOOSE = "choose columns without them: columns=[...]; in SQL columns => [...]"
_PAIRS = "or ask for `pairs`, which keeps the table's columns apart"
_WAYS = {
    "net": f"{_CHOOSE}; {_PAIRS}",
    "net_changes": f"{_CHOOSE}; {_PAIRS}",
    "history": f"{_CHOOSE}; {_PAIRS}",
    "changes": f"{_CHOOSE}; or ask without columns_changed",
    "diff": "compare `as_of` of both places, which adds no columns",
    "keep_history": "leave them out (except_column_list of a pipeline), or give them other names",
}
"""What else can be asked, by question."""


def refuse_taken(question: str, columns: Iterable[str], own: Iterable[str], table: str | None) -> None:
    """Raises ConfigError when a table's columns have names that the answer to a question needs for itself.
    Upper and lower case are the same: they are to DuckDB and Spark, which read answers.

    >>> refuse_taken("net", ["id", "price"], ["_change_type"], "shop.item")
    >>> refuse_taken("net", ["id", "_Change_Type"], ["_change_type"], "shop.item")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: `net` adds columns with names that the table has already: _Change_Type
      where: shop.item
      hint: choose columns without them: columns=[...]; in SQL columns => [...]; or ask for `pairs`, which \
keeps the table's columns apart
    """
    mine = {n.casefold() for n in own}
    if taken := [n for n in columns if n.casefold() in mine]:
        raise ConfigError(
            f"`{question}` adds columns with names that the table has already: {', '.join(taken)}",
            where=table or None,
            hint=_WAYS[question],
        )
