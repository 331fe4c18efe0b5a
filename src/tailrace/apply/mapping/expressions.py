"""Spark SQL of task files, looked at before anything runs: its type, what it reads, what it may not be.

Spark itself analyses an expression against an empty table of the source's columns, so a column that is not
there or a wrong type is found without data.
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
"""Starts of names of Spark's expressions whose value is the query's moment, user or catalog."""


@dataclass(frozen=True)
class Expression:
    """An expression over a table's columns.

    Attributes:
        sql: Spark SQL.
        type: its Spark SQL type.
        nullable: whether it may be NULL, when the table's key columns are not.
        needs: the columns it reads, in the table's order.
    """

    sql: str
    type: str
    nullable: bool
    needs: tuple[str, ...]


def empty_of(spark: SparkSession, relation: Relation) -> DataFrame:
    """A table of a layout's columns, without rows; key columns are not NULL."""
    kinds = [f"{quoted(c.name)} {c.type}{' NOT NULL' if c.key else ''}" for c in relation.columns]
    return spark.createDataFrame([], ", ".join(kinds))


def analysed(empty: DataFrame, sql: str) -> Expression:
    """What an expression is over the columns of a table (from `empty_of`).

    Raises:
        ValueError: it is no expression over one row of them, or not the same whenever it is evaluated; the
            text says why.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    try:
        made = empty.select(F.expr(sql).alias("value"))
        plan = made._jdf.queryExecution().analyzed()
    except ParseException as error:
        raise ValueError(f"{sql!r} is no Spark SQL expression: {_first(error)}") from None
    except AnalysisException as error:
        raise ValueError(f"{sql!r}: {_first(error)}") from None
    if plan.nodeName() != "Project" or plan.children().head().children().size():
        raise ValueError(f"{sql!r} looks at more than one row (an aggregate, a window or a generator)")
    if plan.subqueries().size():
        raise ValueError(f"{sql!r} reads another table: rows would not follow when that one changes")
    top = plan.expressions().head()
    if not top.deterministic() or (odd := _moving(top)):
        raise ValueError(f"{sql!r} is not the same each time" + (f" ({odd})" if top.deterministic() else ""))
    field = made.schema["value"]
    read = set(_names(top.references()))
    needs = tuple(name for name in empty.columns if name in read)
    return Expression(sql, field.dataType.simpleString(), field.nullable, needs)


def _moving(expression: Any) -> str | None:
    """The name of a part whose value hangs on when or where it is evaluated, or that is no native one."""
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


def lacking(needs: Collection[str], there: Collection[str]) -> list[str]:
    """The columns of `needs` that are not in `there`.

    >>> lacking(("a", "b"), {"a"})
    ['b']
    """
    return [n for n in needs if n not in there]
