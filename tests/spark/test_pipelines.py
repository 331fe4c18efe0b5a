"""The pipeline of docs/histories.md, written for Spark's AUTO CDC, on plain Spark; one process and Spark's tasks make the same history."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace import pipelines
from tailrace.errors import ConfigError, UnsupportedError
from tailrace.lake import delta as lake
from tailrace.model.change import Relation
from tailrace.model.quoting import quoted
from tailrace.model.types import arrow_type
from tailrace.pipelines import CdcPipeline
from tailrace.query.history.flow import HistoryFlow
from tailrace.query.history.snapshots import changed_rows
from tailrace.query.history.spark import apply_in_tasks
from tailrace.query.history.table import HistoryTable
from tailrace.query.spark_changes import SparkChanges
from tailrace.testing.images import ID, V, change_table

from ..ending import ends
from .literal_tables import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SCHEMA = "id bigint, name string, qty int, op string, seq bigint"
Row = tuple[Any, ...]

PAGE = (Path(__file__).parents[2] / "docs" / "histories.md").read_text("utf-8")
(SCRIPT,) = re.findall(r"^```python\n(from pyspark.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def land(path: Path, rows: list[Row]) -> None:
    kinds = pa.schema([(name, arrow_type(kind)) for name, kind in (c.split() for c in SCHEMA.split(", "))])
    lake.append(str(path), pa.table(list(map(list, zip(*rows, strict=True))), schema=kinds))


def rows(history: HistoryTable) -> list[Row]:
    found = history.versions().table()
    names = [n for n in found.column_names if not n.startswith("system_")]
    flags = [r.get("system_to") is None for r in found.to_pylist()]
    return sorted(
        (tuple(r[n] for n in names) for r, now in zip(found.to_pylist(), flags, strict=True) if now), key=repr
    )


@pytest.mark.slow
def test_a_pipeline_written_for_spark_moves_by_its_import(spark: SparkSession, tmp_path: Path) -> None:
    landed = tmp_path / "landed"
    land(landed, [(1, "a", 1, "U", 10), (2, "b", 1, "U", 11), (1, "c", 1, "U", 30)])
    pipelines.clear()
    try:
        exec(compile(SCRIPT, "pipeline.py", "exec"), {"spark": spark, "landed": str(landed)})  # noqa: S102
        history = pipelines.run(tmp_path / "lake", session=spark)["customers"]
        land(landed, [(1, "b", 2, "U", 20), (1, "b", 3, "U", 25), (2, None, None, "D", 40)])
        pipelines.run(tmp_path / "lake", session=spark)
        pipelines.run(tmp_path / "lake", session=spark)
        assert rows(history) == [
            (1, "a", 1, 10, 20), (1, "b", 3, 20, 30), (1, "c", 1, 30, None), (2, "b", 1, 11, 40),
        ]  # fmt: skip
        assert spark.table("customers").where("__END_AT is null").count() == 1
    finally:
        pipelines.clear()
        spark.sql("DROP TABLE IF EXISTS customers")


@pytest.mark.slow
def test_several_flows_into_one_target_one_of_them_once(spark: SparkSession, tmp_path: Path) -> None:
    made = CdcPipeline()
    older, newer = tmp_path / "older", tmp_path / "newer"
    land(older, [(1, "old", 1, "U", 5), (2, "old", 1, "U", 5)])
    land(newer, [(1, "new", None, "U", 10)])
    made.temporary_view(lambda: spark.read.format("delta").load(str(older)), name="older")
    made.temporary_view(lambda: spark.readStream.format("delta").load(str(newer)), name="newer")
    made.create_streaming_table("both")
    common: dict[str, Any] = {
        "keys": ["id"], "sequence_by": "seq", "apply_as_deletes": "op = 'D'", "apply_as_truncates": "op = 'T'",
        "column_list": ["id", "name", "qty"], "stored_as_scd_type": "1", "ignore_null_updates_column_list": ["qty"],
    }  # fmt: skip
    made.create_auto_cdc_flow("both", "newer", **common)
    made.create_auto_cdc_flow("both", "older", name="fill", once=True, **common)
    try:
        history = made.run(tmp_path / "lake", session=spark)["both"]
        assert [r[:3] for r in rows(history)] == [(1, "new", 1), (2, "old", 1)]
        land(older, [(9, "never", 1, "U", 5)])
        land(newer, [(None, None, None, "T", 7), (3, "c", 1, "U", 8)])
        made.run(tmp_path / "lake", session=spark)
        assert [r[:3] for r in rows(history)] == [(1, "new", None), (3, "c", 1)]
    finally:
        spark.sql("DROP TABLE IF EXISTS both")


def of_snapshots(spark: SparkSession, name: str, taken: Sequence[Sequence[Row]]) -> CdcPipeline:
    """A pipeline that makes a history of snapshots, one version after the other; more may come."""

    def after(last: int | None) -> tuple[DataFrame, int] | None:
        number = last or 0
        if number == len(taken):
            return None
        return table(spark, taken[number], "id int, name string"), number + 1

    made = CdcPipeline()
    made.create_streaming_table(name)
    made.create_auto_cdc_from_snapshot_flow(name, after, ["id"], stored_as_scd_type=2)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("few", [1_000, 0])
def test_snapshots_become_a_history(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(pipelines, "FEW_ROWS", few)
    taken: list[list[Row]] = [[(1, "a"), (2, "b")], [(1, "a"), (3, None)], [(1, "x"), (3, None)]]

    made = of_snapshots(spark, "snaps", taken)
    try:
        history = made.run(tmp_path / "lake", session=spark)["snaps"]
        wanted = [(1, "a", 1, 3), (1, "x", 3, None), (2, "b", 1, 2), (3, None, 2, None)]
        assert rows(history) == wanted
        taken.append([])
        made.run(tmp_path / "lake", session=spark)
        assert [r[-1] for r in rows(history)] == [3, 4, 2, 4]
    finally:
        spark.sql("DROP TABLE IF EXISTS snaps")


@pytest.mark.slow
def test_a_row_of_a_snapshot_that_was_cut_off_ends_with_the_next(spark: SparkSession, tmp_path: Path) -> None:
    taken: list[list[Row]] = [[(1, "a")], [(1, "a"), (2, "b")]]
    made = of_snapshots(spark, "cut", taken)
    try:
        with ends("history.exchange", 2):  # row 2 is among the events only
            made.run(tmp_path / "lake", session=spark)
        taken.append([(1, "a")])
        history = made.run(tmp_path / "lake", session=spark)["cut"]
        assert rows(history) == [(1, "a", 1, None), (2, "b", 2, 3)]
    finally:
        spark.sql("DROP TABLE IF EXISTS cut")


@pytest.mark.slow
def test_of_two_rows_of_a_snapshots_key_the_same_one_counts_each_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    told: list[Row] = [(1, "a"), (1, "b"), (2, "c"), (2, None), (3, "d"), (3, "d"), (None, "x"), (None, "y")]
    taken = [told, told, told[::-1], [*told, (1, "z")]]

    made = of_snapshots(spark, "twice", taken)
    try:
        history = made.run(tmp_path / "lake", session=spark)["twice"]
        assert rows(history) == [(1, "b", 1, 4), (1, "z", 4, None), (2, "c", 1, None), (3, "d", 1, None)]
        assert {(r["name"], r["why"]) for r in history.rejects().rows()} == {
            ("x", "NULL in the key"), ("y", "NULL in the key"),
        }  # fmt: skip
    finally:
        spark.sql("DROP TABLE IF EXISTS twice")


def test_what_cannot_be_followed_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    made = CdcPipeline()
    with pytest.raises(ConfigError, match="was not created"):
        made.create_auto_cdc_flow("t", "s", ["id"], "seq")
    with pytest.raises(UnsupportedError, match="partition_cols"):
        made.create_streaming_table("t", partition_cols=["id"])
    with pytest.raises(UnsupportedError, match="no materialized_view"):
        _ = pipelines.materialized_view
    made.create_streaming_table("t", comment="c")
    with pytest.raises(ConfigError, match="nope"):
        made.create_auto_cdc_flow("t", "s", ["id"], "seq", nope=1)
    made.create_auto_cdc_flow("t", "s", ["id"], "seq")
    with pytest.raises(ConfigError, match="two flows t"):
        made.create_auto_cdc_flow("t", "s", ["id"], "seq")
    with pytest.raises(ConfigError, match="no view or table s"):
        made.run(tmp_path, session=spark)
    df = table(spark, [], SCHEMA)
    for how, said in (
        ({"stored_as_scd_type": 3}, "stored_as_scd_type is 3"),
        ({"track_history_column_list": ["name"]}, "no history to track"),
        ({"column_list": ["id"], "except_column_list": ["op"]}, "a list and an exception"),
        ({"except_column_list": ["nope"]}, "no column nope"),
    ):
        with pytest.raises(ConfigError, match=said):
            HistoryFlow(["id"], "seq", **how).rules(df)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"stored_as_scd_type": 1, "ignore_null_updates": True},
        {"stored_as_scd_type": 2, "track_history_except_column_list": ["qty"], "bitemporal": True, "ignore_null_updates": True},
    ],
    ids=["one", "bitemporal"],
)  # fmt: skip
def test_tasks_make_the_history_that_one_process_makes(
    spark: SparkSession, tmp_path: Path, more: dict[str, Any]
) -> None:
    chance = random.Random(7)
    flow = HistoryFlow(
        ["id"], "seq", "op = 'D'", "op = 'T'", except_column_list=["op", "seq"], **more
    )  # fmt: skip
    here, there = tmp_path / "here", tmp_path / "there"
    for number in range(3):
        events: list[Row] = []
        for _ in range(60):
            op = chance.choice("UUUUUUUD" + ("T" if number == 2 and not events else ""))
            key = chance.choice([None, *range(12)])
            values = (chance.choice([None, "a", "b"]), chance.choice([None, 1, 2]))
            events.append((key, *values, op, chance.choice([None, *range(200)])))
        df = table(spark, events, SCHEMA)
        mine, tasks = flow.history(df, str(here)), flow.history(df, str(there))
        mine.apply(flow.rows(mine, df), batch=number)
        for _ in range(1 + (number == 1)):  # a replay, too
            apply_in_tasks(tasks, flow, df, batch=number)
        assert rows(mine) == rows(tasks), number
        if number == 1:
            assert mine.forget(90) > 0 and tasks.forget(90) > 0
    told = [sorted(map(repr, h.rejects().rows())) for h in (mine, tasks)]
    assert told[0] == told[1]


@pytest.mark.slow
def test_columns_are_known_by_any_name(spark: SparkSession, tmp_path: Path) -> None:
    odd = "n`a.me"
    columns = f"`i.d` bigint, {quoted(odd)} string"
    df = table(spark, [(1, "a", 10), (1, "b", 20)], f"{columns}, seq bigint")
    flow = HistoryFlow(["i.d"], "seq", except_column_list=["seq"], stored_as_scd_type=2)
    history = flow.history(df, str(tmp_path))
    apply_in_tasks(history, flow, df, batch=0)
    assert rows(history) == [(1, "a", 10, 20), (1, "b", 20, None)]
    snapshot = table(spark, [(1, "c"), (2, "d")], columns)
    assert sorted(r[odd] for r in changed_rows(history, snapshot, 2).collect()) == ["c", "d"]
    relation = Relation(1, "s", "t", "d", (ID, replace(V, name=odd)))
    asked = SparkChanges("", change_table(spark, relation, [(1, "I", {"id": 1, odd: "a"})]))
    assert asked.rows(None, None, [odd]).to_pylist() == [{odd: "a"}]


def _evolved(spark: SparkSession, few: bool, folder: Path) -> HistoryTable:
    """A history whose source gets a column, loses it for another one by a rename, and sends a late event."""
    flow = HistoryFlow(["id"], "seq", except_column_list=["seq"], stored_as_scd_type=2)
    batches: list[tuple[str, list[Row]]] = [
        ("id bigint, name string, seq bigint", [(1, "a", 10), (2, "b", 10)]),
        ("id bigint, name string, qty int, seq bigint", [(1, "a", 5, 20)]),
        ("id bigint, title string, qty int, seq bigint", [(1, "x", 5, 30), (2, "y", 1, 15)]),
    ]
    for number, (schema, told) in enumerate(batches):
        df = table(spark, told, schema)
        history = flow.history(df, str(folder))
        if few:
            history.apply(flow.rows(history, df), batch=number)
        else:
            apply_in_tasks(history, flow, df, batch=number)
    return history


@pytest.mark.slow
@pytest.mark.parametrize("few", [True, False])
def test_a_history_takes_the_columns_that_its_source_gets(
    spark: SparkSession, tmp_path: Path, few: bool
) -> None:
    history = _evolved(spark, few, tmp_path / "kept")
    found = history.versions().rows()
    names = ("id", "name", "qty", "title", "__START_AT", "__END_AT")
    assert sorted((tuple(r[n] for n in names) for r in found), key=repr) == [
        (1, "a", 5, None, 20, 30), (1, "a", None, None, 10, 20), (1, None, 5, "x", 30, None),
        (2, "b", None, None, 10, 15), (2, None, 1, "y", 15, None),
    ]  # fmt: skip
    assert history.forget(30) == 2
    assert HistoryTable.open(history.path).rules.columns == ("id", "name", "qty", "title")


def test_a_history_with_another_key_is_not_grown(spark: SparkSession, tmp_path: Path) -> None:
    df = table(spark, [], SCHEMA)
    HistoryFlow(["id"], "seq").history(df, str(tmp_path / "kept"))
    with pytest.raises(ConfigError, match="key is"):
        HistoryFlow(["name"], "seq").history(df, str(tmp_path / "kept"))


SEQUENCES: list[Row] = [  # in order
    (1, None, "z", -5, "-7.25", "1969-12-31 23:59:59.5"), (2, -30, "a", 1, "1.00", "2026-01-01 00:00:00"),
    (3, -3, "a", 1, "1.00", "2026-01-01 00:00:00"), (4, 3, None, 1, "1.00", "2026-01-01 00:00:00"),
    (5, 3, "a", 1, "1.00", "2026-01-01 00:00:00"), (6, 3, "ab", -10, "1.00", "2026-01-01 00:00:00"),
    (7, 3, "ab", -2, "-10.00", "2026-01-01 00:00:00"), (8, 3, "ab", -2, "-9.99", "2026-01-01 00:00:00"),
    (9, 3, "ab", -2, "9.99", "1900-01-01 00:00:00"), (10, 3, "ab", -2, "9.99", "2026-01-01 00:00:00.000001"),
    (11, 3, "ab", -2, "10.00", None),
]  # fmt: skip


def test_a_sequence_of_several_parts_orders_as_spark_orders_them(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    df = table(spark, SEQUENCES, "id bigint, a int, b string, c bigint, d string, e string")
    df = df.withColumns({"d": F.expr("cast(d as decimal(8,2))"), "e": F.expr("cast(e as timestamp)")})
    df = df.withColumn("n", F.expr("cast(e as timestamp_ntz)"))
    for by in (["a", "b", "c", "d", "e"], F.struct("a", F.struct("b", "c"), "d", "n")):
        events = HistoryFlow(["id"], by, column_list=["id"]).events(df)
        assert [r["id"] for r in events.orderBy("__sequence").collect()] == list(range(1, 12))
    assert [r["id"] for r in df.orderBy(F.struct("a", "b", "c", "d", "e")).collect()] == list(range(1, 12))


@pytest.mark.slow
def test_a_struct_as_the_sequence_makes_versions(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    schema = "id bigint, name string, day int, n int"
    flow = HistoryFlow(["id"], F.struct("day", "n"), column_list=["id", "name"], stored_as_scd_type=2)
    for number, told in enumerate([[(1, "a", 1, 9), (1, "c", 2, 1)], [(1, "b", 1, 10)]]):
        df = table(spark, told, schema)
        history = flow.history(df, str(tmp_path / "kept"))
        history.apply(flow.rows(history, df), batch=number)
    first, second, third = (f"{day:019d} {n:019d}" for day, n in ((1, 9), (1, 10), (2, 1)))
    assert rows(history) == [(1, "a", first, second), (1, "b", second, third), (1, "c", third, None)]


@pytest.mark.slow
def test_times_are_versions_of_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    days = [dt.datetime(2026, 11, day, tzinfo=dt.timezone.utc) for day in (20, 21)]
    taken: list[tuple[list[Row], dt.datetime]] = [([(1, "a"), (2, "b")], days[0])]
    asked: list[dt.datetime | None] = []

    def after(last: dt.datetime | None) -> tuple[DataFrame, dt.datetime] | None:
        asked.append(last)
        found = [one for one in taken if last is None or one[1] > last]
        return (table(spark, found[0][0], "id int, name string"), found[0][1]) if found else None

    made = CdcPipeline()
    made.create_streaming_table("timed")
    made.create_auto_cdc_from_snapshot_flow("timed", after, ["id"], stored_as_scd_type=2)
    try:
        made.run(tmp_path / "lake", session=spark)
        taken.append(([(1, "x")], days[1]))
        history = made.run(tmp_path / "lake", session=spark)["timed"]
        assert rows(history) == [(1, "a", *days), (1, "x", days[1], None), (2, "b", *days)]
        assert asked == [None, days[0], days[0], days[1]]
    finally:
        spark.sql("DROP TABLE IF EXISTS timed")
