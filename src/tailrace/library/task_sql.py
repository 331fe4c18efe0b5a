"""SQL over a task: its tables as views, and queries of them as table functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..config.task import Task
from ..errors import ConfigError, TailraceError, UnsupportedError
from ..model.quoting import quoted
from ..query.result import Result
from ..query.spark_rows import statement_error, stream_rows
from ..query.sql import run_query
from ..query.table_functions import FUNCTIONS, FunctionCall, normalized, replace_calls
from ..targets.delta.tables import DeltaTables
from .sql_names import (
    SHOW_FUNCTIONS,
    SHOW_TABLES,
    list_functions,
    list_tables,
    parameters,
    unknown_name_error,
)
from .task_table import TaskTable
from .task_views import LeftOut, TaskViews, View, fold_case, unique_views, views

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

_DEFAULT = "default"
"""Spark's schema for names without one."""
_KINDS = {"Sequence": list, "Mapping": dict, "bool": bool}
"""The Python type of a parameter's literal, by a word in its type."""


class QueriedTask(Protocol):
    """The parts of a task that statements use."""

    @property
    def task(self) -> Task:
        """The parsed task file."""

    @property
    def tables(self) -> list[str]:
        """The tables that it has, or had."""

    def table(self, name: str) -> TaskTable:
        """Returns one of its tables; raises ConfigError if it has no table of that name."""

    @property
    def transactions(self) -> Callable[..., Result]:
        """A table function over all tables."""


def in_duckdb(task: QueriedTask, statement: str) -> Result:
    """Returns the rows of a DuckDB statement; see `OpenTask.sql`."""
    if (listed := _listed(task, normalized(statement))) is not None:
        return listed
    given, plain = _replace_functions(task, statement)
    shown = TaskViews(task.task, task.tables)

    def why(error: Exception) -> TailraceError | None:
        return shown.why(error) or unknown_name_error(
            error, statement, lambda: [v.name for v in _views(task)]
        )

    return run_query(shown.connection, plain, given, why)


def _listed(task: QueriedTask, said: str) -> Result | None:
    """Returns the list of tables or functions that a statement asks for; None for other statements."""
    if said in SHOW_TABLES:
        return list_tables(_views(task))
    if said in SHOW_FUNCTIONS:
        return list_functions(
            lambda name: task.transactions if name == "transactions" else getattr(TaskTable, name)
        )
    return None


def _views(task: QueriedTask) -> list[View]:
    return views(task.task, task.tables)


def in_spark(task: QueriedTask, statement: str, spark: SparkSession) -> Result:
    """Returns the rows of a Spark statement as a stream; those of table functions are kept in memory.

    Raises:
        UnsupportedError: the session's catalog is shared, so that tables would remain in it, or it has
            another table of the same name.
    """
    from pyspark.errors import PySparkException

    if spark.conf.get("spark.sql.catalogImplementation") != "in-memory":
        raise UnsupportedError(
            "the Spark session has a catalog that is shared with other sessions",
            hint="read the tables by path (docs/readers.md)",
        )
    given, plain = _replace_functions(task, statement)
    shown, left_out = unique_views(task.task, _views(task), _DEFAULT)
    for one in shown:
        if (why := _name_error(one)) is None:
            _create_table(spark, one)
        else:
            left_out.append(LeftOut(one, why))
    for name, result in given.items():
        result.spark(spark).createOrReplaceTempView(name)
    try:
        return stream_rows(spark.sql(plain), statement)
    except PySparkException as error:
        raise _left_out(error, left_out) or statement_error(error, statement) from None


def _name_error(one: View) -> UnsupportedError | None:
    """Returns why Spark's catalog cannot have a view; None if it can."""
    if not isinstance(one.tables, DeltaTables):
        return UnsupportedError(
            f"{one.name} is an Iceberg table, which this release of Spark does not read",
            where=one.path,
            hint=f"run it without --spark, or write FROM current('{one.name}')",
        )
    if all(re.fullmatch(r"\w*", part, re.ASCII) for part in one.place):
        return None
    return UnsupportedError(
        f"names in Spark's catalog have ASCII letters, digits and _ only, but {one.name} has others",
        where=one.path,
        hint=f"run it without --spark, or write delta.{quoted(one.path)} in place of the name",
    )


def _left_out(error: PySparkException, views: Sequence[LeftOut]) -> TailraceError | None:
    """Returns why a statement fails that names a view which is left out; None if it names none."""
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return None
    said = (error.getMessageParameters() or {}).get("relationName", "")
    *_, schema, table = [_DEFAULT, *(p.replace("``", "`") for p in re.findall(r"`((?:[^`]|``)*)`", said))]
    named = (fold_case(schema), fold_case(table))
    return next((left.why for left in views if left.view.folded(_DEFAULT) == named), None)


def _create_table(spark: SparkSession, one: View) -> None:
    """Creates a Delta table in the session's catalog.

    Raises:
        UnsupportedError: the session has another table of that name.
    """
    schema, table = one.place
    place = f"{quoted(schema or _DEFAULT)}.{quoted(table)}"
    if spark.catalog.tableExists(place):
        row = spark.sql(f"DESCRIBE DETAIL {place}").first()
        if row is None or row["location"].removeprefix("file:").rstrip("/") != one.path.rstrip("/"):
            raise UnsupportedError(
                f"the Spark session has another table {one.name}", hint="start a new session"
            )
        return
    if schema:
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    location = one.path.replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"CREATE TABLE {place} USING delta LOCATION '{location}'")


def _replace_functions(task: QueriedTask, statement: str) -> tuple[dict[str, Result], str]:
    """Returns the results of a statement's table functions by name, and the statement with these names."""
    found: dict[str, Result] = {}

    def named(call: FunctionCall) -> str:
        found[name := f"tailrace_answer_{len(found) + 1}"] = _call(task, call)
        return name

    plain = replace_calls(statement, named)
    return found, plain


def _call(task: QueriedTask, call: FunctionCall) -> Result:
    """Returns the result of a table function.

    Raises:
        ConfigError: the table is missing, or an argument is not valid.
    """
    first, rest = call.given[:1], call.given[1:]
    if call.question == "transactions":
        question, named = task.transactions, dict(call.named)
        if first and "tables" in named:
            raise _refused(call, "the tables are given twice")
        if first:
            named["tables"] = first[0]
    else:
        if not first or not isinstance(first[0], str):
            raise _refused(call, "its first argument is the table: 'schema.table'")
        question, named = getattr(task.table(first[0]), call.question), call.named
    made: Result = question(**_arguments(call, question, rest, named))
    return made


def _arguments(
    call: FunctionCall, question: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Converts literals to a method's arguments, whose names may have any case; a text is a list of one
    element."""
    kinds = parameters(question)
    names = {n.lower(): n for n in kinds}
    try:
        bound = (
            inspect.signature(question)
            .bind(*given, **{names.get(n.lower(), n.lower()): v for n, v in named.items()})
            .arguments
        )
    except TypeError as error:
        raise _refused(call, f"{error}; its arguments are {', '.join(kinds)}") from None
    for name, value in bound.items():
        if name not in kinds:
            raise _refused(call, f"{name} can be given only in Python; its arguments are {', '.join(kinds)}")
        if "Sequence" in kinds[name] and isinstance(value, str):
            bound[name] = [value]
        for kind, wanted in _KINDS.items():
            if kind in kinds[name] and not isinstance(bound[name], wanted) and value is not None:
                raise _refused(call, f"{name} is {value!r}")
    return bound


def _refused(call: FunctionCall, why: str) -> ConfigError:
    return ConfigError(
        f"{call.question}(...): {why}", hint=f"write {call.question}('schema.table', name => value)"
    )


def completions(task: QueriedTask) -> list[str]:
    """Returns the completions of a prompt: tables, their columns, and table functions."""
    found: Mapping[str, None] = dict.fromkeys(v.name for v in _views(task))
    columns = {c for t in task.tables for c in task.table(t).columns}
    return sorted({*found, *columns, *(f"{q}(" for q in FUNCTIONS)})
