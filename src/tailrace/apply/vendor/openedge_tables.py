"""A task's TRACKING and change tables in OpenEdge's names and layout, in addition to its own.

Filled from what is stored, after each store batch: change tables first, `_Cdc-Change-Tracking` last. Every
commit carries the change number it reaches, so what is done again changes nothing, and a folder that is new,
or was away for a while, catches up. Where the task's own tables are complete from some number on only
(`store.kept`), so are these, and say so. Policies say the levels of the task's own (spec/openedge.md §1).
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
from ...model.change import PREFIX, ChangeTable, Relation
from ...model.positions import ChangeNumber, ChangeRange, order_key
from ...model.quoting import quoted
from ...state.ledger import STORE_APP
from ...state.open_warnings import PIPELINE, OpenWarnings
from ...state.totals import stored_since
from ...store import kept
from ...targets.change_batch import ChangeBatch
from ...targets.delta.load import PartTask, write_parts
from ..reading import read_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP = "tailrace/openedge"
TRACKING_TABLE = f"PUB.{TRACKING.name}"
_AGAIN = (
    "readers of these tables have to read its rows again; said until it has a new baseline, "
    "`tailrace resync TASK {}`"
)


class OpenEdgeTables:
    """The OpenEdge tables of one task; `catch_up` brings them up to what is stored."""

    def __init__(self, task: Task, spark: SparkSession) -> None:
        self._task, self._spark = task, spark
        self._open = OpenWarnings(task, PIPELINE)
        self._policies = ""

    def path(self, name: str) -> str:
        """Path of the Delta table with that OpenEdge name."""
        return f"{self._task.openedge_path}/{name}"

    def catch_up(self) -> int:
        """Writes what was stored since; returns the change number reached."""
        after = self._passed(order_key(lake.progress(self.path(TRACKING_TABLE), APP)))
        since = None if after < 0 else ChangeNumber(after)
        newest, changed = stored_since(self._task.control_path("stored"), since)
        # A batch is recorded before TRACKING has its rows.
        upto = min(order_key(newest), order_key(lake.progress(self._task.tracking_path, STORE_APP)))
        if upto <= after:
            return after
        relations = {n: h[-1].relation for n, h in log.history(self._task.relations_path).items()}
        relations = {n: r for n, r in relations.items() if lake.exists(self._task.changes_path(n))}
        plans = {name: self._plan(name, relation) for name, relation in relations.items()}
        self._metadata(plans)
        for name in changed:
            if plans[name].kept.change_table is not None:
                self._images(name, relations[name], plans[name], after, upto)
        self._track(relations, after, upto)
        return upto

    def _passed(self, after: int) -> int:
        """The change number to go on behind: `after`, or where the task's own tables are complete from, when
        that is later: behind a gap in LOG, or after a time in which these tables were not kept."""
        there = kept.kept(self._task.tracking_path) if after >= 0 else None
        if there is None or there <= after:
            return after
        for table in sorted(log.history(self._task.relations_path)):
            path = self.path(change_table(table))
            if 0 <= order_key(lake.progress(path, APP)) < there:
                what = f"changes {after + 1} to {there} are neither in its own change table nor in {path}"
                self._open.happened("openedge", table, what, _AGAIN.format(table))
                lake.commit(path, [], progress={kept.KEPT_APP: there, APP: there})
        if 0 <= order_key(lake.progress(path := self.path(TRACKING_TABLE), APP)) < there:
            lake.commit(path, [], progress={kept.KEPT_APP: there, APP: there})
        return there

    def _plan(self, name: str, relation: Relation) -> Plan:
        empty = self._changes(name, relation, 0, -1)
        return Plan(generated_metadata(name, empty, self._task.policy(name).level), made=True)

    def _changes(self, name: str, relation: Relation, after: int, upto: int) -> ChangeTable:
        """Change rows with numbers in (after, upto]; all columns that the change table ever had."""
        path = self._task.changes_path(name)
        found = read_changes(
            self._spark, ChangeBatch(name, relation, ChangeRange(None if after < 0 else after, upto), path)
        )
        df = self._spark.read.format("delta").load(path).limit(0) if found is None else found.df
        columns = [c for c in df.columns if not c.startswith(PREFIX)]
        return ChangeTable(df, relation.key, columns, name=name)

    def _metadata(self, plans: dict[str, Plan]) -> None:
        """Writes policies and schema tables again if their contents changed."""
        said = "\n".join(plan.kept.to_json() for plan in plans.values())
        if said == self._policies:
            return
        for name, df in metadata_tables(self._spark, list(plans.values())).items():
            guards.check()  # Spark commits by itself
            df.coalesce(1).write.format("delta").mode("overwrite").save(self.path(name))
        self._policies = said

    def _images(self, name: str, relation: Relation, plan: Plan, after: int, upto: int) -> None:
        path, removed = self.path(str(plan.kept.change_table)), kept.kept(self._task.changes_path(name))
        since, done = order_key(removed), order_key(lake.progress(path, APP))
        if done >= upto:
            return
        done = since if done < 0 else max(done, after, since)  # none came for it before `after`
        options = OpenEdgeOptions()
        part = self._changes(name, relation, done, upto)
        rows = image_rows(part.with_df(numbered(part, options)), plan, options)
        if lake.exists(path) and not _goes_on(self._spark.read.format("delta").load(path), rows):
            # A column was replaced by another: all rows that are kept are written again.
            part = self._changes(name, relation, since, upto)
            rows = image_rows(part.with_df(numbered(part, options)), plan, options)
            self._write(rows, path, upto, anew=True)
            return
        self._write(rows, path, upto)

    def _track(self, relations: dict[str, Relation], after: int, upto: int) -> None:
        """TRACKING's rows, under the policies and table numbers of OpenEdge's layout."""
        from pyspark.sql import functions as F

        rows = self._spark.read.format("delta").load(self._task.tracking_path)
        rows = rows.filter((F.col("_Change-Sequence") > after) & (F.col("_Change-Sequence") <= upto))
        table = F.col("_Policy-Id")  # TRACKING has the table's name in that column
        ids = F.create_map(*[F.lit(x) for n in relations for x in (n, policy_id(n))])
        numbers = F.create_map(*[F.lit(x) for n in relations for x in (n, table_number(n))])
        made = {"_Policy-Id": ids[table], "_Source-Table-Number": numbers[table]}
        columns = [
            made.get(c.name, F.col(quoted(c.name))).try_cast(c.type).alias(c.name) for c in TRACKING.columns
        ]
        self._write(rows.select(*columns), self.path(TRACKING_TABLE), upto)

    def _write(self, rows: DataFrame, path: str, upto: int, *, anew: bool = False) -> None:
        """Adds rows to a table, or makes them all that it has."""
        schema = table_schema(rows)
        files, _ = write_parts(rows, PartTask(path, schema))
        if anew:
            lake.replace_all(path, files, schema=schema, progress={APP: upto})
            return
        prepare_delta_table(rows, path)
        lake.commit(path, files, progress={APP: upto})


def _goes_on(there: DataFrame, coming: DataFrame) -> bool:
    """Whether rows can be appended: columns may be new, none may be missing or have another type."""
    kinds = {f.name: f.dataType for f in coming.schema}
    return all(kinds.get(f.name) == f.dataType for f in there.schema)
