"""Formats: rows/s of every format's write and read, of mask decoding, and Qlik Parquet to canonical with its masks
decoded to bits against a plain Spark copy of the same files.

Run by `rows` as a process of its own: `formats.py FOLDER [--quick]` prints JSON. Everything goes through Parquet:
`write` is canonical Parquet to the vendor's Parquet, `read` the vendor's Parquet to canonical rows that are
computed and thrown away. Twenty columns; a quarter of the rows inserts, deletes a twentieth, the rest updates
with their before images.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import measure
from measure import HERE, Row, say
from tailrace import formats
from tailrace.formats import convert, file_writer
from tailrace.formats.base import FILE, RAW, ROW
from tailrace.model import mask
from tailrace.model.change import HEADERS, OPERATIONS, PREFIX, ChangeTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLE = "bench.wide"
COPY = "plain Spark copy of the same files"
ROUNDS = 3
COLUMNS = {
    "id": "bigint",
    **{f"n{k}": "int" for k in range(5)},
    **{f"t{k}": "string" for k in range(7)},
    **{f"d{k}": "decimal(12,2)" for k in range(3)},
    **{f"at{k}": "timestamp" for k in range(2)},
    "day": "date",
    "flag": "boolean",
}


def rows(folder: Path, *, quick: bool) -> list[Row]:
    """The bench `formats`."""
    say("formats: write and read, masks")
    command = [sys.executable, HERE / "formats.py", folder / "formats", *(["--quick"] if quick else [])]
    done = measure.run(command, log=None)
    found = json.loads(done.output.strip().splitlines()[-1])
    return [Row(**{"peak_rss_mb": done.peak_mb, **one}) for one in found]


def changes(spark: SparkSession, many: int) -> DataFrame:
    """The canonical change table, computed from row numbers; from 1, for 0 is a full load's number."""
    from pyspark.sql import functions as F

    n = F.col("id")
    kind = n % 20  # 0-4 I, 5 D, then seven pairs B U
    pair = kind >= 6
    number = F.when(pair, n - n % 2).otherwise(n)
    oper = F.when(kind < 5, "I").when(kind == 5, "D").when(n % 2 == 0, "B").otherwise("U")
    width, start = len(COLUMNS), len(HEADERS)
    whole = mask.encode(range(start, start + width))
    key, some = mask.encode([start]), mask.encode([start + 3, start + 8, start + 15])
    masks = F.when(oper == "I", F.lit(whole)).when(oper == "D", F.lit(key)).when(oper == "U", F.lit(some))
    headers: dict[str, Column] = {
        "change_seq": F.concat(F.lit("2026010112000000"), F.lpad(number.cast("string"), 19, "0")),
        "change_oper": oper,
        "change_mask": F.coalesce(masks, F.lit(b"")),
        "stream_position": F.lpad(F.hex(number), 40, "0"),
        "operation": F.element_at(F.create_map(*[F.lit(x) for p in OPERATIONS.items() for x in p]), oper),
        "transaction_id": (number / 10).cast("bigint").cast("string"),
        "timestamp": F.timestamp_seconds(F.lit(1_767_268_800) + number / 1000),
        "column_mask": F.lit(None).cast("binary"),
    }
    made = [headers[h].cast(t).alias(PREFIX + h) for h, t in HEADERS.items()]
    made += [_value(c, t, number, n).alias(c) for c, t in COLUMNS.items()]
    return spark.range(1, many + 1).select(*made)


def _value(name: str, kind: str, number: Column, row: Column) -> Column:
    from pyspark.sql import functions as F

    if name == "id":
        return number % 100_000
    seed = F.xxhash64(row, F.lit(name))
    if kind == "string":
        text = F.concat(F.lit("some text & more "), (seed % 10_000).cast("string"))
        return F.when(seed % 10 != 0, text)
    if kind.startswith("timestamp"):
        return F.timestamp_seconds(F.abs(seed % 2_000_000_000))
    if kind == "date":
        return F.date_add(F.lit("2000-01-01").cast("date"), (seed % 9000).cast("int"))
    if kind == "boolean":
        return seed % 2 == 0
    return (seed % 1_000_000).cast(kind)


def options(name: str) -> dict[str, str]:
    """What a format has to be told of tables that say nothing of their types and keys."""
    types = ", ".join(f"{c} {t}" for c, t in COLUMNS.items())
    known = formats.get(name).options.model_fields
    return {k: v for k, v in (("key", "id"), ("columns", types)) if k in known}


def main(folder: str, many: int) -> list[dict[str, object]]:
    """Every measurement."""
    from tailrace.runtime.session import session

    spark = session("bench formats")
    root = Path(folder)
    changes(spark, many).write.parquet(str(root / "canonical"))
    found: list[dict[str, object]] = []
    found += _format(spark, "qlik", root, many)
    found += [_masks(spark, root, many), _bits(spark, root, many)]
    for name in formats.OURS:
        if name != "qlik":
            found += _format(spark, name, root, many)
    return found


def _told(one: dict[str, object]) -> dict[str, object]:
    peer = f", {one['peer']}: {one['peer_value']:,.1f}" if "peer" in one else ""
    say(f"{one['bench']}: {one['value']:,.1f} {one['unit']}{peer}")
    return one


def _format(spark: SparkSession, name: str, root: Path, many: int) -> list[dict[str, object]]:
    """Write and read, once each: half a minute and more of work levels a cold start."""
    df = spark.read.parquet(str(root / "canonical"))
    ct = ChangeTable(df, ["id"], list(COLUMNS), name=TABLE)
    side = convert.side(name, str(root / name), options(name))

    def write() -> None:
        tables = side.form.write({TABLE: ct}, side.options)
        if side.form.save:
            side.form.save(tables, side.path, "parquet", side.options)
        else:
            file_writer.save(tables, side.path, "parquet")

    def read() -> None:
        for one in convert.read(spark, side, check=False).changes.values():
            one.df.drop(RAW).write.format("noop").mode("overwrite").save()

    return [
        _told({"bench": f"format {name}: {verb}", "value": many / _seconds(work), "unit": "rows/s"})
        for verb, work in (("write", write), ("read", read))
    ]


def _masks(spark: SparkSession, root: Path, many: int) -> dict[str, object]:
    df = spark.read.parquet(str(root / "canonical")).select(PREFIX + "change_mask")
    bits = _decoded(df.columns[0], len(HEADERS))
    seconds = statistics.median(
        _seconds(lambda: df.select(*bits).write.format("noop").mode("overwrite").save())
        for _ in range(ROUNDS)
    )
    return _told(
        {"bench": "masks decoded to the bits of 20 columns", "value": many / seconds, "unit": "rows/s"}
    )


def _decoded(column: str, start: int) -> list[Column]:
    from pyspark.sql import functions as F

    found = mask.bits(F.col(column), range(start, start + len(COLUMNS)))
    return [bit.alias(f"changed_{c}") for bit, c in zip(found, COLUMNS, strict=True)]


def _bits(spark: SparkSession, root: Path, many: int) -> dict[str, object]:
    """Both sides in turn, three times each; medians. Both write Parquet."""
    side = convert.side("qlik", str(root / "qlik"), options("qlik"))
    files = [str(p) for p in sorted((root / "qlik").rglob("*.parquet"))]

    def copy() -> None:
        spark.read.parquet(*files).write.mode("overwrite").parquet(str(root / "copy"))

    def decoded() -> None:
        (ct,) = convert.read(spark, side, check=False).changes.values()
        bits = _decoded(ct.header("change_mask"), ct.ordinal(ct.columns[0]))
        rows = ct.df.drop(RAW, FILE, ROW).select("*", *bits)
        rows.write.mode("overwrite").parquet(str(root / "bits"))

    copy()
    pairs = [(_seconds(decoded), _seconds(copy)) for _ in range(ROUNDS)]
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return _told({
        "bench": f"Qlik Parquet of {many:,} rows to canonical, masks as bits", "value": ours, "unit": "s",
        "peer": COPY, "peer_value": theirs, "goal": 1 / 1.5,
    })  # fmt: skip


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], 100_000 if "--quick" in sys.argv else 5_000_000)))
