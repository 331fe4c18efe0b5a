# ruff: noqa: T201 - it shows what it does
"""solidDB's SYS_LOG (a key change, an ALTER TABLE, what is not to be captured): read, applied, handed on."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tailrace.apply.vendor import change_stats, upsert
from tailrace.formats import convert
from tailrace.formats.base import RAW, WHY
from tailrace.runtime.session import session
from tailrace.targets.delta.target import DeltaTarget


def main(out: str) -> None:
    spark = session("soliddb example", master="local[2]")
    source = convert.side("soliddb", str(Path(__file__).parent / "tables"), {"keys": "SHOP.ITEM=ID"})
    read = convert.read(spark, source)
    items, others = read.changes["SHOP.ITEM"], read.changes["_SYSTEM.SYS_LOG"]
    print("records that wait for their COMMIT:", read.pending["SYS_LOG"].count())
    others.df.filter("RECID NOT IN (7, 12)").select("RECID", "RECNAME", "TRXID").show(truncate=False)
    items.df.filter(f"{WHY} IS NOT NULL").select(WHY, RAW).show(truncate=60)
    good = items.with_df(items.df.filter(f"{WHY} IS NULL"))

    print("the life of item 10:")
    change_stats.row_history(good, {"ID": 10}).show(truncate=False)
    target = DeltaTarget(spark, f"{out}/lake", app_id="soliddb example")
    print("applied:", upsert.apply(target, {"SHOP.ITEM": good}, out)["SHOP.ITEM"])
    spark.read.format("delta").load(target.path("SHOP.ITEM")).orderBy("ID").show()

    report = convert.convert(spark, source, convert.side("qlik", f"{out}/qlik", {}, "csv"))
    print("handed on to Qlik:", report.written, "lost:", report.tables["SHOP.ITEM"].lost)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(sys.argv[1] if len(sys.argv) > 1 else place)
