"""Applies large batches to a history as Spark jobs, whose tasks run the engine's function per key.

`HistoryTable.apply` is faster for histories that fit into one process. Here, all versions and events of a
batch's keys are read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...engine.change_arrays import WHY
from ...engine.history import END_AT, START_AT
from ...engine.history_events import (
    OPERATION,
    SEQUENCE,
    TRUNCATE_EVENT,
    clean_events,
    event_schema,
    reject_late,
)
from ...engine.history_updates import SYSTEM_FROM, SYSTEM_TO, HistoryRules, starts_after, update_history
from ...execution import over_rows
from ...lake import delta as lake
from ...lake.opened import open_table
from ...model.positions import order_key
from ...model.quoting import quoted
from ...model.types import spark_type
from .events import APP, BATCH, flow_app_id
from .flow import HistoryFlow, with_masks
from .table import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_IS_EVENT, _IS_GONE = "__event", "__gone"


def apply_in_tasks(
    history: HistoryTable,
    flow: HistoryFlow,
    df: DataFrame,
    *,
    name: str = "",
    batch: int | None = None,
    at: dt.datetime | None = None,
) -> None:
    """Applies the rows of a DataFrame of any size, as `HistoryTable.apply` does; `name` is the flow's.

    A replay after a crash completes the missing part and changes nothing else.
    """
    spark = df.sparkSession
    if batch is None or order_key(lake.reached(open_table(history.events_path), flow_app_id(name))) < batch:
        number = order_key(lake.reached(open_table(history.events_path), APP)) + 1
        _store(spark, history, flow, df, number)
        if batch is not None:
            lake.commit(history.events_path, [], progress={flow_app_id(name): batch})
    finish_in_tasks(spark, history, at)


def finish_in_tasks(spark: SparkSession, history: HistoryTable, at: dt.datetime | None = None) -> None:
    """Applies stored events to the versions, as `HistoryTable.finish` does, whatever their number."""
    changed = _changed(spark, history, lake.reached(open_table(history.path), APP))
    number = lake.reached(open_table(history.events_path), APP)
    _merge(spark, history, changed, at or dt.datetime.now(dt.timezone.utc))
    if number is not None:
        lake.commit(history.path, [], progress={APP: number})


def _store(spark: SparkSession, history: HistoryTable, flow: HistoryFlow, df: DataFrame, number: int) -> None:
    ignored, rules = flow.ignored(df), history.rules
    stored = lake.arrow_schema(history.events_path)
    there = history.events()
    schema, horizon = there.schema, there.horizon

    def prepared(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = with_masks(pa.Table.from_batches([batch]), schema, rules.columns, ignored)
            found = reject_late(clean_events(rows, rules.key), horizon)
            why = pa.nulls(found.events.num_rows, pa.string())
            rows = pa.concat_tables([found.events.append_column(WHY, why), found.aside])
            numbers = pa.array(np.full(rows.num_rows, number))
            rows = rows.append_column(BATCH, numbers).select(stored.names)
            yield from rows.cast(stored).combine_chunks().to_batches()

    events = over_rows(flow.events(df), prepared, _ddl(stored))
    options = {"txnAppId": APP, "txnVersion": str(number)}
    events.write.format("delta").mode("append").options(**options).save(history.events_path)


def _changed(spark: SparkSession, history: HistoryTable, done: int | None) -> DataFrame:
    """Returns the removed versions (`_IS_GONE`) and the new ones, for the events after a batch; None: for all
    events."""
    from pyspark.sql import functions as F

    rules = history.rules
    events = spark.read.format("delta").load(history.events_path).where(f"{WHY} is null")
    versions = spark.read.format("delta").load(history.path)
    if rules.bitemporal:
        versions = versions.where(F.col(SYSTEM_TO).isNull()).drop(SYSTEM_FROM, SYSTEM_TO)
    fields = event_schema(history.data, history.sequence)
    named, key = [*map(quoted, fields.names)], [F.col(quoted(k)) for k in rules.key]
    truncates = events.where(F.col(OPERATION) == TRUNCATE_EVENT).select(*named).toArrow().cast(fields)
    fresh = events.where(F.col(BATCH) > order_key(done))
    own = events.where(F.col(OPERATION) != TRUNCATE_EVENT)
    if not fresh.where(F.col(OPERATION) == TRUNCATE_EVENT).limit(1).count():
        keys = fresh.select(*key).distinct()
        own, versions = (one.join(keys, list(rules.key), "left_semi") for one in (own, versions))
    both = own.select(*named, F.lit(True).alias(_IS_EVENT)).unionByName(
        versions.withColumn(_IS_EVENT, F.lit(False)), allowMissingColumns=True
    )
    made = rules.schema(history.data, history.sequence)
    made = pa.schema([f for f in made if f.name not in (SYSTEM_FROM, SYSTEM_TO)])
    work = _Work(rules, fields, made, truncates, history.events().horizon)
    shards = both.repartition(*key)
    return over_rows(shards, work.run, _ddl(pa.schema([*made, (_IS_GONE, pa.bool_())])))


class _Work:
    """The Spark task: computes versions from all events and versions of some keys."""

    def __init__(
        self, rules: HistoryRules, events: pa.Schema, made: pa.Schema, truncates: pa.Table, horizon: pa.Scalar
    ) -> None:
        self.rules, self.events, self.made, self.truncates = rules, events, made, truncates
        self.horizon = horizon

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the versions that change."""
        parts = list(batches)
        if not parts:
            return
        both = pa.Table.from_batches(parts)
        flags = both[_IS_EVENT]
        events = both.filter(flags).select(self.events.names).cast(self.events)
        rows = both.filter(pc.invert(flags)).select(self.made.names).cast(self.made)
        if not both.num_rows:
            return
        since = None
        if self.horizon.is_valid:
            since = starts_after(events, rows, self.rules.key, self.horizon)
            events = events.filter(pa.array(since.reached(events, SEQUENCE)))
            rows = rows.filter(pa.array(since.reached(rows, END_AT)))
        events = pa.concat_tables([events, self.truncates])
        found = update_history(events, self.events.empty_table(), rows, self.rules, since)
        for part, gone in ((rows.take(pa.array(found.removed)), True), (found.added, False)):
            some = part.select(self.made.names).cast(self.made)
            some = some.append_column(_IS_GONE, pa.array(np.full(some.num_rows, gone)))
            yield from some.combine_chunks().to_batches()


def _merge(spark: SparkSession, history: HistoryTable, changed: DataFrame, at: dt.datetime) -> None:
    from delta.tables import DeltaTable as SparkTable
    from pyspark.sql import functions as F

    rules = history.rules
    if rules.bitemporal:
        now = F.lit(at).cast("timestamp")
        changed = changed.withColumn(SYSTEM_FROM, now).withColumn(SYSTEM_TO, F.lit(None).cast("timestamp"))
    same = [f"t.{quoted(k)} = s.{quoted(k)}" for k in rules.key]
    same += [f"t.{START_AT} = s.{START_AT}", f"s.{_IS_GONE}"]
    same += [f"t.{SYSTEM_TO} is null"] if rules.bitemporal else []
    kept = changed.persist()
    merge = SparkTable.forPath(spark, history.path).alias("t").merge(kept.alias("s"), " and ".join(same))
    if rules.bitemporal:
        merge = merge.whenMatchedUpdate(set={SYSTEM_TO: f"s.{SYSTEM_FROM}"})
    else:
        merge = merge.whenMatchedDelete()
    names = lake.arrow_schema(history.path).names
    merge = merge.whenNotMatchedInsert(f"not s.{_IS_GONE}", {quoted(n): f"s.{quoted(n)}" for n in names})
    try:
        merge.execute()
    finally:
        kept.unpersist()


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{quoted(f.name)} {spark_type(f.type)}" for f in schema)
