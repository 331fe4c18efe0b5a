"""Loads rows into Delta targets: parts that tasks write, and baselines of mapped tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lake import delta as lake
from ...lake.data_files import DataFiles
from ...lake.failpoints import reach
from ...model.change import Relation
from ...model.types import schema_of
from ..lake.layout import mark
from ..lake.load import PartTask, write_parts
from ..parts import Parts
from .layout import create

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def load(path: str, app: str, relation: Relation, rows: DataFrame | Parts, after: int) -> int:
    """Replaces all rows of a table, in one commit with its progress, and returns the version."""
    create(path, relation)
    schema = schema_of(relation.columns)
    files, _ = write_parts(rows, PartTask(DataFiles(path), schema))
    progress = {app: max(after, 0)}
    reach("delta.load")
    return lake.replace_all(path, files, schema=schema, progress=progress, info=mark(relation))
