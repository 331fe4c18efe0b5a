"""Parquet parts that tasks write side by side, and their commit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ...engine.columns import typed
from ...errors import AGAIN, ConcurrentCommitError, OvertakenError
from ...lake import delta as lake
from ..merge_result import ApplyOutcome
from ..parts import Parts, result, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEAST_MEMORY = 64 << 20
"""With less, hardly a batch would be merged in a task."""


@dataclass(frozen=True)
class PartTask:
    """Writes the rows of one task to a parquet part of a table's folder; the driver commits it."""

    path: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part, inserted = lake.Part(self.path, self.schema), 0
        for batch in batches:
            inserted += batch.num_rows
            part.write(typed(batch, self.schema))
        added = part.close()
        yield result(inserted=inserted, file=added.to_json() if added else None)


def write_parts(rows: DataFrame | Parts, task: PartTask) -> tuple[list[lake.AddedFile], ApplyOutcome]:
    """Writes rows as parts (one a task, not committed); gives them, and an outcome without version."""
    found = run(rows, task)
    outcome = ApplyOutcome(sum(r["inserted"] for r in found))
    return [lake.AddedFile.from_json(r["file"]) for r in found if r["file"]], outcome


def append(
    path: str, files: list[lake.AddedFile], app_id: str, upto: int, follows: int, words: dict[str, str]
) -> int:
    """Adds parts, made of the changes behind `follows`, to whatever a table has; gives the version.

    Raises:
        ConcurrentCommitError: the table's progress is not `follows` any more; nothing was written.
    """
    try:
        done = lake.commit(
            path, files, progress={app_id: upto}, info=words, after={app_id: None if follows < 0 else follows}
        )
    except OvertakenError as error:
        raise ConcurrentCommitError(error.what, where=path, hint=AGAIN) from error
    assert done is not None  # noqa: S101 - progress that has not moved is behind `upto`
    return done


def info(**words: object) -> dict[str, str]:
    """Commit info: words about the commit under the one name `tailrace`."""
    return {"tailrace": json.dumps(words)}
