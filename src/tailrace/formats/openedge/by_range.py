"""Tracking rows and images joined by ranges of numbers (`ranges`), as Spark's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...execution import over_rows
from ...model.quoting import quoted
from ..base import ASIDE, FILE, RAW, ROW, WHY, Tables
from ..parquet import LoadedTables
from ..row_groups import NUMBER, PLACE, ranges
from .both_rows import THERE
from .policy import CapturedTable
from .ranges import RangeJoin, side_of
from .shares import Share
from .split import SPLIT
from .tables import CHANGE, TRACKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def joined(tables: Tables, tracking: str | None, source: CapturedTable, *, alone: bool) -> DataFrame | None:
    """The rows of both tables of a source, as `images` joins them; None where that takes Spark's join.

    Args:
        tables: the vendor's tables.
        tracking: the name of the tracking table.
        source: the source table.
        alone: whether it is the only one.
    """
    share = Share.of(source, alone)
    if not isinstance(tables, LoadedTables) or tracking is None or source.change_table is None:
        return None
    files = [tables.files_of(name) for name in (tracking, source.change_table)]
    if share is None or files[0] is None or files[1] is None:
        return None
    kinds = [
        {f.name: f.dataType.simpleString() for f in tables[n].schema if f.name not in ASIDE}
        for n in (tracking, source.change_table)
    ]
    sides = side_of(files[0], TRACKING, kinds[0]), side_of(files[1], CHANGE, kinds[1], source.columns)
    if sides[0] is None or sides[1] is None:
        return None
    plan = ranges([sides[1][1], sides[0][1]])
    if plan is None:
        return None
    spark = tables[tracking].sparkSession
    return _rows(spark.range(0, len(plan), 1, len(plan)), RangeJoin(sides[0][0], sides[1][0], share, plan))


def _rows(tasks: DataFrame, join: RangeJoin) -> DataFrame:
    from pyspark.sql import functions as F

    columns = join.columns()
    plain = ", ".join(f"c{i} {kind}" for i, kind in enumerate(columns.values()))
    df = over_rows(tasks, join, plain).toDF(*columns)
    more: dict[str, Column] = {}
    for side, of in (("_t", join.tracking), ("_c", join.images)):
        names = [n for n, have, _ in of.columns if have is not None]
        row = F.to_json(F.struct(*[F.col(quoted(f"{side}:{n}")).alias(n) for n in names]))
        more |= {
            f"{side}:{FILE}": of.path(F.col(quoted(f"{side}:{PLACE}"))),
            f"{side}:{ROW}": F.col(quoted(f"{side}:{NUMBER}")),
            f"{side}:{WHY}": F.lit(None).cast("string"),
            f"{side}:{RAW}": F.when(F.col(quoted(f"{side}:{THERE}")), row),
        }
    more[f"_c:{SPLIT}"] = F.lit(None).cast("string")
    return df.select("*", *(value.alias(name) for name, value in more.items()))
