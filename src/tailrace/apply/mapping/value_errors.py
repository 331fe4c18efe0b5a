"""Errors of jobs in which an expression of a mapping could not be computed from a row."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...errors import ApplyError, causes
from .prepare import Prepared

_DATA = re.compile(r"\[([A-Z_.]+)\] (.*?)\s*SQLSTATE: 22\w{3}", re.DOTALL)
"""Class 22 of SQLSTATE: data exceptions."""
_FRAGMENT = re.compile(r"== SQL[^\n]*==\n(.*?)\n\s*\^", re.DOTALL)
_ADVICE = re.compile(r"\s*If necessary set \"spark\.sql\.ansi\.enabled\"[^.]*\.?[^.]*bypass this error\.")


def value_error(
    error: BaseException, mappings: Iterable[Prepared], *, table: str, where: str
) -> ApplyError | None:
    """The error of a job that mapped a table, if a value in a row was the reason; otherwise None.

    Spark's message names the value (of a cast), and the part of the expression.

    >>> text = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\\n== SQL (line 1) ==\\n1 / n\\n^^^^^"
    >>> value_error(RuntimeError(text), [], table="s.t", where="baseline of s.t").what
    'the mapping of s.t (1 / n) cannot be computed from a row: [DIVIDE_BY_ZERO] Division by zero.'
    """
    text = "\n".join(map(str, causes(error)))
    if (found := _DATA.search(text)) is None:
        return None
    part = _FRAGMENT.search(text)
    fragment = part[1].strip() if part else ""
    named = {
        name: None
        for one in mappings
        for name, sql in [
            *((f"columns.{p.column.name}", p.expression.sql) for p in one.parts if p.expression),
            *([("where", one.where.sql)] if one.where else []),
        ]
        if fragment and fragment in sql
    }
    what = ", ".join(named) or "the mapping"
    reason = _ADVICE.sub("", f"[{found[1]}] {found[2]}")
    shown = f" ({fragment})" if fragment else ""
    return ApplyError(
        f"{what} of {table}{shown} cannot be computed from a row: {reason}",
        where=where,
        hint="let it accept every value (try_divide, try_cast, CASE), or leave such rows out (`where`); then "
        f"`tailrace resync` {table}",
    )
