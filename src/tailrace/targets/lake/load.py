"""Writes rows as parts of a table of files, one per task; the driver commits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ...engine.columns import typed
from ...lake import delta as lake
from ...lake.data_files import DataFiles
from ..merge_result import ApplyOutcome
from ..parts import Parts, result, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class PartTask:
    """Writes the rows of one task to a Parquet part of a table; the driver commits it."""

    files: DataFiles
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part, inserted = self.files.part(self.schema), 0
        for batch in batches:
            inserted += batch.num_rows
            part.write(typed(batch, self.schema))
        yield result(inserted=inserted, file=None)
        for added in part.close_all():
            yield result(file=added.to_json())


def write_parts(rows: DataFrame | Parts, task: PartTask) -> tuple[list[lake.AddedFile], ApplyOutcome]:
    """Writes rows as parts, which are not committed. Returns the parts and an outcome without version."""
    found = run(rows, task)
    outcome = ApplyOutcome(sum(r["inserted"] for r in found))
    return [lake.AddedFile.from_json(r["file"]) for r in found if r["file"]], outcome
