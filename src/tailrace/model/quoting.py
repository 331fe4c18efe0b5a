"""Names in statements for Spark."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A column's name as Spark's SQL and `F.col` take it, whatever characters it has.

    >>> quoted("a.b`c")
    '`a.b``c`'
    """
    return "`" + name.replace("`", "``") + "`"
