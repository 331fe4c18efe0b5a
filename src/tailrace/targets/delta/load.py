"""Loads rows into Delta targets: parts that tasks write, and baselines of mapped tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ...engine.columns import typed
from ...lake import delta as lake
from ...lake.failpoints import reach
from ...model.change import Relation
from ...model.types import schema_of
from ..merge_result import ApplyOutcome
from ..parts import Parts, result, run
from .layout import create, mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class PartTask:
    """Writes the rows of one task to a Parquet part in a table's folder; the driver commits it."""

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
    """Writes rows as parts, one per task, which are not committed. Returns the parts and an outcome without
    version."""
    found = run(rows, task)
    outcome = ApplyOutcome(sum(r["inserted"] for r in found))
    return [lake.AddedFile.from_json(r["file"]) for r in found if r["file"]], outcome


def load(path: str, app: str, relation: Relation, rows: DataFrame | Parts, after: int) -> int:
    """Replaces all rows of a table, in one commit with its progress, and returns the version."""
    create(path, relation)
    schema = schema_of(relation.columns)
    files, _ = write_parts(rows, PartTask(path, schema))
    progress = {app: max(after, 0)}
    reach("delta.load")
    return lake.replace_all(path, files, schema=schema, progress=progress, info=mark(relation))
