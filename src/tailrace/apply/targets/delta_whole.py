"""The plan `rewrite`: the whole target joined with the folded changes, written anew by tasks side by side.

One pass over the target where MERGE takes two or three. For batches that meet next to every file anyway; the
target needs no deletion vectors, and loses those it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ...engine.columns import KEPT, OP, typed
from ...lake import delta as lake
from ..fold import Folded, col
from .delta_local import result, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FATE = "header__fate"
"""What becomes of a row: `=` stays, `I` new, `U` written over, `D` gone, `-` a delete that met nothing."""
PART_BYTES = 256 << 20
"""About what one part of the table holds."""


@dataclass(frozen=True)
class WholeTask:
    """Writes the rows that remain to a parquet part of the table's folder; the driver commits it."""

    path: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = lake.Part(self.path, self.schema)
        counts = dict.fromkeys("IUD", 0)
        for batch in batches:
            fate = batch[FATE]
            for one in pc.value_counts(fate).to_pylist():
                if one["values"] in counts:
                    counts[one["values"]] += one["counts"]
            gone = pc.is_in(fate, value_set=pa.array(["D", "-"]))
            part.write(typed(batch.filter(pc.invert(gone)), self.schema))
        added = part.close()
        yield result(
            inserted=counts["I"],
            updated=counts["U"],
            deleted=counts["D"],
            file=added.to_json() if added else None,
        )


def joined(target: DataFrame, folded: Folded, key: list[str], columns: list[str], size: int) -> DataFrame:
    """`FATE` and the data columns of every row of the target and of every key that the changes touch.

    `size`: the target's bytes, which say into how many parts it goes.
    """
    from pyspark.sql import functions as F

    parts = max(
        int(target.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1), -(-size // PART_BYTES)
    )
    keys = [col(k) for k in key]
    there = target.select(*map(col, columns), F.lit(True).alias("header__there")).repartition(parts, *keys)
    changed = folded.df.repartition(parts, *keys)
    same = F.lit(True)
    for k in key:
        same &= col(k, "t") == col(k, "s")
    # Hashed, not sorted: the changes are the small side, and order is of no use afterwards.
    both = there.alias("t").join(changed.alias("s").hint("shuffle_hash"), same, "full_outer")
    op, met = col(OP, "s"), col("header__there", "t").isNotNull()
    fate = (
        F.when(op.isNull(), "=")
        .when(op != "D", F.when(met, "U").otherwise("I"))
        .otherwise(F.when(met, "D").otherwise("-"))
    )
    made = []
    for i, name in enumerate(columns):
        stays = op.isNull()
        if folded.partial and name not in key:
            stays = stays | (met & F.coalesce(F.substring(col(KEPT, "s"), i + 1, 1) == "1", F.lit(False)))
        made.append(F.when(stays, col(name, "t")).otherwise(col(name, "s")).alias(name))
    return both.select(fate.alias(FATE), *made)


def write_whole(df: DataFrame, task: WholeTask) -> tuple[list[lake.AddedFile], dict[str, int]]:
    """Writes all parts (not committed); gives them, and the rows inserted, updated, deleted."""
    found = run(df, task)
    total = {n: sum(r[n] for r in found) for n in ("inserted", "updated", "deleted")}
    return [lake.AddedFile.from_json(r["file"]) for r in found if r["file"]], total
