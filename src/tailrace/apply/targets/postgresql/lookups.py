"""What rules ask of a PostgreSQL target before a batch: its rows under keys, and the changes it refuses. Each
stages what it asks about; answers are read whole before the staging tables go.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ....engine.rules import Rules
from ....model.change import Relation
from ....sources.postgresql.connect import Session, quoted
from ...plan import TableBatch
from . import stage as staging
from .place import Place
from .progress import Progress
from .refused import ANSWER, Trial, tried
from .values import cells

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows_under(
    spark: SparkSession,
    on: Session,
    place: Place,
    name: str,
    keys: DataFrame,
    wanted: Relation,
    target: str,
    have: Collection[str],
    only: str,
) -> DataFrame:
    """The columns of `wanted` of a target's rows under `keys`, of those that `only` (SQL) lets be; NULL in
    columns that are not among those that the target has (`have`)."""
    try:
        staged = staging.keys(on, place, name, keys, wanted, target)
        same = " AND ".join(f"t.{quoted(k)} = s.c{i}" for i, k in enumerate(wanted.key))
        shown = cells(wanted.columns, have)
        query = f"SELECT {shown} FROM {target} t JOIN {staged.source} ON {same} WHERE {only}"
        return staging.rows_of_query(spark, place, query, wanted).localCheckpoint(eager=True)
    finally:
        staging.drop(on, place.own(name))


def refused(
    spark: SparkSession,
    on: Session,
    place: Place,
    progress: Progress,
    name: str,
    batch: TableBatch,
    rules: Rules,
    letter: str | None,
) -> DataFrame | None:
    """The changes that the database refuses: `SEQ`, `OPER`, `WHY` (strings); None: none."""
    df, extra = tried(batch, letter)
    try:
        staged = staging.stage(on, place, name, df, batch.relation, extra, progress.target(batch.table))
        trial = Trial(on, place, progress, staged, batch.relation, rules, name)
        if not trial.run():
            return None
        answer, query = batch.relation.with_columns(ANSWER), f"SELECT * FROM {trial.into}"
        return staging.rows_of_query(spark, place, query, answer).localCheckpoint(eager=True)
    finally:
        staging.drop_all(on, place, name)
