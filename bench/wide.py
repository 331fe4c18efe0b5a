"""Wide tables through every format: the time per value of tables of 100 and of 1,000 columns, and how long
`inspect` looks at 10,000.

    python bench/wide.py [FORMAT,...] [WIDTH,...]

Every table has the same number of values, and goes through Parquet: canonical rows are written as the vendor's,
and read again. A first table of 20 columns warms Spark up. What grows faster than a table's width shows as more
time per value. Planning (the command's own process and Spark's analysis) is shown by itself: it happens once for
a table, however long it is.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace import formats
from tailrace.formats import convert, file_writer
from tailrace.formats.base import RAW
from tailrace.formats.inspect import PREVIEW, inspect
from tailrace.model.change import ChangeTable
from tailrace.runtime.session import session
from tailrace.testing.changes import Image, change_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUES = 1_000_000
WIDTHS = (100, 1000)
GLANCED = 10_000
KINDS = ("string", "int", "decimal(12,2)")


def table(spark: SparkSession, width: int, rows: int) -> ChangeTable:
    """A change table of inserts."""
    from pyspark.sql import functions as F

    kinds = {"id": "int"} | {f"c{n}": KINDS[n % 3] for n in range(width - 1)}
    one = change_table(spark, [Image(1, "I", {"id": 1})], columns=kinds)
    made = {
        "header__change_seq": F.concat(F.lit("2026010112000000"), F.lpad(F.col("n").cast("string"), 19, "0"))
    }
    made |= {c: (F.col("n") % 1000).cast(k) for c, k in kinds.items()}
    numbers = spark.range(1, rows + 1).withColumnRenamed("id", "n")
    df = one.df.drop(*made).crossJoin(F.broadcast(numbers).hint("broadcast"))
    return one.with_df(df.select(*[made.get(c, F.col(c)).alias(c) for c in one.df.columns]))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what the work gives."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def there_and_back(spark: SparkSession, name: str, width: int, root: Path) -> list[float]:
    """Seconds: planning and writing, planning and reading."""
    form, rows = formats.get(name), max(VALUES // width, 1)
    place = str(root / "canonical" / str(width))
    if not Path(place).exists():
        table(spark, width, rows).df.write.parquet(place)
    df = spark.read.parquet(place)
    columns = [c for c in df.columns if not c.startswith("header__")]
    types = ", ".join(f"{c} {df.schema[c].dataType.simpleString()}" for c in columns)
    given = {k: v for k, v in (("key", "id"), ("columns", types)) if k in form.options.model_fields}
    side = convert.side(name, str(root / name / str(width)), given)
    ct = ChangeTable(df, ["id"], columns, name="bench.wide")

    def save(tables: dict[str, DataFrame]) -> None:
        if form.save:
            form.save(tables, side.path, "parquet", side.options)
        else:
            file_writer.save(tables, side.path, "parquet")

    planned, tables = timed(lambda: form.write({"bench.wide": ct}, side.options))
    written, _ = timed(lambda: save(tables))
    replanned, found = timed(lambda: convert.read(spark, side, check=False))
    (back,) = [c for n, c in found.changes.items() if n == "bench.wide"]
    read, _ = timed(lambda: back.df.drop(RAW).write.format("noop").mode("overwrite").save())
    return [planned, written, replanned, read]


def main(names: list[str], widths: list[int]) -> None:
    """Prints the figures."""
    spark = session("bench wide")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        wide = root / "glanced" / "bench.wide__ct"
        table(spark, GLANCED, 2).df.write.parquet(str(wide))
        looked, _ = timed(lambda: inspect(spark, str(wide.parent), first=PREVIEW))
        print(f"inspect of {GLANCED:,} columns: {looked:.1f} s", flush=True)
        for name in names:
            there_and_back(spark, name, 20, root)
            for width in widths:
                planned, written, replanned, read = there_and_back(spark, name, width, root)
                each = [
                    f"{verb} {s / VALUES * 1e6:.3f} µs" for verb, s in (("write", written), ("read", read))
                ]
                print(
                    f"{name}, {width:,} columns: {', '.join(each)} per value; plans {planned:.1f} s, {replanned:.1f} s",
                    flush=True,
                )
    spark.stop()


if __name__ == "__main__":
    asked = [one.split(",") for one in sys.argv[1:]]
    main(
        asked[0] if asked else list(formats.OURS),
        [int(w) for w in asked[1]] if len(asked) > 1 else list(WIDTHS),
    )
