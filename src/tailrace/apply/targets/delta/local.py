"""What tasks do without a JVM: merge a table inside one task, write parquet parts side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....engine.columns import HAVE, KEPT, LEFT, OP, TAKE, typed
from ....engine.source import Source
from ....errors import AGAIN, ConcurrentCommitError, OvertakenError
from ....lake import delta as lake
from ...tasks import TOO_LARGE, Parts, result, run
from ..outcome import ApplyOutcome
from .rewrite import merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEAST_MEMORY = 64 << 20
"""With less, hardly a batch would be merged in a task."""


@dataclass(frozen=True)
class MergeTask:
    """Merges folded rows (`OP`, `KEPT` when `partial`, the data columns) into a Delta table, in the one task
    that gets them all.

    They are held in memory: when they take more than half of `memory_bytes`, nothing is written, and the
    result says so (`TOO_LARGE`). The commit carries the progress; a task that runs again sees it and does
    nothing. `only_after`: the version that they were made from; another one is refused with
    ConcurrentCommitError.
    """

    path: str
    app_id: str
    upto: int
    key: tuple[str, ...]
    schema: pa.Schema
    partial: bool
    memory_bytes: int | None
    only_after: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        extra = [OP, KEPT] if self.partial else [OP]
        wanted = pa.schema([*[pa.field(n, pa.string()) for n in extra], *self.schema])
        held, size = [], 0
        for batch in batches:
            held.append(typed(batch, wanted))
            size += batch.nbytes
            if self.memory_bytes is not None and size > self.memory_bytes // 2:
                yield result(file=TOO_LARGE)
                return
        rows = pa.Table.from_batches(held, wanted)
        source = Source.of(rows, self.key, self.schema, self.partial)
        done = merge(
            self.path, source, self.app_id, self.upto, self.memory_bytes, info(plan="task_local"),
            only_after=self.only_after,
        )  # fmt: skip
        assert done is not None  # noqa: S101 - whatever it touches
        yield result(inserted=done.inserted, updated=done.updated, deleted=done.deleted, version=done.version)


@dataclass(frozen=True)
class PartTask:
    """Writes the rows of one task to a parquet part of a table's folder; the driver commits it.

    Rows whose `OP` says delete are left out. With `bag`, rows come with `HAVE`, `TAKE` and
    `LEFT` (see `fold.copies`), and are written as often as is left.
    """

    path: str
    schema: pa.Schema
    bag: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = lake.Part(self.path, self.schema)
        inserted = deleted = missing = 0
        for batch in batches:
            if self.bag:
                have, take, left = (batch[n].to_numpy() for n in (HAVE, TAKE, LEFT))
                inserted += int(np.maximum(left - have, 0).sum())
                deleted += int(np.maximum(have - left, 0).sum())
                missing += int(np.maximum(take - have, 0).sum())
                rows = batch.take(pa.array(np.repeat(np.arange(len(left)), left)))
            else:
                rows = batch.filter(pc.not_equal(batch[OP], "D")) if OP in batch.schema.names else batch
                inserted += rows.num_rows
            part.write(typed(rows, self.schema))
        added = part.close()
        yield result(
            inserted=inserted, deleted=deleted, missing=missing, file=added.to_json() if added else None
        )


def merge_local(df: DataFrame, task: MergeTask) -> ApplyOutcome | None:
    """Runs the merge of changes as one Spark job of one task; None when it is too large for its memory,
    and nothing was written."""
    found = run(df.coalesce(1), task)
    if not found:  # Spark runs no task for rows it knows to be none
        version = lake.commit(task.path, [], progress={task.app_id: task.upto})
        return ApplyOutcome(
            version=lake.version(task.path) if version is None else version, plan="task_local"
        )
    row = found[0]
    if row["file"] == TOO_LARGE:
        return None
    return ApplyOutcome(row["inserted"], row["updated"], row["deleted"], row["version"], "task_local")


def write_parts(rows: DataFrame | Parts, task: PartTask) -> tuple[list[lake.AddedFile], ApplyOutcome]:
    """Writes rows as parts (one a task, not committed); gives them, and an outcome without version."""
    found = run(rows, task)
    total = {n: sum(r[n] for r in found) for n in ("inserted", "deleted", "missing")}
    return [lake.AddedFile.from_json(r["file"]) for r in found if r["file"]], ApplyOutcome(**total)


def append(
    path: str, files: list[lake.AddedFile], app_id: str, upto: int, follows: int, words: dict[str, str]
) -> int:
    """Adds parts, made of the changes behind `follows`, to whatever a table has; gives the version.

    Raises:
        ConcurrentCommitError: the table's progress is not `follows` any more; nothing was written.
    """
    try:
        done = lake.commit(path, files, progress={app_id: upto}, info=words, after={app_id: follows})
    except OvertakenError as error:
        raise ConcurrentCommitError(error.what, where=path, hint=AGAIN) from error
    assert done is not None  # noqa: S101 - progress that has not moved is behind `upto`
    return done


def info(**words: object) -> dict[str, str]:
    """Commit info: words about the commit under the one name `tailrace`."""
    return {"tailrace": json.dumps(words)}
