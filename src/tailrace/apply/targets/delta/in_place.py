"""Large targets, changes that stay where they are: several tasks read them from the files of their change
table, each what it needs, and merge them by the plan `rewrite`. No row passes the JVM, nothing is staged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ....config.machine import cores
from ....engine.columns import OPER, SEQ
from ....engine.keys import Places
from ....engine.null_keys import null_key
from ....engine.source import Source
from ....errors import ConcurrentCommitError
from ....execution import executor_of, slots
from ....lake import delta as lake
from ....model.change import BEFORE
from ....model.types import schema_of
from ...plan import Limits
from ..audit import Audited
from ..outcome import ApplyOutcome
from ..task_batch import TaskBatch, audit_of
from .many import is_whole
from .rewrite_tasks import RewriteTasks
from .shared import fits
from .size import is_plain, size_of
from .staged import scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ChangesInPlace:
    """The changes of a batch in the files of their change table; a change's number is its row, counted over
    all files in order. The files are named, so that every task reads the same.

    Attributes:
        folder: where tasks leave files for one another.
        batch: the batch; files: paths of those that may have its changes.
        schema: the target's.
        most: bytes of memory that may be held of them; None: no limit.
    """

    folder: str
    batch: TaskBatch
    files: tuple[str, ...]
    schema: pa.Schema
    most: int | None

    @property
    def table(self) -> str:
        """The source table's name."""
        return self.batch.table

    @property
    def key(self) -> tuple[str, ...]:
        """The table's key."""
        return tuple(self.batch.relation.key)

    def keys(self) -> Source | None:
        """All changes with their keys alone.

        Raises:
            ApplyError: a change has NULL in its key.
        """
        return self._source(self.key, None)

    def rows(self, wanted: Places) -> Source | None:
        """Some changes with all of their columns, by their numbers, which rise."""
        return self._source(self.schema.names, wanted)

    def _source(self, names: Sequence[str], wanted: Places | None) -> Source | None:
        texts = [pa.field(n, pa.string()) for n in (SEQ, OPER)]
        shape = pa.schema([*texts, *[self.schema.field(n) for n in names]])
        found, begin, size = [], 0, 0
        for batch in self._images(shape):
            mine = batch
            if wanted is not None:
                low, high = np.searchsorted(wanted, [begin, begin + batch.num_rows])
                mine = batch.take(pa.array(wanted[low:high] - begin))
            begin += batch.num_rows
            size += mine.nbytes
            if self.most is not None and size > self.most:
                return None
            found.append(mine)
        return Source.of(pa.Table.from_batches(found, shape), self.key, self.schema, partial=False)

    def _images(self, shape: pa.Schema) -> Iterator[pa.RecordBatch]:
        moves = self.batch.counts.get("key_changes")
        for batch in self.batch.read_files(shape, self.files):
            # Old images tell nothing where no key changes.
            mine = batch if moves else batch.filter(pc.not_equal(batch[OPER], BEFORE))
            for name in self.key:
                if mine[name].null_count:
                    seq = mine.filter(mine[name].is_null())[SEQ][0].as_py()
                    raise null_key(self.batch.table, self.key, seq)
            yield mine


@dataclass(frozen=True)
class InPlace:
    """Merges such batches into Delta tables.

    Attributes:
        spark: whose tasks may merge; None: threads of this process do.
        limits, memory: as of a `DeltaTarget`.
    """

    spark: SparkSession | None
    limits: Limits
    memory: int | None

    def merged(self, one: TaskBatch) -> Audited | None:
        """What was done with a batch that is not for one task; None: it is not for several either, and
        nothing was done."""
        if not is_whole(one) or not lake.exists(one.target):
            return None
        began = time.monotonic()
        try:
            with lake.opened(one.changes) as changes, lake.opened(one.target) as table:
                done = self._merged(one, changes, table) if self._fits(one, changes, table) else None
        except ConcurrentCommitError:
            return None  # a job of its own looks anew
        if done is None:
            return None
        return Audited(replace(done, seconds=time.monotonic() - began), one.upto)

    def _merged(self, one: TaskBatch, changes: DeltaTable, table: DeltaTable) -> ApplyOutcome | None:
        many = sum(one.counts.get(k, 0) for k in "IUD")
        there = executor_of(self.spark, many)
        most = self.limits.most(many, size_of(table))
        if there is None and most <= self.limits.local_bytes:
            return None  # one task has seen that they touch more bytes
        shards, memory = slots(there), self.memory
        if memory is not None and shards <= cores():
            memory //= shards  # tasks of one machine share the memory of one task
        # Half of it is for what is copied.
        half, schema = None if memory is None else memory // 2, schema_of(one.relation.columns)
        mine = replace(one, after=max(one.after, lake.reached(table, one.app)))
        with scratch(one.target) as folder:
            stay = ChangesInPlace(folder, mine, tuple(mine.files(changes)), schema, half)
            work = RewriteTasks(table, one.target, stay, self.spark, many, shards, memory, most)
            return work.merge(one.app, one.upto)

    def _fits(self, one: TaskBatch, changes: DeltaTable, table: DeltaTable) -> bool:
        """Whether files of the target may be exchanged, and hold the changes as they are."""
        if not is_plain(table) or lake.reached(table, one.app) >= one.upto:
            return False
        if {c.name for c in one.relation.columns} - {f.name for f in table.schema().fields}:
            return False
        if one.shared and not fits(table, one.relation, one.counts):
            return False
        return bool(size_of(table).files) and audit_of(one, changes) is not None
