"""Runs pipelines written for Spark's `pyspark.pipelines` on plain Spark with Delta.

    from tailrace import pipelines as dp          # was: from pyspark import pipelines as dp

    @dp.temporary_view
    def changes():
        return spark.readStream.format("delta").load("landed/customers")

    dp.create_streaming_table("customers")
    dp.create_auto_cdc_flow(
        target="customers", source="changes", keys=["id"], sequence_by="seq",
        apply_as_deletes="op = 'D'", except_column_list=["op", "seq"], stored_as_scd_type=2,
    )
    dp.run(storage="lake")

`run` does what `spark-pipelines run` does: it processes the available input, and ends. Each target is a
history (`query.history.table`) in a folder of `storage`, and a table of the session's catalog.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, UnsupportedError
from .lake.delta import exists
from .lake.file_names import file_name
from .library import pipeline_catalog
from .query.history.flow import HistoryFlow
from .query.history.snapshots import GONE, VERSION, changed_rows, version_column, version_number, version_of
from .query.history.table import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Snapshots = Any
"""The name of a view or table, or a function: the last version (None: none yet) -> the next (DataFrame,
version), or None."""
Version = int | dt.datetime
"""The version of a snapshot."""
_SPARKS_OWN = ("append_flow", "create_sink", "materialized_view", "table")
FEW_ROWS = 1_000_000
"""Spark's tasks process batches of more rows, this process smaller ones."""


@dataclass(frozen=True)
class _Flow:
    name: str
    target: str
    source: Snapshots
    how: HistoryFlow
    once: bool
    snapshots: bool = False


@dataclass
class CdcPipeline:
    """Views, targets and flows; the module's functions are the methods of one instance, for scripts."""

    views: dict[str, Callable[[], DataFrame]] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)
    flows: list[_Flow] = field(default_factory=list)

    def temporary_view(self, function: Any = None, *, name: str | None = None, **_: Any) -> Any:
        """Registers a function that returns a view's DataFrame; a decorator."""
        if function is None:
            return lambda view: self.temporary_view(view, name=name)
        self.views[name or function.__name__] = function
        return function

    def create_streaming_table(self, name: str, **more: Any) -> None:
        """Registers a target. Of Spark's other arguments only `comment` is accepted, and ignored.

        Raises:
            UnsupportedError: another argument is given.
        """
        if unknown := [n for n, v in more.items() if v is not None and n != "comment"]:
            raise UnsupportedError(f"create_streaming_table: {', '.join(unknown)} not supported", where=name)
        self.targets.append(name)

    def create_auto_cdc_flow(
        self,
        target: str,
        source: str,
        keys: list[Any],
        sequence_by: Any,
        apply_as_deletes: Any = None,
        column_list: list[Any] | None = None,
        except_column_list: list[Any] | None = None,
        stored_as_scd_type: Any = None,
        name: str | None = None,
        *,
        once: bool = False,
        spark_conf: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        """Sends the rows of a view or table (read as a stream) into a target as events.

        The arguments are those of Spark; `more` are arguments of `query.history.flow.HistoryFlow` that Spark
        does not have. Several flows may write to one target. `once`: the flow runs only one time, e.g. to
        load rows from before the stream.
        """
        if spark_conf:
            raise UnsupportedError("spark_conf is not supported", where=target, hint="set it on the session")
        how = HistoryFlow(
            keys, sequence_by, apply_as_deletes, None, column_list, except_column_list, stored_as_scd_type
        )
        try:
            how = HistoryFlow(**{**how.__dict__, **more})
        except TypeError as error:
            raise ConfigError(f"create_auto_cdc_flow: {error}", where=target) from None
        self._add(_Flow(name or target, target, source, how, once))

    def create_auto_cdc_from_snapshot_flow(
        self,
        target: str,
        source: Snapshots,
        keys: list[Any],
        stored_as_scd_type: Any = None,
        track_history_column_list: list[Any] | None = None,
        track_history_except_column_list: list[Any] | None = None,
        *,
        name: str | None = None,
        once: bool = False,
    ) -> None:
        """Sends the changes from one snapshot to the next into a target.

        `source`: a view or table, of which each run takes one snapshot; or a function from the last version
        (None at first) to the next snapshot and its version (a whole number or a time, later than the last).
        It returns None if there is no new snapshot.
        """
        how = HistoryFlow(
            keys,
            VERSION,
            apply_as_deletes=GONE,
            except_column_list=[VERSION, GONE],
            stored_as_scd_type=stored_as_scd_type,
            track_history_column_list=track_history_column_list,
            track_history_except_column_list=track_history_except_column_list,
        )
        self._add(_Flow(name or target, target, source, how, once, snapshots=True))

    def run(self, storage: str | Path, *, session: SparkSession | None = None) -> dict[str, HistoryTable]:
        """Processes the available input, flow after flow, and returns the targets' histories.

        Raises:
            ConfigError: a flow's source does not exist; the catalog has another table with a target's name.
        """
        spark = session or _session()
        histories: dict[str, HistoryTable] = {}
        for target in {flow.target for flow in self.flows}:
            pipeline_catalog.refuse_other(spark, target)
        for flow in self.flows:
            path = str(Path(storage).absolute() / file_name(flow.target))
            checkpoint = str(Path(storage).absolute() / "_checkpoints" / file_name(flow.name))
            run = _snapshots if flow.snapshots else _events
            run(flow, spark, self.views, path, checkpoint)
            histories[flow.target] = HistoryTable.open(path)
            histories[flow.target].maintain()
            pipeline_catalog.register(spark, flow.target, path)
        return histories

    def clear(self) -> None:
        """Removes all views, targets and flows."""
        self.views.clear()
        self.targets.clear()
        self.flows.clear()

    def _add(self, flow: _Flow) -> None:
        if flow.target not in self.targets:
            raise ConfigError(
                f"the target {flow.target} was not created", hint=f'create_streaming_table("{flow.target}")'
            )
        if flow.name in {one.name for one in self.flows}:
            raise ConfigError(f"there are two flows {flow.name}", where=flow.target, hint="give one a name")
        self.flows.append(flow)


def _session() -> SparkSession:
    from .runtime.session import session

    return session("tailrace pipelines")


def _source(
    flow: _Flow, spark: SparkSession, views: dict[str, Callable[[], DataFrame]], *, stream: bool
) -> DataFrame:
    if flow.source in views:
        return views[flow.source]()
    if not spark.catalog.tableExists(flow.source):
        raise ConfigError(
            f"there is no view or table {flow.source}", where=flow.name, hint=f"there are {', '.join(views)}"
        )
    return spark.readStream.table(flow.source) if stream else spark.table(flow.source)


def _events(
    flow: _Flow, spark: SparkSession, views: dict[str, Callable[[], DataFrame]], path: str, checkpoint: str
) -> None:
    df = _source(flow, spark, views, stream=not flow.once)
    history = flow.how.history(df, path)
    if not df.isStreaming:
        _take(history, flow, df, 0 if flow.once else None, flow.name)
        return
    query = (
        df.writeStream.foreachBatch(
            lambda some, number: _take(history, flow, some, number, _stream_name(flow, some))
        )
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _stream_name(flow: _Flow, df: DataFrame) -> str:
    """Returns the name of a stream in a history: the flow and its checkpoint, as a new stream numbers its
    batches from 0 again. May only be called while one of its batches is processed."""
    return f"{flow.name}/{df.sparkSession.sparkContext.getLocalProperty('sql.streaming.queryId')}"


def _take(history: HistoryTable, flow: _Flow, df: DataFrame, batch: int | None, name: str) -> None:
    from .query.history.spark import apply_in_tasks

    cached = df.persist()
    try:
        if cached.count() <= FEW_ROWS:
            history.apply(flow.how.rows(history, cached), flow=name, batch=batch)
        else:
            apply_in_tasks(history, flow.how, cached, name=name, batch=batch)
    finally:
        cached.unpersist()


def _snapshots(
    flow: _Flow, spark: SparkSession, views: dict[str, Callable[[], DataFrame]], path: str, _: str
) -> None:
    from pyspark.sql import functions as F

    from .query.history.spark import finish_in_tasks
    from .query.history.table import last_batch

    taken = last_batch(path, flow.name)
    last = None if taken is None else version_of(taken, HistoryTable.open(path).sequence)
    # Rows that are missing in the next snapshot are found in the versions.
    if exists(path) and (pending := HistoryTable.open(path)).has_pending_events:
        finish_in_tasks(spark, pending)
    if flow.once and last is not None:
        return
    while (found := _snapshot(flow, spark, views, last)) is not None:
        df, version = found
        if not isinstance(version, (int, dt.datetime)) or (
            last is not None
            and (type(version) is not type(last) or version_number(version) <= version_number(last))
        ):
            raise ConfigError(
                f"the snapshot's version is {version!r} after {last}", where=flow.name,
                hint="give whole numbers that grow, or times",
            )  # fmt: skip
        marked = df.withColumns({VERSION: version_column(version), GONE: F.lit(False)})
        history = flow.how.history(marked, path)
        _take(history, flow, changed_rows(history, df, version), version_number(version), flow.name)
        last = version
        if not callable(flow.source) or flow.once:
            return


def _snapshot(
    flow: _Flow, spark: SparkSession, views: dict[str, Callable[[], DataFrame]], last: Version | None
) -> tuple[DataFrame, Version] | None:
    import time

    if callable(flow.source):
        found: tuple[DataFrame, Version] | None = flow.source(last)
        return found
    return _source(flow, spark, views, stream=False), time.time_ns() // 1000


__all__ = [
    "CdcPipeline", "clear", "create_auto_cdc_flow", "create_auto_cdc_from_snapshot_flow",
    "create_streaming_table", "run", "temporary_view", "view",
]  # fmt: skip
_ONE = CdcPipeline()
temporary_view = view = _ONE.temporary_view
create_streaming_table = _ONE.create_streaming_table
create_auto_cdc_flow = _ONE.create_auto_cdc_flow
create_auto_cdc_from_snapshot_flow = _ONE.create_auto_cdc_from_snapshot_flow
run = _ONE.run
clear = _ONE.clear


def __getattr__(name: str) -> Any:
    if name in _SPARKS_OWN:
        raise UnsupportedError(
            f"tailrace.pipelines has no {name}",
            hint="write that dataset with Spark; AUTO CDC flows may read it",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
