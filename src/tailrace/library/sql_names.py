"""The names in SQL over a task: its tables, its table functions, and suggestions for unknown names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from ..errors import ConfigError
from ..model.nearest import meant
from ..query.result import Result
from ..query.table_functions import FUNCTIONS
from .task_views import View

SHOW_TABLES = ("show tables", "show all tables", "show", "describe", "desc", "pragma show_tables")
"""Normalized statements for which DuckDB would list the tables behind the task's views."""
SHOW_FUNCTIONS = ("show functions",)
_UNKNOWN = re.compile(r"(Table|Table Function|Scalar Function) with name (.+?) does not exist!")


def list_tables(found: Sequence[View]) -> Result:
    """Returns the tables with their descriptions."""
    return Result.of(pa.table({"name": [v.name for v in found], "is": [v.means for v in found]}))


def list_functions(asked: Callable[[str], Callable[..., Any]]) -> Result:
    """Returns the table functions with their arguments and results.

    Args:
        asked: returns the method of a function.
    """
    names = list(FUNCTIONS)
    takes = [", ".join(_arguments(name, asked(name))) for name in names]
    return Result.of(pa.table({"question": names, "takes": takes, "gives": [FUNCTIONS[n] for n in names]}))


def _arguments(name: str, method: Callable[..., Any]) -> list[str]:
    rest = [n for n in parameters(method) if n not in ("self", "tables")]
    return ["tables" if name == "transactions" else "table", *rest]


def parameters(question: Callable[..., Any]) -> dict[str, str]:
    """Returns the parameters of a table function, with their types. Tables in memory can be given only in
    Python."""
    taken = inspect.signature(question).parameters
    return {n: str(p.annotation) for n, p in taken.items() if "pa.Table" not in str(p.annotation)}


def unknown_name_error(
    error: Exception, statement: str, there: Callable[[], Collection[str]]
) -> ConfigError | None:
    """Returns an error for DuckDB's error about an unknown name, with similar names of the task.

    None if the error is about something else.

    Args:
        there: returns the tables.
    """
    found = _UNKNOWN.search(str(error))
    if found is None or (found[1] == "Scalar Function" and found[2] not in FUNCTIONS):
        return None
    hint = _table_hint(found[2], there()) if found[1] == "Table" else _function_hint(found[2])
    said = f"the statement cannot be run: there is no {found[1].lower()} {found[2]}"
    return ConfigError(said, where=statement, hint=hint)


def _table_hint(name: str, there: Collection[str]) -> str:
    near = [t for t in there if get_close_matches(name.lower(), [t.rpartition(".")[2].lower()])]
    did = f"did you mean {' or '.join(near[:3])}? " if near else ""
    return f"{did}SHOW TABLES lists the task's tables"


def _function_hint(name: str) -> str:
    if name in FUNCTIONS:
        return f"use it as a table, without a schema: FROM {name}('schema.table')"
    if name == "cut":
        return "use as_of for each table, at one position: FROM as_of('schema.table', at => 5)"
    did = meant(name, FUNCTIONS) or ""
    return f"{did} the functions are {', '.join(FUNCTIONS)}; SHOW FUNCTIONS lists their arguments".strip()
