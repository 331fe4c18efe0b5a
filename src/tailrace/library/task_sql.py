"""SQL over a task: its tables as views, and questions to them as table functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..config.task import Task
from ..errors import ConfigError, UnsupportedError
from ..query.calls import QUESTIONS, Call, replaced
from ..query.result import Result
from ..query.spark_rows import failed, streamed
from ..query.sql import asked
from .task_table import TaskTable
from .task_views import connected, places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KINDS = {"Sequence": list, "Mapping": dict, "bool": bool}
"""What is in the type of a parameter -> what its literal is."""


class AskedTask(Protocol):
    """A task with what statements may ask of it."""

    @property
    def task(self) -> Task:
        """What its file says."""

    @property
    def tables(self) -> list[str]:
        """The tables that it has, or had."""

    def table(self, name: str) -> TaskTable:
        """One of them; ConfigError: it has none of that name."""

    @property
    def transactions(self) -> Callable[..., Result]:
        """A question about all tables."""


def in_duckdb(task: AskedTask, statement: str) -> Result:
    """The rows of a statement of DuckDB's; see `OpenTask.sql`."""
    given, plain = _questions(task, statement)
    connection = connected(task.task, task.tables)
    return asked(connection, plain, {name: result.arrow for name, result in given.items()})


def in_spark(task: AskedTask, statement: str, spark: SparkSession) -> Result:
    """The rows of a statement of Spark's, as they come; those of questions in it are held in this process.

    Raises:
        UnsupportedError: others see the session's catalog: tables would be left there; or it has another
            table of the same name.
    """
    from pyspark.errors import PySparkException

    if spark.conf.get("spark.sql.catalogImplementation") != "in-memory":
        raise UnsupportedError(
            "the Spark session has a catalog that others see",
            hint="read the tables by path (docs/readers.md)",
        )
    given, plain = _questions(task, statement)
    for name, path in places(task.task, task.tables):
        _made(spark, name, path)
    for name, result in given.items():
        result.spark(spark).createOrReplaceTempView(name)
    try:
        return streamed(spark.sql(plain), statement)
    except PySparkException as error:
        raise failed(error, statement) from None


def _made(spark: SparkSession, name: str, path: str) -> None:
    """Names a Delta table in the session's catalog.

    Raises:
        UnsupportedError: the session has another table of that name.
    """
    schema, _, table = name.rpartition(".")
    place = f"{_ticked(schema or 'default')}.{_ticked(table)}"
    if spark.catalog.tableExists(place):
        row = spark.sql(f"DESCRIBE DETAIL {place}").first()
        if row is None or row["location"].removeprefix("file:").rstrip("/") != path.rstrip("/"):
            raise UnsupportedError(f"the Spark session has another table {name}", hint="begin a new session")
        return
    if schema:
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {_ticked(schema)}")
    location = path.replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"CREATE TABLE {place} USING delta LOCATION '{location}'")


def _questions(task: AskedTask, statement: str) -> tuple[dict[str, Result], str]:
    """The answers to a statement's questions, by the names that stand for them in the statement."""
    found: dict[str, Result] = {}

    def named(call: Call) -> str:
        found[name := f"tailrace_answer_{len(found) + 1}"] = _answer(task, call)
        return name

    plain = replaced(statement, named)
    return found, plain


def _answer(task: AskedTask, call: Call) -> Result:
    """What a question gives.

    Raises:
        ConfigError: it names no table, or takes no such arguments.
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
    made: Result = question(**_arguments(call, inspect.signature(question), rest, named))
    return made


def _arguments(
    call: Call, taken: inspect.Signature, given: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Literals as the arguments of a method, whose names are taken in any case; a text is a list of one."""
    kinds = {n: str(p.annotation) for n, p in taken.parameters.items() if "pa.Table" not in str(p.annotation)}
    names = {n.lower(): n for n in kinds}
    try:
        bound = taken.bind(*given, **{names.get(n.lower(), n.lower()): v for n, v in named.items()}).arguments
    except TypeError as error:
        raise _refused(call, f"{error}; it takes {', '.join(kinds)}") from None
    for name, value in bound.items():
        if name not in kinds:
            raise _refused(call, f"{name} is for Python alone; it takes {', '.join(kinds)}")
        if "Sequence" in kinds[name] and isinstance(value, str):
            bound[name] = [value]
        for kind, wanted in _KINDS.items():
            if kind in kinds[name] and not isinstance(bound[name], wanted) and value is not None:
                raise _refused(call, f"{name} is {value!r}")
    return bound


def _refused(call: Call, why: str) -> ConfigError:
    return ConfigError(
        f"{call.question}(...): {why}", hint=f"write {call.question}('schema.table', name => value)"
    )


def _ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def words(task: AskedTask) -> list[str]:
    """What a prompt completes: tables, their columns, and questions."""
    found: Mapping[str, None] = dict.fromkeys(name for name, _ in places(task.task, task.tables))
    columns = {c for t in task.tables for c in task.table(t).columns}
    return sorted({*found, *columns, *(f"{q}(" for q in QUESTIONS)})
