# ruff: noqa: T201 - it shows what it does
"""A key log of StarQuest SQDR (a key change, a row that was not there, a bad value): applied, handed on."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tailrace.apply.vendor import change_stats, upsert
from tailrace.formats import convert
from tailrace.formats.base import WHY
from tailrace.formats.sqdr import reader, text
from tailrace.runtime.session import session
from tailrace.targets.delta.target import DeltaTarget


def main(out: str) -> None:
    spark = session("sqdr example", master="local[2]")
    source = convert.side("sqdr", str(Path(__file__).parent / "tables"), {})
    log = convert.load(spark, source)["ir_keylog"]
    print("flagged at the destination, and who changed rows:")
    log.filter(reader.unexpected()).select("action_taken", "before_key", "result_row_count").show()
    log.select(text.detail(log.change_row_log_detail).alias("d")).select("d.*").show(2)
    items = convert.read(spark, source).changes["SHOP.ITEM"]
    items.df.filter(f"{WHY} IS NOT NULL").select(WHY).show(truncate=False)
    good = items.with_df(items.df.filter(f"{WHY} IS NULL"))
    print("the life of item 1:")
    change_stats.row_history(good, {"ID": 1}).show(truncate=False)
    target = DeltaTarget(spark, f"{out}/lake", app_id="sqdr example")
    print("applied:", upsert.apply(target, {"SHOP.ITEM": good}, out)["SHOP.ITEM"])
    spark.read.format("delta").load(target.path("SHOP.ITEM")).orderBy("ID").show()
    report = convert.convert(spark, source, convert.side("qlik", f"{out}/qlik", {}, "csv"))
    print("handed on to Qlik:", report.written, "lost:", report.tables["SHOP.ITEM"].lost)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(sys.argv[1] if len(sys.argv) > 1 else place)
