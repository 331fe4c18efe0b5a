# ruff: noqa: T201 - it shows what it does
"""OpenEdge's CDC tables (two policies, a split record, an array): read, rebuilt, applied, handed on."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tailrace.apply.vendor import change_stats, upsert
from tailrace.formats import convert
from tailrace.formats.base import FILE, WHY
from tailrace.formats.openedge import rebuild
from tailrace.runtime.session import session
from tailrace.targets.delta.target import DeltaTarget


def main(out: str) -> None:
    spark = session("openedge example", master="local[2]")
    source = convert.side("openedge", str(Path(__file__).parent / "tables"), {})
    read = convert.read(spark, source)
    print("not changes:", *[r[0] for df in read.pending.values() for r in df.select(WHY).collect()])
    items = read.changes["PUB.Item"]
    items.df.filter(f"{WHY} IS NOT NULL").select(WHY, FILE).show(truncate=40)
    good = rebuild(items.with_df(items.df.filter(f"{WHY} IS NULL")))

    print("the life of item 1:")
    change_stats.row_history(good, {"Id": 1}).show(truncate=False)
    target = DeltaTarget(spark, f"{out}/lake", app_id="openedge example")
    print("applied:", upsert.apply(target, {"PUB.Item": good}, out)["PUB.Item"])
    spark.read.format("delta").load(target.path("PUB.Item")).orderBy("Id").show()

    report = convert.convert(spark, source, convert.side("qlik", f"{out}/qlik", {}, "csv"))
    print("handed on to Qlik:", report.written, "lost:", report.tables["PUB.Item"].lost)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(sys.argv[1] if len(sys.argv) > 1 else place)
