"""solidDB's log extracts: the conformance suite, and what is solidDB's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tailrace import formats
from tailrace.change import PREFIX
from tailrace.formats.base import Options, Tables
from tailrace.testing.changes import literal, reasons
from tailrace.testing.formats import FormatConformance

from .soliddb_rows import ITEM, OPTIONS, Log, at, item, sample, tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.change import ChangeTable

pytestmark = pytest.mark.spark
FORMAT = formats.get("soliddb")


def options(**more: str) -> Any:
    return formats.options(FORMAT, {**OPTIONS, **more})


class TestSolidDB(FormatConformance):
    format = FORMAT

    def vendor(self, spark: SparkSession) -> dict[str, DataFrame]:
        return tables(spark, sample())

    def vendor_options(self) -> Options:
        return options()

    def hostile(self, spark: SparkSession) -> Iterator[tuple[str, Tables, str]]:
        good = item(1, "a", "1.5")
        for what, record, words in (
            ("no image", (1, None, ITEM), "a row record without DATA"),
            ("unknown table", (1, good, 4711), "RELID 4711 is in no SYS_TABLES"),
            ("cut off", (1, good[:-2], ITEM), "DATA ends in column 3"),
            ("too long", (1, good + b"\1a", ITEM), "bytes left over"),
            ("no number", (1, item(1, "a", "x"), ITEM), "PRICE is no DFLOAT of type decimal(10,2)"),
            ("blob", (1, good[:5] + b"\xff\1\0\0\0", ITEM), "column 2 refers to a blob"),
            ("short address", (1, good, ITEM, {"LOGADDR": b"\1" * 19}), "LOGADDR has 19 bytes"),
            ("other length", (1, good, ITEM, {"LOGADDR": b"\1" * 28}), "LOGADDR has 28 bytes, others have 20"),
            ("no address", (1, good, ITEM, {"LOGADDR": None}), "no LOGADDR"),
            ("no place", (1, good, ITEM, {"LOGADDR": b"\xff" * 20}), "no place in 35 digits"),
            ("lone before image", (5, good, ITEM), "before image without its update"),
            ("names differ", (1, good, ITEM, {"RECNAME": "DBE_LOGREADER_LOG_REC_UPDATE"}), "is not that of RECID 1"),
            ("nop", (1, good, ITEM, {"FLAGS": 0}), "NOP"),
            ("no kind", (None, good, ITEM), "no RECID"),
        ):  # fmt: skip
            log = Log()
            log.transaction((1, good, ITEM), record)
            yield what, tables(spark, log), words
        twice = Log()
        twice.transaction((1, good, ITEM, {"LOGADDR": at(1, 5)}), (1, good, ITEM, {"LOGADDR": at(1, 5)}))
        yield "twice", tables(spark, twice), "comes twice"
        again = Log()
        again.transaction((1, good, ITEM), commit=False, TRXID=7)
        again.transaction((1, good, ITEM), TRXID=7)
        yield "begins again", tables(spark, again), "no COMMIT, though its TRXID begins again"
