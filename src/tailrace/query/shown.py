"""Answers as text: few rows, for people."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any


def cell(value: Any) -> str:
    """One value.

    >>> cell(["a", "b"]), cell({"id": 1, "name": None}), cell(None), cell(b"\\x01")
    ('a, b', 'id=1 name=NULL', '', '01')
    """
    if value is None:
        return ""
    if isinstance(value, dict):
        return " ".join(f"{k}={'NULL' if v is None else cell(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    return str(value)


def lines(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in plain text.

    >>> print(lines(["id", "name"], [[1, "a"], [22, None]]))
    id  name
    --  ----
    1   a
    22
    """
    texts = [list(names), *([cell(v) for v in row] for row in rows)]
    widths = [max(len(row[k]) for row in texts) for k in range(len(names))]
    texts.insert(1, ["-" * w for w in widths])
    return "\n".join(
        "  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in texts
    )
