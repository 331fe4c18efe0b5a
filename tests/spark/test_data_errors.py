"""Values and keys that a target cannot hold, under rules: set aside, or the batch ends before them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from deltalake.schema import Field, PrimitiveType, Schema

from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError
from tailrace.keylog.control_tables import EXCEPTIONS
from tailrace.keylog.key_log import KeyLog
from tailrace.lake import delta as lake
from tailrace.model import sequence

from .literal_tables import rows_at
from .rules_model import Change
from .rules_task import by_shards
from .test_rules import NAME, Place, change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_values_that_a_narrower_column_cannot_hold_are_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(spark, tmp_path, "upsert", {"data_error": "log"})
    fields = [("lane", "integer"), ("id", "string"), ("a", "decimal(4,1)"), ("b", "string")]
    schema = Schema([Field(name, PrimitiveType(kind)) for name, kind in fields])
    DeltaTable.create(place.target.path(NAME), schema)
    done = place.apply([change(1, "I", "a"), change(2, "I", "b", a=1000), change(3, "U", "b", a=7)])
    assert (done.conflicts, done.actions) == ({"data_error": 1, "update_missing": 1}, {"I": 3})
    assert [(r[1], float(r[2])) for r in place.rows()] == [("a", 1.0), ("b", 7.0)]
    errors = [r["result_error"] for r in rows_at(spark, place.log.path).collect()]
    assert sorted(e for e in errors if e) == ["data_error: a is not a valid decimal(4,1)"]
    bad = [change(4, "I", "c"), replace(change(5, "I", "d"), values={"lane": None, "id": "d", "a": 5})]
    with pytest.raises(ApplyError, match=r"'a' changed from decimal\(4,1\) to int"):
        Place(spark, tmp_path, "upsert", {}).apply([change(4, "I", "c")])  # the column cannot follow
    stopping = Place(spark, tmp_path, "upsert", {"data_error": "suspend"})
    said = f"data_error at change_seq {sequence.make(2026010100000000, 5)}: NULL in lane, which is in the key"
    assert stopping.apply(bad).suspended == said
    assert len(place.rows()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["strict", "archive"])
@pytest.mark.parametrize("several", [False, True])
def test_the_key_log_has_both_keys_of_an_update_that_is_set_aside(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, several: bool
) -> None:
    if several:
        by_shards(monkeypatch)
    place = Place(spark, tmp_path, mode, {"data_error": "log"})
    place.apply([change(1, "I", "a")])
    DeltaTable(place.target.path(NAME)).alter.add_constraint({"small": "a < 50"})
    moved = Change(2, "U", (0, "a"), {"lane": 0, "id": "b", "a": 99, "b": "x"})
    place.apply([moved, change(3, "U", "a")])
    found = {r["change_row_counter"]: r for r in rows_at(spark, place.log.path).collect()}
    assert found[2]["result_error"] == "data_error: CHECK small refuses it"
    keys = [[found[n][k] for k in ("before_key", "after_key")] for n in (2, 3)]
    assert keys == [['lane="0" id="a"', 'lane="0" id="b"'], ['lane="0" id="a"', None]]


@pytest.mark.slow
def test_a_null_in_a_key_stops_several_jobs_before_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing looks for it before one of them has met it. What a truncate takes away is looked at, too."""
    by_shards(monkeypatch)
    place = Place(spark, tmp_path, "upsert", {})
    good, after = (
        [change(1, "I", "a"), change(2, "U", "a", b="x")],
        [change(4, "D", "q"), change(5, "I", "d")],
    )
    bad = replace(change(3, "I", "c"), values={"lane": 0, "id": None, "a": 3})

    def stops(number: int, *changes: Change) -> None:
        seq = sequence.make(2026010100000000, number)
        with pytest.raises(ApplyError, match="data_error: NULL in id, which is in the key") as caught:
            place.apply(changes)
        assert seq in str(caught.value)
        place.same()

    with monkeypatch.context() as patch:
        patch.setattr(place.log, "commit", lambda *_, **__: 1 // 0)  # a crash before the key log
        with pytest.raises(ApplyError, match="division"):
            place.apply([*good, bad, *after])
    assert (place.target.progress(NAME), place.logged()) == (2, [])
    place.log = KeyLog(place.log.path, app_id="t", run_id="2")
    place.expect(good)
    told = place.applier.preview(place.table([*good, bad, *after])).suspended
    assert told == f"would stop: data_error at change_seq {sequence.make(2026010100000000, 3)}"
    stops(3, *good, bad, *after)
    # It is corrected.
    place.rules, before = Rules.of("strict"), place.model
    place.model = replace(before, mode="strict", on=place.rules.on)
    place.expect(after)
    stops(6, *good, *after, replace(bad, number=6, oper="D"), Change(7, "T", None, {}))
    assert lake.read(f"{place.root}/{EXCEPTIONS}", ["ERROR"]).num_rows == 1


def test_plans_stay_small_where_many_columns_are_looked_at(spark: SparkSession) -> None:
    """Spark repeats what a filter says of columns for each choice of their aliases: 2**14 times here."""
    from pyspark.sql import functions as F

    names = [f"c{i}" for i in range(14)]
    rows = spark.createDataFrame([], ", ".join(f"{n} string" for n in names))
    looked = rows.where(F.coalesce(*[F.when(F.instr(n, "x") > 0, n) for n in names]).isNotNull())
    plan = (
        looked.select("*", *[F.col(n).alias(f"a_{n}") for n in names])._jdf.queryExecution().optimizedPlan()
    )
    assert plan.constraints().size() < 100
