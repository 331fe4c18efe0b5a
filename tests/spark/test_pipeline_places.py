"""Where a pipeline's targets and its streams' checkpoints are: made anew, moved, left by an older version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace import pipelines
from tailrace.errors import ConfigError
from tailrace.lake import delta as lake
from tailrace.pipelines import CdcPipeline
from tailrace.query.history.table import HistoryTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
Row = tuple[Any, ...]


@pytest.fixture
def target(spark: SparkSession) -> Iterator[str]:
    """The name of a target; no table of the catalog has it, before and after."""
    spark.sql("DROP TABLE IF EXISTS placed")
    yield "placed"
    spark.sql("DROP TABLE IF EXISTS placed")


SOURCE = pa.schema([("id", pa.int32()), ("v", pa.string()), ("seq", pa.int64())])


def land(folder: Path, *rows: Row) -> None:
    """Rows of the source."""
    lake.append(str(folder / "landed"), pa.table(list(map(list, zip(*rows, strict=True))), schema=SOURCE))


def pipeline(spark: SparkSession, folder: Path, target: str) -> CdcPipeline:
    made = CdcPipeline()
    made.temporary_view(lambda: spark.readStream.format("delta").load(str(folder / "landed")), name="source")
    made.create_streaming_table(target)
    made.create_auto_cdc_flow(
        target, "source", ["id"], "seq", except_column_list=["seq"], stored_as_scd_type=2
    )
    return made


def rows(history: HistoryTable) -> list[Row]:
    found = history.versions().rows()
    return sorted(((r["id"], r["v"], r["__START_AT"], r["__END_AT"]) for r in found), key=repr)


@pytest.mark.slow
def test_a_checkpoint_that_is_made_anew_loses_nothing(
    spark: SparkSession, tmp_path: Path, target: str
) -> None:
    made, lake = pipeline(spark, tmp_path, target), tmp_path / "lake"
    for number, text in enumerate("ab"):
        land(tmp_path, (1, text, number))
        history = made.run(lake, session=spark)[target]
    before = [(1, "a", 0, 1), (1, "b", 1, None)]
    assert rows(history) == before
    shutil.rmtree(lake / "_checkpoints")
    # The first batch of a new checkpoint has all that the source has; the next ones have what is new.
    land(tmp_path, (2, "new", 3))
    assert rows(made.run(lake, session=spark)[target]) == [*before, (2, "new", 3, None)]
    land(tmp_path, (3, "new", 4))
    history = made.run(lake, session=spark)[target]
    assert rows(history) == [*before, (2, "new", 3, None), (3, "new", 4, None)]
    assert history.rejects().rows() == []


@pytest.mark.slow
def test_a_history_of_an_older_version_goes_on(
    spark: SparkSession, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions called the flow by its name alone. A batch that they wrote without the checkpoint knowing
    it is applied again, by Spark's tasks, and changes nothing."""
    monkeypatch.setattr(pipelines, "FEW_ROWS", 0)
    made, lake = pipeline(spark, tmp_path, target), tmp_path / "lake"
    with monkeypatch.context() as older:
        older.setattr(pipelines, "_stream_name", lambda flow, _df: flow.name)
        land(tmp_path, (1, "a", 0))
        made.run(lake, session=spark)
        land(tmp_path, (1, "b", 1), (2, "x", 1))
        before = rows(made.run(lake, session=spark)[target])
    assert before == [(1, "a", 0, 1), (1, "b", 1, None), (2, "x", 1, None)]
    (last,) = (lake / "_checkpoints").glob("*/commits/1")
    for file in (last, last.with_name(".1.crc")):
        file.unlink(missing_ok=True)
    history = made.run(lake, session=spark)[target]
    assert rows(history) == before
    land(tmp_path, (2, "y", 2))
    history = made.run(lake, session=spark)[target]
    assert rows(history) == [*before[:2], (2, "x", 1, 2), (2, "y", 2, None)]
    assert history.rejects().rows() == []


def location(spark: SparkSession, name: str) -> str:
    row = spark.sql(f"DESCRIBE DETAIL {name}").first()
    assert row is not None
    return str(row["location"]).removeprefix("file:")


@pytest.mark.slow
def test_the_catalogs_table_is_that_of_the_last_run(spark: SparkSession, tmp_path: Path, target: str) -> None:
    made = pipeline(spark, tmp_path, target)
    land(tmp_path, (1, "a", 0))
    first, second, third = tmp_path / "one", tmp_path / "it's two", tmp_path / "three"
    made.run(first, session=spark)
    land(tmp_path, (2, "b", 1))
    for storage in (second, second, first):
        history = made.run(storage, session=spark)[target]
        assert location(spark, target) == history.path
        assert spark.table(target).count() == len(rows(history)) == 2
    assert len(rows(HistoryTable.open(str(second / target)))) == 2
    shutil.rmtree(first)
    history = made.run(third, session=spark)[target]
    assert (location(spark, target), spark.table(target).count()) == (history.path, 2)


@pytest.mark.parametrize("other", ["managed", pytest.param("external", marks=pytest.mark.slow), "parquet"])
def test_a_table_of_others_is_left_alone(
    spark: SparkSession, tmp_path: Path, target: str, other: str
) -> None:
    made = pipeline(spark, tmp_path, target)
    land(tmp_path, (1, "a", 0))
    kind = "parquet" if other == "parquet" else "delta"
    where = "" if other == "managed" else f"LOCATION '{tmp_path / 'theirs'}'"
    spark.sql(f"CREATE TABLE {target} USING {kind} {where} AS SELECT 7 AS theirs")
    with pytest.raises(ConfigError, match=f"another table {target}"):
        made.run(tmp_path / "lake", session=spark)
    assert not (tmp_path / "lake").exists()
    assert [tuple(r) for r in spark.table(target).collect()] == [(7,)]
