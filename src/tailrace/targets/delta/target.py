"""Delta targets: `<root>/<schema>.<table>`, one Delta table a source table, progress in its own commits."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ...errors import TailraceError
from ...lake import delta as lake
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
    """Applies to Delta tables under one root folder; see `Target` for what it keeps.

    Args:
        spark: the session of the batches' DataFrames; `merge` does without one.
        root: folder or URI of the targets.
        app_id: under which name the progress stands in the tables' commits.
        local_limit_bytes: batches that write files of up to so many bytes anew are merged inside one task
            (on a cluster: those of smaller tables), others by several.
        merge_memory_bytes: what one task-local merge may hold in memory; a batch that needs more is merged by
            Spark. None: no limit.
        rewrite_share, rewrite_bytes: see `Limits`; a table whose rows are marked has deletion vectors, for
            good.
        places: where a source table's rows are; None: each in a target of its own name.
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
        """Versions, jobs of many tables."""
        return Capabilities(versions=True, memory_bytes=self._memory)

    def location(self, table: str) -> TargetLocation:
        """Where a table's rows are."""
        now = self._locations(table)
        if self._known.setdefault(table, now) != now:
            self._known[table] = now
            spark_io.clear_cache(self._spark)  # at its path another table was, perhaps
        return now

    def path(self, table: str) -> str:
        """The Delta table's path."""
        return f"{self._root}/{lake.file_name(self.location(table).target)}"

    def app(self, table: str) -> str:
        """Under which name the table's progress stands in the commits."""
        return self.location(table).app(table, self._app)

    def exists(self, table: str) -> bool:
        """Whether the target has that table."""
        return lake.exists(self.path(table))

    def progress(self, table: str) -> ChangeNumber | None:
        """The last change number that was applied; None: nothing was."""
        return lake.progress(self.path(table), self.app(table))

    def columns(self, table: str) -> dict[str, str]:
        """Names and Spark SQL types of the columns there are."""
        with lake.opened(self.path(table)) as now:
            return {f.name: spark_type(f.type) for f in lake.arrow_schema(now)}

    def rule_columns(self, table: str) -> set[str]:
        """Those of its columns that rules have added; none where they may be those of another source."""
        if self.location(table).partition:
            return set()
        with lake.opened(self.path(table)) as now:
            return delta_layout.rule_columns(now)

    def rows_with_keys(self, relation: Relation, keys: DataFrame) -> DataFrame:
        """All rows of the table, in the relation's columns and types."""
        path = self.path(relation.table)
        rows = spark_io.rows_of(self._spark, path, DeltaTable(path))
        return shaped(rows_in_partition(rows, self.location(relation.table).partition), relation)

    def constraints(self, table: str) -> Constraints:
        """NOT NULL and CHECKs that somebody gave to the table; none when it is not there."""
        if not self.exists(table):
            return Constraints()
        with lake.opened(self.path(table)) as now:
            return delta_layout.constraints(now)

    def load(
        self, relation: Relation, rows: DataFrame | Parts, after: int, rule_columns: Mapping[str, str] = {}
    ) -> int:
        """Makes rows all that the target has of a table."""
        path, app = self.path(relation.table), self.app(relation.table)
        if lake.exists(path):
            refuse(DeltaTable(path), path)
        with self._locks[path]:
            if partition := self.location(relation.table).partition:
                return load_partition(path, app, relation, rows, after, partition, rule_columns)
            return load(path, app, relation, rows, after)

    def alter(self, table: str, before: Relation, after: Relation, *, dry_run: bool = False) -> None:
        """Changes the layout; makes the table when it does not exist."""
        path, shared = self.path(table), bool(self.location(table).partition)
        with self._locks[path]:
            if self.exists(table):
                delta_layout.refuse_layout(path, before, after, shared=shared)
            if not dry_run:
                delta_layout.alter(self._spark, path, before, after, shared=shared)

    def maintain(self, table: str, small_files: int, past: Past) -> None:
        """Joins small files and thins the past; needs no snapshot in the JVM while the table is local."""
        path = self.path(table)
        if not lake.exists(path):
            return
        with self._locks[path]:
            delta = DeltaTable(path)
            if has_vectors(delta):
                delta_layout.maintain_distributed(self._spark, path, small_files, past.until_s)
            else:
                lake.compact(path, small_files)
                thin(path, past)

    def version_at(self, table: str, number: int) -> int | None:
        """The newest version without later changes; None if it is not kept."""
        path, app = self.path(table), self.app(table)
        delta = DeltaTable(path)
        if order_key(lake.reached(delta, app)) == number:
            return int(delta.version())
        return version_at(path, app, number)

    def loads_parts(self, table: str) -> bool:
        """Whether it is loaded without the JVM: the part of a source only if its files may be exchanged."""
        partition, path = self.location(table).partition, self.path(table)
        return not partition or not lake.exists(path) or is_plain(DeltaTable(path))

    def merge(self, batches: Sequence[ChangeBatch]) -> list[MergeResult | TailraceError]:
        """Merges batches, tables side by side; batches of one target one after the other."""
        mine = [self._of_target(batch) for batch in batches]
        found: dict[int, MergeResult | TailraceError] = {}
        for locations in merge_rounds(mine):
            found |= zip(locations, self._merged([mine[place] for place in locations]), strict=True)
        return [found[place] for place in range(len(mine))]

    def _of_target(self, batch: ChangeBatch) -> ChangeBatch:
        """The batch with what the target knows of it: its progress, and of a target that others feed, too,
        the rows that are its own, and the types that others gave its columns."""
        made = replace(batch, app_id=self.app(batch.table), partition=self.location(batch.table).partition)
        if not made.partition or not self.exists(batch.table):
            return made
        have = self.columns(batch.table)
        return replace(made, layout=with_target_types(batch.layout or batch.relation, have))

    def _merged(self, batches: Sequence[ChangeBatch]) -> list[MergeResult | TailraceError]:
        make = MergeTask(self._limits, self._memory)
        with ExitStack() as held:
            for path in sorted(b.target for b in batches):
                held.enter_context(self._locks[path])
            shards = ShardedMerge(self._spark, self._limits, self._memory, self._session)
            return merge(self._spark, batches, make, shards.merged)

    def _session(self, table: str) -> SparkSession:
        """The session of a table's MERGEs."""
        known = self._merge_sessions.get(table)
        # After a lost session there is another context.
        if known is None or known.sparkContext is not self._spark.sparkContext:
            self._merge_sessions[table] = known = spark_io.merge_session(self._spark)
        return known
