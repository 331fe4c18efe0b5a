"""Baselines that come as a DataFrame (those of mapped tables) into Delta targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lake import delta as lake
from ...lake.failpoints import reach
from ...model.change import Relation
from ...model.types import schema_of
from ..parts import Parts
from .layout import create
from .layout_mark import mark
from .local import PartTask, write_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def load(path: str, app: str, relation: Relation, rows: DataFrame | Parts, after: int) -> int:
    """Makes rows the whole table, in one commit with its progress; gives the version."""
    create(path, relation)
    schema = schema_of(relation.columns)
    files, _ = write_parts(rows, PartTask(path, schema))
    progress = {app: max(after, 0)}
    reach("delta.load")
    return lake.replace_all(path, files, schema=schema, progress=progress, info=mark(relation))
