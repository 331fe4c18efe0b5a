"""What tasks do with delta-rs: merge a table inside one task, write parquet parts side by side.

The classes here are the functions given to `mapInArrow`. They are pickled by reference, hold paths and names
only, and run in executor processes that have no session.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from ... import lake
from ..fold import KEPT, OP
from .base import Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

RESULT = "inserted bigint, updated bigint, deleted bigint, missing bigint, version bigint, file string"
_NAMES = ("inserted", "updated", "deleted", "missing", "version", "file")
TOO_LARGE = "too large"
_HELD = 256 << 20
"""Rows of a merge up to this many bytes are held as they are; more are streamed."""
LEAST_MEMORY = 64 << 20
"""With less, delta-rs refuses even small merges, or waits for ever."""
HAVE, NET = "header__have", "header__net"


def _result(**values: Any) -> pa.RecordBatch:
    row = {n: values.get(n, None if n == "file" else 0) for n in _NAMES}
    kinds = [pa.string() if n == "file" else pa.int64() for n in _NAMES]
    return pa.record_batch([pa.array([row[n]], k) for n, k in zip(_NAMES, kinds, strict=True)], list(_NAMES))


@dataclass(frozen=True)
class MergeTask:
    """Merges folded rows into a Delta table, in the one task that gets them all.

    delta-rs holds a hash table of the changes, which cannot spill: beyond `memory_bytes` it gives up, nothing
    is written, and the result says so (`TOO_LARGE`). The commit carries the progress; a task that runs again
    sees it and does nothing.
    """

    path: str
    app_id: str
    upto: int
    key: tuple[str, ...]
    schema: pa.Schema
    partial: bool
    memory_bytes: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = DeltaTable(self.path)
        reached = table.transaction_version(self.app_id)
        if reached is not None and reached >= self.upto:
            yield _result(version=table.version())
            return
        try:
            counts = self._merge(table, self._source(batches))
        except DeltaError as error:
            if "Resources exhausted" not in str(error):
                raise
            yield _result(file=TOO_LARGE)
            return
        # delta-rs leaves out a commit that changes no row; the progress must be there all the same.
        if table.transaction_version(self.app_id) != self.upto:
            lake.commit(self.path, [], progress={self.app_id: self.upto})
            table.update_incremental()
        yield _result(
            inserted=counts["num_target_rows_inserted"],
            updated=counts["num_target_rows_updated"],
            deleted=counts["num_target_rows_deleted"],
            version=table.version(),
        )

    def _source(self, batches: Iterable[pa.RecordBatch]) -> pa.Table | pa.RecordBatchReader:
        """The rows as a table, or as a stream when they are many: a stream is read by a thread of delta-rs,
        through Python, which is slower and needs care, so it is kept for what should not be held twice."""
        extra = [pa.field(OP, pa.string()), *([pa.field(KEPT, pa.string())] if self.partial else [])]
        wanted = pa.schema([*extra, *self.schema])
        rest = (_typed(b, wanted) for b in batches if b.num_rows)
        held, size = [], 0
        for batch in rest:
            held.append(batch)
            size += batch.nbytes
            if size > _HELD:
                return pa.RecordBatchReader.from_batches(wanted, chain(held, rest))
        return pa.Table.from_batches(held, wanted)

    def _merge(self, table: DeltaTable, source: pa.Table | pa.RecordBatchReader) -> dict[str, Any]:
        names = self.schema.names
        new = {_name(n): f"s.{_name(n)}" for n in names}
        changed = {_name(n): self._update(i, n) for i, n in enumerate(names) if n not in self.key}
        merge = table.merge(
            source,
            " AND ".join(f"t.{_name(k)} = s.{_name(k)}" for k in self.key),
            source_alias="s",
            target_alias="t",
            # Not streamed, delta-rs takes the range of keys from the rows and passes over files; only for
            # types whose ranges are sure to mean the same to all writers of statistics.
            streamed_exec=isinstance(source, pa.RecordBatchReader) or not self._plain_keys(),
            max_spill_size=self.memory_bytes,
            commit_properties=CommitProperties(app_transactions=[Transaction(self.app_id, self.upto)]),
        )
        merge = merge.when_matched_delete(f"s.{_name(OP)} = 'D'")
        # A table of key columns only: a match changes nothing but still has to be one, or it is inserted.
        merge = merge.when_matched_update(changed or {_name(self.key[0]): f"s.{_name(self.key[0])}"})
        return merge.when_not_matched_insert(new, f"s.{_name(OP)} <> 'D'").execute()

    def _plain_keys(self) -> bool:
        kinds = [self.schema.field(k).type for k in self.key]
        return all(pa.types.is_integer(k) or pa.types.is_date(k) for k in kinds)

    def _update(self, index: int, name: str) -> str:
        value = f"s.{_name(name)}"
        if not self.partial:
            return value
        return (
            f"CASE WHEN substr(s.{_name(KEPT)}, {index + 1}, 1) = '1' THEN t.{_name(name)} ELSE {value} END"
        )


@dataclass(frozen=True)
class PartTask:
    """Writes the rows of one task to a parquet part of a table's folder; the driver commits it.

    Rows whose `OP` says delete are left out. With `bag`, rows come with `HAVE` (copies the target has) and
    `NET` (copies to add or take away) and are written as often as is left.
    """

    path: str
    schema: pa.Schema
    bag: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = lake.Part(self.path, self.schema)
        inserted = deleted = missing = 0
        for batch in batches:
            if self.bag:
                have, net = batch[HAVE].to_numpy(), batch[NET].to_numpy()
                inserted += int(np.maximum(net, 0).sum())
                deleted += int(np.minimum(have, np.maximum(-net, 0)).sum())
                missing += int(np.maximum(-net - have, 0).sum())
                rows = batch.take(pa.array(np.repeat(np.arange(len(have)), np.maximum(have + net, 0))))
            else:
                rows = batch.filter(pc.not_equal(batch[OP], "D")) if OP in batch.schema.names else batch
                inserted += rows.num_rows
            part.write(_typed(rows, self.schema))
        added = part.close()
        yield _result(
            inserted=inserted, deleted=deleted, missing=missing, file=added.to_json() if added else None
        )


@dataclass(frozen=True)
class _Named:
    """Gives a task's batches their column names; on the way they have plain ones, because `mapInArrow` looks
    columns up by name and stumbles over dots and back quotes."""

    task: MergeTask | PartTask
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(b.rename_columns(list(self.names)) for b in batches)


def _run(df: DataFrame, task: MergeTask | PartTask) -> list[Row]:
    """Runs a task on every partition; collects one row of results each."""
    plain = df.toDF(*[f"c{i}" for i in range(len(df.columns))])
    return plain.mapInArrow(_Named(task, tuple(df.columns)), RESULT).collect()


def merge_local(df: DataFrame, task: MergeTask) -> Outcome | None:
    """Runs the merge of folded rows as one Spark job of one task; None when it is too large for its memory,
    and nothing was written."""
    found = _run(df.coalesce(1), task)
    if not found:  # Spark runs no task for rows it knows to be none
        version = lake.commit(task.path, [], progress={task.app_id: task.upto})
        return Outcome(version=lake.version(task.path) if version is None else version, plan="task_local")
    row = found[0]
    if row["file"] == TOO_LARGE:
        return None
    return Outcome(row["inserted"], row["updated"], row["deleted"], row["version"], "task_local")


def write_parts(df: DataFrame, task: PartTask) -> tuple[list[lake.AddedFile], Outcome]:
    """Writes rows as parts (one a task, not committed); gives them, and an outcome without version."""
    found = _run(df, task)
    total = {n: sum(r[n] for r in found) for n in ("inserted", "deleted", "missing")}
    return [lake.AddedFile.from_json(r["file"]) for r in found if r["file"]], Outcome(**total)


def info(**words: object) -> dict[str, str]:
    """Commit info: words about the commit under the one name `tailrace`."""
    return {"tailrace": json.dumps(words)}


def _typed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema, in its types: Spark's differ in time zone names and text widths."""
    arrays = [batch[f.name] for f in wanted]
    arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, wanted, strict=True)]
    return pa.record_batch(arrays, schema=wanted)


def _name(name: str) -> str:
    """An identifier for DataFusion: quoted, so case, spaces, dots and reserved words do no harm."""
    return '"' + name.replace('"', '""') + '"'
