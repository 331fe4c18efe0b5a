"""Delta targets: one Delta table per source table, `<root>/<schema>.<table>`, with the progress in its
commits."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import TailraceError
from ...lake import delta as lake
from ...lake.opened import open_table
from ...lake.thinning import Past, thin
from ...model.change import Relation
from ...model.positions import ChangeNumber, order_key
from ...model.types import spark_type
from ..base import Constraints
from ..capabilities import Capabilities
from ..change_batch import ChangeBatch
from ..images import shaped
from ..merge_result import MergeResult
from ..multi_source import TargetLocation, rows_in_partition, with_target_types
from ..parts import Parts
from ..plans import Limits
from . import layout as delta_layout
from . import spark_io
from .load import load
from .merge import MergeTask, merge
from .multi_source import load_partition, merge_rounds
from .sharded_merge import ShardedMerge
from .table_info import has_vectors, is_plain, refuse, version_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEAST_MEMORY = 64 << 20
"""With less memory, a task could merge hardly any batch."""


class DeltaTarget:
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
        self._locations, self._known = locations or TargetLocation, dict[str, TargetLocation]()
        self._spark, self._root, self._app = spark, root.rstrip("/"), app_id
        self._limits = Limits(local_limit_bytes, rewrite_share, rewrite_bytes)
        self._memory = None if merge_memory_bytes is None else max(merge_memory_bytes, LEAST_MEMORY)
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._merge_sessions: dict[str, SparkSession] = {}

    @property
    def capabilities(self) -> Capabilities:
        """The target has versions."""
        return Capabilities(versions=True, memory_bytes=self._memory)

    def location(self, table: str) -> TargetLocation:
        """Returns the location of a table's rows."""
        now = self._locations(table)
        if self._known.setdefault(table, now) != now:
            self._known[table] = now
            spark_io.clear_cache(self._spark)  # another table may have been at its path
        return now

    def path(self, table: str) -> str:
        """Returns the path of the Delta table."""
        return f"{self._root}/{lake.file_name(self.location(table).target)}"

    def app(self, table: str) -> str:
        """Returns the application id of the table's progress in the commits."""
        return self.location(table).app(table, self._app)

    def exists(self, table: str) -> bool:
        """Whether the target has the table."""
        return lake.exists(self.path(table))

    def progress(self, table: str) -> ChangeNumber | None:
        """Returns the last change number that was applied; None if nothing was applied."""
        return lake.progress(self.path(table), self.app(table))

    def columns(self, table: str) -> dict[str, str]:
        """Returns the names and Spark SQL types of the columns."""
        with lake.opened(self.path(table)) as now:
            return {f.name: spark_type(f.type) for f in lake.arrow_schema(now)}

    def rule_columns(self, table: str) -> set[str]:
        """Returns the columns that rules have added; empty if other sources may have added them."""
        if self.location(table).partition:
            return set()
        with lake.opened(self.path(table)) as now:
            return delta_layout.rule_columns(now)

    def rows_with_keys(self, relation: Relation, keys: DataFrame) -> DataFrame:
        """Returns all rows of the source in the relation's columns and types."""
        path = self.path(relation.table)
        rows = spark_io.rows_of(self._spark, path, open_table(path))
        return shaped(rows_in_partition(rows, self.location(relation.table).partition), relation)

    def constraints(self, table: str) -> Constraints:
        """Returns the constraints of the table; empty if it does not exist."""
        if not self.exists(table):
            return Constraints()
        with lake.opened(self.path(table)) as now:
            return delta_layout.constraints(now)

    def load(
        self, relation: Relation, rows: DataFrame | Parts, after: int, rule_columns: Mapping[str, str] = {}
    ) -> int:
        """Replaces the rows of a table."""
        path, app = self.path(relation.table), self.app(relation.table)
        if lake.exists(path):
            refuse(open_table(path), path)
        with self._locks[path]:
            if partition := self.location(relation.table).partition:
                return load_partition(path, app, relation, rows, after, partition, rule_columns)
            return load(path, app, relation, rows, after)

    def alter(self, table: str, before: Relation, after: Relation, *, dry_run: bool = False) -> None:
        """Changes the layout; creates the table if it does not exist."""
        path, shared = self.path(table), bool(self.location(table).partition)
        with self._locks[path]:
            if self.exists(table):
                delta_layout.refuse_layout(path, before, after, shared=shared)
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

    def version_at(self, table: str, number: int) -> int | None:
        """Returns the newest version without later changes; None if it is not available any more."""
        path, app = self.path(table), self.app(table)
        delta = open_table(path)
        if order_key(lake.reached(delta, app)) == number:
            return int(delta.version())
        return version_at(path, app, number)

    def loads_parts(self, table: str) -> bool:
        """Whether the table is loaded without the JVM. Files of a shared table must be replaceable for
        that."""
        partition, path = self.location(table).partition, self.path(table)
        return not partition or not lake.exists(path) or is_plain(open_table(path))

    def merge(self, batches: Sequence[ChangeBatch]) -> list[MergeResult | TailraceError]:
        """Merges batches: tables in parallel, batches of one target one after the other."""
        prepared = [self._prepared(batch) for batch in batches]
        found: dict[int, MergeResult | TailraceError] = {}
        for indices in merge_rounds(prepared):
            found |= zip(indices, self._merged([prepared[index] for index in indices]), strict=True)
        return [found[index] for index in range(len(prepared))]

    def _prepared(self, batch: ChangeBatch) -> ChangeBatch:
        """Returns the batch with the application id and, for a shared target, with the constants of the
        source and the types that other sources gave the columns."""
        partition = self.location(batch.table).partition
        prepared = replace(batch, app_id=self.app(batch.table), partition=partition)
        if not partition or not self.exists(batch.table):
            return prepared
        have = self.columns(batch.table)
        return replace(prepared, layout=with_target_types(batch.layout or batch.relation, have))

    def _merged(self, batches: Sequence[ChangeBatch]) -> list[MergeResult | TailraceError]:
        task = MergeTask(self._limits, self._memory)
        with ExitStack() as locks:
            for path in sorted(b.target for b in batches):
                locks.enter_context(self._locks[path])
            sharded = ShardedMerge(self._spark, self._limits, self._memory, self._session)
            return merge(self._spark, batches, task, sharded.merged)

    def _session(self, table: str) -> SparkSession:
        """Returns the session of a table's MERGEs."""
        known = self._merge_sessions.get(table)
        # A lost session is replaced by one with another context.
        if known is None or known.sparkContext is not self._spark.sparkContext:
            self._merge_sessions[table] = known = spark_io.merge_session(self._spark)
        return known
