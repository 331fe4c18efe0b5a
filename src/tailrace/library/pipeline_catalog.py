"""Registers a pipeline's targets in the session's catalog, as external Delta tables at the last
run's paths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ..errors import ConfigError
from ..lake import delta as lake
from ..model.quoting import quoted
from ..query.history.table import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refuse_other(spark: SparkSession, name: str) -> None:
    """Raises ConfigError if the catalog has a table of that name that is not a pipeline's target."""
    found = _entry(spark, name)
    if found is not None and not _is_target(found):
        raise ConfigError(
            f"the catalog has another table {name}, which no pipeline created",
            where=_location(found),
            hint="give the target another name, or rename that table",
        )


def register(spark: SparkSession, name: str, path: str) -> None:
    """Registers the history at a path in the catalog.

    An entry for another path is replaced; its data stays, as the table is external.
    """
    found = _entry(spark, name)
    if found is not None and _location(found) == path:
        return
    if found is not None:
        refuse_other(spark, name)
        spark.sql(f"DROP TABLE {_quoted(name)}")
    spark.sql(f"CREATE TABLE {_quoted(name)} USING DELTA LOCATION '{_escaped(path)}'")


def _entry(spark: SparkSession, name: str) -> dict[str, str] | None:
    """Returns the catalog's entry of a table without opening its files, which may be missing; None if there
    is no entry."""
    schema, _, table = name.rpartition(".")
    within = f"IN {_quoted(schema)} " if schema else ""
    rows = spark.sql(f"SHOW TABLE EXTENDED {within}LIKE '{_escaped(table)}'").collect()
    said = [row["information"] for row in rows if not row["isTemporary"]]
    return dict(re.findall(r"^(\w+): (.*)$", said[0], re.MULTILINE)) if said else None


def _location(found: dict[str, str]) -> str:
    return re.sub(r"^file:/*(?=/)", "", unquote(found.get("Location", ""))).rstrip("/")


def _is_target(found: dict[str, str]) -> bool:
    """Returns whether it is an external Delta table with a history, or without files."""
    if (found.get("Type"), found.get("Provider", "").lower()) != ("EXTERNAL", "delta"):
        return False
    try:
        HistoryTable.open(_location(found))
    except ConfigError:
        return not lake.exists(_location(found))
    return True


def _quoted(name: str) -> str:
    return ".".join(map(quoted, name.split(".")))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
