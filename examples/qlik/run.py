# ruff: noqa: T201 - it shows what it does
"""Qlik Replicate's files (a full load, changes before and after a DDL): applied, questioned, handed on."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tailrace.apply.vendor import change_stats, upsert
from tailrace.formats import convert
from tailrace.formats.qlik.file_reader import completeness
from tailrace.runtime.session import session
from tailrace.targets.delta.target import DeltaTarget

TABLES = str(Path(__file__).parent / "tables")


def main(out: str) -> None:
    spark = session("qlik example", master="local[2]")
    source = convert.side("qlik", TABLES, {})
    print("files whose rows are not as many as their DFM says:", completeness(spark, TABLES, source.options))
    read = convert.read(spark, source)
    print("notes:", *read.notes)
    target = DeltaTarget(spark, f"{out}/lake", app_id="qlik example")
    print("applied:", upsert.apply(target, read.changes, out)["shop.item"])
    spark.read.format("delta").load(target.path("shop.item")).orderBy("id").show()

    print("the life of item 1:")
    change_stats.row_history(read.changes["shop.item"], {"id": 1}).show(truncate=False)

    report = convert.convert(spark, source, convert.side("openedge", f"{out}/openedge", {}, "csv"))
    print("handed on to OpenEdge:", report.written, "lost:", report.tables["shop.item"].lost)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(sys.argv[1] if len(sys.argv) > 1 else place)
