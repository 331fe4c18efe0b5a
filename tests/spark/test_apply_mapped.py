"""`tailrace apply --tables`: change tables through criteria and mappings into targets, also shared ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.config.tables_file import TablesFile, load
from tailrace.errors import ApplyError, ConfigError
from tailrace.lake import delta
from tailrace.operate import vendor_apply as incoming
from tailrace.testing.images import RELATION, Image, change_rows, image

from .literal_tables import rows_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FILE = """
tables:
  "*.item":
    target: all.item
    where: "id < 10"
    constants: {site: "@SCHEMA"}
    columns: {word: "upper(v)"}
    drop: [Wide_Word, v]
"""


def write(folder: Path, schema: str, images: list[Image]) -> None:
    delta.append(str(folder / f"{schema}.item__ct"), change_rows(RELATION, images))


def rows(spark: SparkSession, lake: Path) -> list[tuple[Any, ...]]:
    df = rows_at(spark, str(lake / "all.item"))
    return sorted(tuple(r) for r in df.select("site", "id", "word").collect())


def settings(folder: Path, text: str = FILE) -> TablesFile:
    (folder / "tables.yaml").write_text(text)
    return load(folder / "tables.yaml")


@pytest.mark.slow
def test_two_sources_of_one_target_leave_each_other_alone(spark: SparkSession, tmp_path: Path) -> None:
    changes, lake = tmp_path / "changes", tmp_path / "lake"
    write(changes, "eu", [(1, "I", image(1, "a")), (2, "I", image(2, "b")), (3, "I", image(11, "no"))])
    write(changes, "us", [(1, "I", image(1, "x")), (2, "I", image(3, "y"))])

    def apply(**more: Any) -> list[dict[str, Any]]:
        done = incoming.run(
            spark, str(changes), "tailrace", {"key": "id"}, str(lake), tables=settings(tmp_path), **more
        )
        return done["tables"]  # type: ignore[no-any-return]

    assert [t["table"] for t in apply()] == ["eu.item", "us.item"]
    assert rows(spark, lake) == [("eu", 1, "A"), ("eu", 2, "B"), ("us", 1, "X"), ("us", 3, "Y")]
    assert [t["plan"] for t in apply()] == ["none", "none"]
    # A key that leaves the criteria, one that comes in; a truncate of the other source alone.
    moves: list[Image] = [
        (4, "B", {"id": 1}),
        (4, "U", image(12, "a")),
        (5, "B", {"id": 11}),
        (5, "U", image(4, "c")),
    ]
    write(changes, "eu", moves)
    write(
        changes,
        "us",
        [
            (3, "I", image(5, "gone")),
            (4, "T", {}),
            (5, "I", image(3, "again")),
            (6, "I", image(6, "f")),
            (7, "D", {"id": 6}),
        ],
    )
    apply()
    assert rows(spark, lake) == [("eu", 2, "B"), ("eu", 4, "C"), ("us", 3, "AGAIN")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "column", "left"),
    [
        ("soft_delete", "_deleted", [("eu", 1, ""), ("eu", 2, "3"), ("us", 4, "")]),
        pytest.param(
            "archive", "header__change_oper",
            [
                ("eu", 1, "I"), ("eu", 2, "D"), ("eu", 2, "I"), ("us", 1, "I"), ("us", 2, "D"), ("us", 2, "I"),
                ("us", 4, "I"),
            ], marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_truncate_of_one_source_under_rules_leaves_the_other_alone(
    spark: SparkSession,
    tmp_path: Path,
    mode: str,
    column: str,
    left: list[tuple[Any, ...]],
) -> None:
    """Soft delete: its own rows go, marks included. Archives pass truncates over."""
    changes, lake = tmp_path / "changes", tmp_path / "lake"
    ruling = incoming.ruling(mode, {}, None, None, "all")
    text = "tables: {'*.item': {target: all.item, constants: {site: '@SCHEMA'}}}"

    def apply() -> None:
        given = (str(changes), "tailrace", {"key": "id"}, str(lake))
        incoming.run(spark, *given, ruling=ruling, tables=settings(tmp_path, text))

    for schema in ("eu", "us"):
        write(changes, schema, [(1, "I", image(1, "a")), (2, "I", image(2, "b")), (3, "D", {"id": 2})])
    if mode == "soft_delete":  # its rows are there
        apply()
    write(changes, "us", [(4, "T", {}), (5, "I", image(4, "c"))])
    apply()
    df = rows_at(spark, str(lake / "all.item"))
    found = [(r["site"], r["id"], (r[column] or "")[-1:]) for r in df.collect()]
    assert sorted(found) == left


@pytest.mark.slow
def test_a_mapping_that_was_edited_does_not_fit_the_rows_that_are_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    changes, lake = tmp_path / "changes", tmp_path / "lake"
    write(changes, "eu", [(1, "I", image(1, "a")), (2, "I", image(2, "b"))])

    def apply(where: str | None, **more: Any) -> list[int]:
        tables = settings(tmp_path, f'tables: {{eu.item: {{where: "{where}"}}}}') if where else None
        given = (str(changes), "tailrace", {"key": "id"}, str(lake))
        incoming.run(spark, *given, tables=tables, **more)
        return sorted(r["id"] for r in delta.read(f"{lake}/eu.item").to_pylist())

    assert apply("id = 1") == [1]
    for other in ("id = 2", None):
        with pytest.raises(ApplyError, match="the mapping has changed"):
            apply(other, dry_run=other is None)
    assert apply("id = 2", app_id="since") == [1, 2]


@pytest.mark.slow
def test_a_row_that_left_is_b_in_the_key_log(spark: SparkSession, tmp_path: Path) -> None:
    changes, lake, log = tmp_path / "changes", tmp_path / "lake", tmp_path / "keylog"
    text = "tables: {eu.item: {where: \"v = 'in'\", target: all.item, columns: {word: v}, constants: {site: eu}}}"
    images: list[Image] = [
        (1, "I", image(1, "in")), (2, "I", image(2, "out")),
        (3, "B", image(1, "in")), (3, "U", image(1, "out")),
        (4, "B", image(2, "out")), (4, "U", image(2, "in")),
        (5, "D", image(1, "out")),
    ]  # fmt: skip
    write(changes, "eu", images)
    ruling = incoming.ruling("strict", {}, None, str(log), "all")
    given = (str(changes), "tailrace", {"key": "id"}, str(lake))
    incoming.run(spark, *given, ruling=ruling, tables=settings(tmp_path, text))
    assert rows(spark, lake) == [("eu", 2, "in")]
    found = rows_at(spark, str(log)).orderBy("keylog_sort")
    told = [tuple(r) for r in found.select("change_row_type", "action_taken", "result_row_count").collect()]
    assert told == [("I", "I", 1), ("B", "D", 1), ("I", "I", 1)]


@pytest.mark.slow
def test_mistakes_stop_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    changes, lake = tmp_path / "changes", tmp_path / "lake"
    write(changes, "eu", [(1, "I", image(1, "a")), (2, "U", {"id": 1, "Wide_Word": 2})])
    write(changes, "us", [(1, "I", image(1, "a"))])

    def run(text: str) -> None:
        file = settings(tmp_path, text)
        incoming.run(spark, str(changes), "tailrace", {"key": "id"}, str(lake), tables=file)

    with pytest.raises(ConfigError, match=r"eu\.item: where: .*wrod") as wrong:
        run("tables: {eu.item: {where: wrod = 1}, us.item: {drop: [w]}}")
    assert "us.item: drop: us.item has no column 'w'" in wrong.value.what
    with pytest.raises(ConfigError, match="its key needs a constant"):
        run('tables: {"*.item": {target: all.item}}')
    with pytest.raises(ConfigError, match=r"line 1: unknown setting 'tables.eu.item.wher'"):
        run("tables: {eu.item: {wher: x}}")
    with pytest.raises(ConfigError, match="is a rule"):
        run("tables: {eu.item: {mode: strict}}")
    assert not lake.exists()
    with pytest.raises(ApplyError, match="an image leaves out") as left_out:
        run("tables: {eu.item: {where: v = 'a'}}")
    assert str(left_out.value.where).endswith("0000000002")


@pytest.mark.slow
def test_columns_that_images_leave_out_are_carried_over_a_life_and_no_further(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Under a mapping and strict rules, inside a batch and against the target."""
    changes, lake, log = tmp_path / "changes", tmp_path / "lake", tmp_path / "keylog"
    text = "tables: {eu.item: {target: all.item, columns: {word: v, site: \"'x'\"}}}"
    ruling = incoming.ruling("strict", {}, None, str(log), "all")

    def apply(images: list[Image]) -> list[tuple[Any, ...]]:
        write(changes, "eu", images)
        given = (str(changes), "tailrace", {"key": "id"}, str(lake))
        incoming.run(spark, *given, ruling=ruling, tables=settings(tmp_path, text))
        return [r[1:] for r in rows(spark, lake)]

    alive: Image = (3, "U", {"id": 1, "Wide_Word": 2})
    again: list[Image] = [(4, "D", {"id": 1}), (5, "I", image(1, None)), (6, "U", {"id": 1, "Wide_Word": 3})]
    assert apply([(1, "I", image(1, "a")), (2, "I", image(2, "b")), alive]) == [(1, "a"), (2, "b")]
    assert apply([*again, (7, "U", {"id": 2, "Wide_Word": 4})]) == [(1, None), (2, "b")]
    moved: list[Image] = [
        (8, "B", {"id": 2}),
        (8, "U", {"id": 3, "Wide_Word": 5}),
        (9, "U", {"id": 1, "v": "z"}),
    ]
    assert apply(moved) == [(1, "z"), (3, "b")]
