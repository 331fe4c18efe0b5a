"""Quotes names for Spark SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Returns a column's name for Spark's SQL and `F.col`, whatever characters it has.

    >>> quoted("a.b`c")
    '`a.b``c`'
    """
    return "`" + name.replace("`", "``") + "`"
