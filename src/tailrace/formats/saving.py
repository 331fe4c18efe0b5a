"""Tables written to folders, several side by side; what `files` reads."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, wait
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..execution import thread_pool
from ..model.quoting import quoted
from .delta_tables import laid_out
from .files import CSV

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def save(tables: Mapping[str, DataFrame], path: str, kind: str, *, group_bytes: int | None = None) -> None:
    """Writes each table into a folder named after it. If one fails, or Ctrl-C comes, the jobs of the others
    end, too.

    Args:
        tables: tables by name.
        path: the folder.
        kind: kind of file.
        group_bytes: about how large a row group of Parquet files is; Spark's 128 MB if it is not given.

    Raises:
        ConfigError: the folder has something in it already.
    """
    places = {name: Path(path) / name for name in tables}
    for place in places.values():
        if place.exists() and any(place.iterdir()):
            raise ConfigError(f"{place} is not empty", hint="write into a new folder")
    tag = f"tailrace-{uuid.uuid4().hex}"
    with thread_pool("save", worth=len(tables) > 1) as pool:
        jobs = [
            pool.submit(_save, df, str(places[name]), kind, tag, group_bytes) for name, df in tables.items()
        ]
        try:
            done = wait(jobs, return_when=FIRST_EXCEPTION).done
            if failed := [e for job in jobs if job in done and (e := job.exception())]:
                raise failed[0]
        except BaseException:
            for job in jobs:
                job.cancel()
            next(iter(tables.values())).sparkSession.sparkContext.cancelJobsWithTag(tag)
            raise


def _save(df: DataFrame, place: str, kind: str, tag: str, group_bytes: int | None) -> None:
    context = df.sparkSession.sparkContext
    context.addJobTag(tag)
    try:
        writer = (as_text(df) if kind in ("csv", "json") else df).write.mode("append")
        if kind == "csv":
            writer.options(**CSV).csv(place)
        elif kind == "json":
            writer.option("ignoreNullFields", "false").json(place)
        else:
            if kind == "delta":
                laid_out(df, place)
            elif group_bytes:
                writer = writer.option("parquet.block.size", group_bytes)
            writer.format(kind).save(place)
    finally:
        context.removeJobTag(tag)


def as_text(df: DataFrame) -> DataFrame:
    """Binary columns as upper-case hex, timestamps with all their digits, arrays as one text."""
    from pyspark.sql import functions as F

    from .openedge.arrays import join_array

    made = []
    for field in df.schema:
        value, kind = F.col(quoted(field.name)), field.dataType.simpleString()
        if kind == "binary":
            value = F.hex(value)
        elif kind.startswith("array"):
            value = join_array(value)
        elif kind.startswith("timestamp") or kind in ("double", "float"):
            value = value.cast("string")
        made.append(value.alias(field.name))
    return df.select(*made)
