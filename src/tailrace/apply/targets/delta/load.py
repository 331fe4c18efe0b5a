"""Baselines that come as a DataFrame (those of mapped tables) into Delta targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ....errors import ConcurrentCommitError
from ....lake import delta as lake
from ....lake.failpoints import reach
from ....model.change import Relation
from ....model.types import schema_of, spark_type
from ...images import col, quote
from ...mapping.shared_rows import refuse_columns
from ...tasks import Parts
from . import distributed
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


def load_part(
    path: str,
    app: str,
    relation: Relation,
    rows: DataFrame,
    after: int,
    own: Mapping[str, str],
    rule_columns: Sequence[str],
) -> int:
    """Makes rows all those with the constants `own`. The progress is a commit of its own behind them: who
    dies in between loads again."""
    from pyspark.sql import functions as F

    create(path, relation)
    there = {f.name: spark_type(f.type) for f in lake.arrow_schema(path)}
    want = {c.name: c.type for c in relation.columns}
    refuse_columns(relation.table, path, there, want, rule_columns)
    more = [F.lit(None).cast(kind).alias(n) for n, kind in there.items() if n not in want]
    where = " AND ".join(f"{quote(n)} = '{_text(v)}'" for n, v in own.items())
    whole = rows.select(*map(col, want), *more)

    def once(now: DeltaTable) -> bool | None:
        try:
            distributed.overwrite(whole, path, now.version(), replaceWhere=where)
        except ConcurrentCommitError:
            return None
        return True

    lake.on_newest(path, once)
    reach("delta.load")
    done = lake.commit(path, [], progress={app: max(after, 0)}, begin=True)
    return lake.version(path) if done is None else done


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
