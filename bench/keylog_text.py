"""The key log's text: parsing it against Spark's own `from_csv` of the same values in the same session, and
writing it against `to_csv`.

    python bench/keylog_text.py [ROWS]

Both texts are in Parquet; the typed columns are computed and thrown away. The best of a few rounds counts, in
turns. One text value in ten has characters that must be escaped.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.formats.sqdr import text as sqdr_text
from tailrace.runtime.session import session
from tailrace.wire import keylog_render
from tailrace.wire.keylog_values import KeyLogField

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS, ROUNDS, GOAL = 1_000_000, 4, 3.0
VALUES = {
    "id": ("bigint", "id"),
    "name": ("string", "concat('name of ', id)"),
    "amount": ("decimal(12,2)", "cast(id % 1000000 / 100 as decimal(12,2))"),
    "count": ("int", "cast(id % 1000 as int)"),
    "at": ("timestamp", "timestamp_micros(1700000000000000 + id * 1000003)"),
    "day": ("date", "date_add(date'2020-01-01', cast(id % 2000 as int))"),
    "note": (
        "string",
        "if(id % 10 = 0, concat('a \"note\" & more\\n<', id, '>'), concat('a plain note ', id))",
    ),
    "state": ("string", "if(id % 7 = 0, null, 'open')"),
}


def tables(spark: SparkSession, rows: int, place: str) -> tuple[DataFrame, DataFrame, list[KeyLogField]]:
    """The typed values, and the same as both texts, from Parquet."""
    from pyspark.sql import functions as F

    fields = [KeyLogField(name, kind) for name, (kind, _) in VALUES.items()]
    spark.range(rows).selectExpr(*[f"{sql} as {n}" for n, (_, sql) in VALUES.items()]).write.parquet(
        f"{place}/v"
    )
    values = spark.read.parquet(f"{place}/v")
    image, csv = texts(fields)
    values.select(image.alias("image"), csv.alias("csv"), F.lit(1).alias("one")).write.parquet(f"{place}/t")
    return values, spark.read.parquet(f"{place}/t"), fields


def texts(fields: list[KeyLogField]) -> tuple[Column, Column]:
    """Both texts of the values, as expressions."""
    from pyspark.sql import functions as F

    def rendered(rows: pa.Array) -> pa.Array:
        values = zip(fields, rows.flatten(), strict=True)
        return keylog_render.items([keylog_render.Item(f, v) for f, v in values], "<row>", "</row>")

    image = F.arrow_udf(rendered, "string")(F.struct(*[f.name for f in fields]))
    options = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", "quoteAll": "true", "escape": '"'}
    return image, F.to_csv(F.struct(*[f.name for f in fields]), options)


def seconds(df: DataFrame) -> float:
    """How long Spark takes to compute all of it."""
    began = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main(rows: int = ROWS) -> None:
    """Prints seconds and ratios."""
    from pyspark.sql import functions as F

    spark = session("bench keylog_text", master="local[2]", conf={"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory() as place:
        values, text, fields = tables(spark, rows, place)
        schema = ", ".join(f"{f.name} {f.type}" for f in fields)
        ours = sqdr_text.parsed(F.col("image"), fields, range(8, 8 + len(fields)), row=True)
        csv = F.from_csv("csv", schema, {"escape": '"'})
        image, as_csv = texts(fields)
        wanted = {
            "parse": text.select(ours.alias("x")).select("x.v.*", "x.m", "x.why"),
            "from_csv": text.select(csv.alias("x")).select("x.*"),
            "write": values.select(image),
            "to_csv": values.select(as_csv),
            "read Parquet": values,
        }
        bad = wanted["parse"].where("why is not null or m is not null").count()
        assert bad == 0
        took = dict.fromkeys(wanted, 1000000000.0)
        for _ in range(ROUNDS):
            for name, df in wanted.items():
                took[name] = min(took[name], seconds(df))
        for name, best in took.items():
            print(f"{name:14} {best:6.2f} s  {rows / best:12,.0f} rows/s")
        ratio = took["parse"] / took["from_csv"]
        print(f"parse / from_csv {ratio:.2f} (goal: at most {GOAL})")
        print(f"write / to_csv   {took['write'] / took['to_csv']:.2f}")
    spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
