"""Writes a task's TRACKING and change tables also with OpenEdge's names and layout.

They are filled from the stored tables after each store batch: change tables first, `_Cdc-Change-Tracking`
last. Every commit has its last change number, so a repeated write changes nothing, and a folder that is new
or was unavailable catches up. If the task's tables are only complete from a change number on (`store.kept`),
these tables are too, and record that number. Their policies have the levels of the task (spec/openedge.md
§1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config.task import Task
from ...formats.file_writer import prepare_delta_table, table_schema
from ...formats.openedge.metadata import change_table, generated_metadata, policy_id, table_number
from ...formats.openedge.options import OpenEdgeOptions
from ...formats.openedge.tables import TRACKING
from ...formats.openedge.writer import Plan, image_rows, metadata_tables, numbered
from ...lake import delta as lake
from ...lake import guards, log
from ...lake.data_files import DataFiles
from ...model.change import PREFIX, ChangeTable, Relation
from ...model.positions import ChangeNumber, ChangeRange, order_key
from ...model.quoting import quoted
from ...state.ledger import STORE_APP
from ...state.open_warnings import PIPELINE, OpenWarnings
from ...state.totals import stored_since
from ...store import kept
from ...targets.change_batch import ChangeBatch
from ...targets.lake.load import PartTask, write_parts
from ..reading import read_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP = "tailrace/openedge"
TRACKING_TABLE = f"PUB.{TRACKING.name}"
_AGAIN = (
    "readers of these tables have to read its rows again; this warning stays until it has a new baseline, "
    "`tailrace resync TASK {}`"
)


class OpenEdgeTables:
    """The OpenEdge tables of one task."""

    def __init__(self, task: Task, spark: SparkSession) -> None:
        self._task, self._spark = task, spark
        self._open = OpenWarnings(task, PIPELINE)
        self._policies = ""

    def path(self, name: str) -> str:
        """The path of the Delta table with an OpenEdge name."""
        return f"{self._task.openedge_path}/{name}"

    def catch_up(self) -> int:
        """Writes the changes that were stored since the last call. Returns the last change number."""
        start = self._start(order_key(lake.progress(self.path(TRACKING_TABLE), APP)))
        since = None if start < 0 else ChangeNumber(start)
        newest, changed = stored_since(self._task.control_path("stored"), since)
        # A batch is recorded before TRACKING has its rows.
        end = min(order_key(newest), order_key(lake.progress(self._task.tracking_path, STORE_APP)))
        if end <= start:
            return start
        relations = {n: h[-1].relation for n, h in log.history(self._task.relations_path).items()}
        relations = {n: r for n, r in relations.items() if lake.exists(self._task.changes_path(n))}
        plans = {name: self._plan(name, relation) for name, relation in relations.items()}
        self._metadata(plans)
        for name in changed:
            if plans[name].kept.change_table is not None:
                self._images(name, relations[name], plans[name], start, end)
        self._track(relations, start, end)
        return end

    def _start(self, progress: int) -> int:
        """The change number after which to continue: the progress, or the later number after which the task's
        tables are complete: after a gap in LOG, or a time in which these tables were not written."""
        complete = kept.kept(self._task.tracking_path) if progress >= 0 else None
        if complete is None or complete <= progress:
            return progress
        for table in sorted(log.history(self._task.relations_path)):
            path = self.path(change_table(table))
            if 0 <= order_key(lake.progress(path, APP)) < complete:
                what = f"changes {progress + 1} to {complete} are neither in its change table nor in {path}"
                self._open.happened("openedge", table, what, _AGAIN.format(table))
                lake.commit(path, [], progress={kept.KEPT_APP: complete, APP: complete})
        if 0 <= order_key(lake.progress(path := self.path(TRACKING_TABLE), APP)) < complete:
            lake.commit(path, [], progress={kept.KEPT_APP: complete, APP: complete})
        return complete

    def _plan(self, name: str, relation: Relation) -> Plan:
        empty = self._changes(name, relation, 0, -1)
        return Plan(generated_metadata(name, empty, self._task.policy(name).level), made=True)

    def _changes(self, name: str, relation: Relation, start: int, end: int) -> ChangeTable:
        """Change rows with numbers after `start`, up to `end`, with all columns of the change table."""
        path = self._task.changes_path(name)
        found = read_changes(
            self._spark, ChangeBatch(name, relation, ChangeRange(None if start < 0 else start, end), path)
        )
        df = self._spark.read.format("delta").load(path).limit(0) if found is None else found.df
        columns = [c for c in df.columns if not c.startswith(PREFIX)]
        return ChangeTable(df, relation.key, columns, name=name)

    def _metadata(self, plans: dict[str, Plan]) -> None:
        """Writes policies and schema tables again if their contents changed."""
        policies = "\n".join(plan.kept.to_json() for plan in plans.values())
        if policies == self._policies:
            return
        for name, df in metadata_tables(self._spark, list(plans.values())).items():
            guards.check()  # Spark commits by itself
            df.coalesce(1).write.format("delta").mode("overwrite").save(self.path(name))
        self._policies = policies

    def _images(self, name: str, relation: Relation, plan: Plan, start: int, end: int) -> None:
        """Appends the images of a table. Writes all of them again if its columns do not fit."""
        path, removed = self.path(str(plan.kept.change_table)), kept.kept(self._task.changes_path(name))
        since, done = order_key(removed), order_key(lake.progress(path, APP))
        if done >= end:
            return
        done = since if done < 0 else max(done, start, since)  # it has no changes between `done` and `start`
        options = OpenEdgeOptions()
        part = self._changes(name, relation, done, end)
        rows = image_rows(part.with_df(numbered(part, options)), plan, options)
        if lake.exists(path) and not _can_append(self._spark.read.format("delta").load(path), rows):
            # A column was replaced by another one: all stored rows are written again.
            part = self._changes(name, relation, since, end)
            rows = image_rows(part.with_df(numbered(part, options)), plan, options)
            self._write(rows, path, end, replace=True)
            return
        self._write(rows, path, end)

    def _track(self, relations: dict[str, Relation], start: int, end: int) -> None:
        """Appends the rows of TRACKING, with the policies and table numbers of OpenEdge's layout."""
        from pyspark.sql import functions as F

        rows = self._spark.read.format("delta").load(self._task.tracking_path)
        rows = rows.filter((F.col("_Change-Sequence") > start) & (F.col("_Change-Sequence") <= end))
        table = F.col("_Policy-Id")  # TRACKING has the name of the table in that column
        ids = F.create_map(*[F.lit(x) for n in relations for x in (n, policy_id(n))])
        numbers = F.create_map(*[F.lit(x) for n in relations for x in (n, table_number(n))])
        values = {"_Policy-Id": ids[table], "_Source-Table-Number": numbers[table]}
        columns = [
            values.get(c.name, F.col(quoted(c.name))).try_cast(c.type).alias(c.name) for c in TRACKING.columns
        ]
        self._write(rows.select(*columns), self.path(TRACKING_TABLE), end)

    def _write(self, rows: DataFrame, path: str, end: int, *, replace: bool = False) -> None:
        """Appends rows to a table, or replaces all its rows."""
        schema = table_schema(rows)
        files, _ = write_parts(rows, PartTask(DataFiles(path), schema))
        if replace:
            lake.replace_all(path, files, schema=schema, progress={APP: end})
            return
        prepare_delta_table(rows, path)
        lake.commit(path, files, progress={APP: end})


def _can_append(existing: DataFrame, rows: DataFrame) -> bool:
    """Whether rows can be appended: no column is missing, or has another type."""
    kinds = {f.name: f.dataType for f in rows.schema}
    return all(kinds.get(f.name) == f.dataType for f in existing.schema)
