"""Delta targets: one Delta table per source table, `<root>/<schema>.<table>`, with the progress in its
commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...lake import delta as lake
from ...lake.opened import open_table
from ...lake.thinning import Past, sweep, thin
from ...model.change import Relation
from ..base import Constraints
from ..lake.layout import refuse_layout
from ..lake.sharded_merge import SparkPlan
from ..lake.target import LakeTarget
from ..multi_source import TargetLocation
from ..parts import Parts
from ..plans import Limits
from . import layout as delta_layout
from . import spark_io
from .load import load, load_partition
from .spark_merge import DeltaSparkPlan
from .table_info import constraints, has_vectors, is_plain, refuse, rule_columns
from .tables import DeltaTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DeltaTarget(LakeTarget[DeltaTables]):
    """Applies changes to Delta tables below a root folder; see `Target` for its promises.

    Args:
        spark: the session of the batches' DataFrames; `merge` does not need one.
        root: folder or URI of the targets.
        app_id: the application id of the progress in the tables' commits.
        local_limit_bytes: batches that rewrite files of at most this number of bytes are merged by one task
            (on a cluster: batches of smaller tables), others by several.
        merge_memory_bytes: the memory that a task may use; a batch that needs more is merged by shards. None:
            no limit.
        rewrite_share, rewrite_bytes: see `Limits`. If rows of a table are marked, it has deletion vectors,
            which cannot be undone.
        locations: returns the location of a table's rows; None: each table has a target of its name.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        *,
        app_id: str,
        local_limit_bytes: int = Limits.local_bytes,
        merge_memory_bytes: int | None = 1 << 30,
        rewrite_share: int = Limits.rewrite_share,
        rewrite_bytes: int = Limits.rewrite_bytes,
        locations: Callable[[str], TargetLocation] | None = None,
    ) -> None:
        limits = Limits(local_limit_bytes, rewrite_share, rewrite_bytes)
        tables = DeltaTables(root.rstrip("/"))
        super().__init__(
            spark, tables, app_id=app_id, limits=limits, memory_bytes=merge_memory_bytes, locations=locations
        )
        self._merge_sessions: dict[str, SparkSession] = {}

    def _relocated(self) -> None:
        spark_io.clear_cache(self._spark)  # another table may have been at its path

    def rule_columns(self, table: str) -> set[str]:
        """Returns the columns that rules have added; empty if other sources may have added them."""
        if self.location(table).partition:
            return set()
        with lake.opened(self.path(table)) as now:
            return rule_columns(now)

    def _rows(self, path: str) -> DataFrame:
        return spark_io.rows_of(self._spark, path, open_table(path))

    def constraints(self, table: str) -> Constraints:
        """Returns the constraints of the table; empty if it does not exist."""
        if not self.exists(table):
            return Constraints()
        with lake.opened(self.path(table)) as now:
            return constraints(now)

    def load(
        self, relation: Relation, rows: DataFrame | Parts, after: int, rule_columns: Mapping[str, str] = {}
    ) -> int:
        """Replaces the rows of a table."""
        path, app = self.path(relation.table), self.app(relation.table)
        if lake.exists(path):
            refuse(open_table(path), path)
        with self._locks[path]:
            if partition := self.location(relation.table).partition:
                return load_partition(self._tables, path, app, relation, rows, after, partition, rule_columns)
            return load(path, app, relation, rows, after)

    def alter(self, table: str, before: Relation, after: Relation, *, dry_run: bool = False) -> None:
        """Changes the layout; creates the table if it does not exist."""
        path, shared = self.path(table), bool(self.location(table).partition)
        with self._locks[path]:
            if self.exists(table):
                refuse(open_table(path), path)
                refuse_layout(self._tables.open(path), before, after, shared=shared)
            if not dry_run:
                delta_layout.alter(self._spark, path, before, after, shared=shared)

    def maintain(self, table: str, small_files: int, past: Past) -> None:
        """Compacts small files and removes old versions; tables without deletion vectors need no JVM."""
        path = self.path(table)
        if not lake.exists(path):
            return
        with self._locks[path]:
            delta = open_table(path)
            if has_vectors(delta):
                delta_layout.maintain_distributed(self._spark, path, small_files, past.until_s)
            else:
                lake.compact(path, small_files)
                thin(path, past)

    def sweep(self, table: str) -> None:
        """Deletes files that no commit refers to, once they are three days old."""
        sweep(self.path(table))

    def loads_parts(self, table: str) -> bool:
        """Whether the table is loaded without the JVM. Files of a shared table must be replaceable for
        that."""
        partition, path = self.location(table).partition, self.path(table)
        return not partition or not lake.exists(path) or is_plain(open_table(path))

    def _spark_plan(self) -> SparkPlan:
        return DeltaSparkPlan(self._spark, self._session)

    def _session(self, table: str) -> SparkSession:
        """Returns the session of a table's MERGEs."""
        known = self._merge_sessions.get(table)
        # A lost session is replaced by one with another context.
        if known is None or known.sparkContext is not self._spark.sparkContext:
            self._merge_sessions[table] = known = spark_io.merge_session(self._spark)
        return known
