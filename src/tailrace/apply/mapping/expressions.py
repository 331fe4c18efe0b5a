"""Analyses the Spark SQL expressions of task files before they run: type, columns, and whether they are
allowed.

Spark analyses an expression against an empty table with the source's columns, so an unknown column or a wrong
type is found without data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...model.change import Relation
from ...model.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CLOCKS = ("Current", "Now", "LocalTimestamp")
"""Prefixes of the names of Spark's expressions that depend on the time, user or catalog of a query."""


@dataclass(frozen=True)
class Expression:
    """An expression over a table's columns.

    Attributes:
        sql: Spark SQL.
        type: its Spark SQL type.
        nullable: whether it may be NULL although the table's key columns are not.
        needs: the columns it reads, in the table's order.
    """

    sql: str
    type: str
    nullable: bool
    needs: tuple[str, ...]


def empty_of(spark: SparkSession, relation: Relation) -> DataFrame:
    """A table with the columns of a layout and no rows; key columns are NOT NULL."""
    kinds = [f"{quoted(c.name)} {c.type}{' NOT NULL' if c.key else ''}" for c in relation.columns]
    return spark.createDataFrame([], ", ".join(kinds))


def analysed(empty: DataFrame, sql: str) -> Expression:
    """Analyses an expression over the columns of a table, which `empty_of` returned.

    Raises:
        ValueError: it does not compute a value from one row, or its value is not always the same. The message
            says why.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    try:
        selected = empty.select(F.expr(sql).alias("value"))
        plan = selected._jdf.queryExecution().analyzed()
    except ParseException as error:
        raise ValueError(f"{sql!r} is not a Spark SQL expression: {_first(error)}") from None
    except AnalysisException as error:
        raise ValueError(f"{sql!r}: {_first(error)}") from None
    if plan.nodeName() != "Project" or plan.children().head().children().size():
        raise ValueError(f"{sql!r} reads more than one row (an aggregate, a window or a generator)")
    if plan.subqueries().size():
        raise ValueError(f"{sql!r} reads another table: rows would not be updated when that table changes")
    top = plan.expressions().head()
    if not top.deterministic() or (name := _variable(top)):
        raise ValueError(f"{sql!r} is not the same each time" + (f" ({name})" if top.deterministic() else ""))
    field = selected.schema["value"]
    read = set(_names(top.references()))
    needs = tuple(name for name in empty.columns if name in read)
    return Expression(sql, field.dataType.simpleString(), field.nullable, needs)


def _variable(expression: Any) -> str | None:
    """The name of a part whose value depends on when or where it is evaluated, or that is a UDF."""
    for one in _tree(expression):
        name = str(one.nodeName())
        if name.startswith(_CLOCKS) or "UDF" in name:
            return name
    return None


def _tree(expression: Any) -> Iterator[Any]:
    yield expression
    children = expression.children()
    for i in range(children.size()):
        yield from _tree(children.apply(i))


def _names(attributes: Any) -> Iterator[str]:
    found = attributes.toSeq()
    for i in range(found.size()):
        yield str(found.apply(i).name())


def _first(error: Exception) -> str:
    text = str(error).strip().splitlines()[0]
    return text.split("] ", 1)[-1].split(" SQLSTATE", 1)[0]


def missing(needs: Collection[str], columns: Collection[str]) -> list[str]:
    """The names of `needs` that are not in `columns`.

    >>> missing(("a", "b"), {"a"})
    ['b']
    """
    return [n for n in needs if n not in columns]
