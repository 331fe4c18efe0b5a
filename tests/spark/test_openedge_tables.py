"""A task's tables in OpenEdge's layout: what they are read as is what the change tables hold.

What each level of a policy leaves: tests/db/test_policies.py, on a live source.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.apply.vendor.openedge_tables import TRACKING_TABLE, OpenEdgeTables
from tailrace.config.task import Task, read
from tailrace.formats import file_reader
from tailrace.formats.openedge import FORMAT, OpenEdgeOptions
from tailrace.lake import failpoints, log
from tailrace.model.change import ChangeTable, Column
from tailrace.runtime.pipeline import store_paths
from tailrace.state.open_warnings import open_warnings
from tailrace.store.kept import kept
from tailrace.store.log_files import LogFiles
from tailrace.store.running import runner
from tailrace.store.writer import Store
from tailrace.testing.changes import comparable_rows, reasons
from tailrace.wire.records import Chunk

from ..unit.messages import UNSENT, delete, insert, update
from ..unit.test_log_and_store import ITEM, chunk

pytestmark = pytest.mark.spark

TEXT = "name: t\nsource: {url: 'postgresql://localhost/shop'}\nstore: {openedge: true}"
WIDER = ITEM.with_columns([*ITEM.columns, Column("note", 3, "text", "text", "string")])
TRUNCATE = b"T\0\0\0\1\0\0\0\0\7"


@pytest.mark.slow
def test_they_are_read_as_what_was_stored(spark, tmp_path):
    task = read(TEXT, tmp_path)
    assert isinstance(task, Task)
    writer = log.LogWriter(task.log_path, task.relations_path)
    store, tables = Store(store_paths(task)), OpenEdgeTables(task, spark)

    def run(one: Chunk) -> None:
        writer.add(one)
        writer.commit()
        store.batch(runner(task.log_path, LogFiles(task.log_path, -1).batch(-1, 1 << 30)))

    run(chunk(100, b"B", insert(7, [1, "1"]), update(7, [2, UNSENT], key=[1, None]), b"C"))
    first = tables.catch_up()
    wide = chunk(200, b"B", insert(7, [5, None, "n"]), delete(7, key=[5, None, None]), TRUNCATE, b"C")
    run(Chunk(wide.records, [(0, WIDER)], wide.complete, wide.position))
    last = tables.catch_up()
    assert (first, last, tables.catch_up()) == (4, 9, 9)
    OpenEdgeTables(task, spark).catch_up()

    found = FORMAT.read(FORMAT.load(spark, task.openedge_path, OpenEdgeOptions()), OpenEdgeOptions())
    (got,) = found.changes.values()
    assert (got.name, reasons(got)) == ("shop.item", [])
    df = file_reader.read(spark, Path(task.changes_path("shop.item")))
    want = ChangeTable(df, ["id"], ["id", "n", "note"], name="shop.item")
    headers = ["change_seq", "operation", "timestamp"]
    assert (got.key, got.columns) == (want.key, want.columns)
    # What the columns of old rows are, OpenEdge's tables say row by row: `note` is absent in them.
    rows = [[(*r[:3], r[4], r[5][:2]) for r in comparable_rows(ct, headers=headers)] for ct in (got, want)]
    assert rows[0] == rows[1]
    assert [r[3] for r in comparable_rows(got) if r[1] == "I"] == [("id", "n"), None]


ODD = replace(ITEM, name="odd name", columns=(
    Column("k k", 1, "int4", "int", "int", key=True), Column("c,d;{e}", 2, "text", "text", "string"),
))  # fmt: skip
"""Spark's Delta takes no new table with such names."""


@pytest.mark.slow
def test_columns_may_have_any_name(spark, tmp_path):
    task = read(TEXT, tmp_path)
    assert isinstance(task, Task)
    writer = log.LogWriter(task.log_path, task.relations_path)
    store, tables = Store(store_paths(task)), OpenEdgeTables(task, spark)
    wider = ODD.with_columns([*ODD.columns, Column("n n", 3, "text", "text", "string")])
    other = ODD.with_columns([ODD.columns[0], Column("c,d;{e}", 4, "int4", "int", "int")])
    for n, (layout, values) in enumerate([(ODD, "a"), (wider, "bc"), (other, "4")], 1):
        one = chunk(100 * n, b"B", insert(7, [n, *values]), b"C")
        writer.add(Chunk(one.records, [(0, layout)], one.complete, one.position))
        writer.commit()
        store.batch(runner(task.log_path, LogFiles(task.log_path, -1).batch(-1, 1 << 30)))
        tables.catch_up()
    found = FORMAT.read(FORMAT.load(spark, task.openedge_path, OpenEdgeOptions()), OpenEdgeOptions())
    (got,) = found.changes.values()
    assert (got.name, got.key, reasons(got)) == ("shop.odd name", ["k k"], [])
    assert got.columns == ["k k", "c,d;{e}__until_7", "n n", "c,d;{e}"]
    assert [r[5] for r in comparable_rows(got)] == [
        (1, "a", None, None), (2, "b", "c", None), (3, None, None, 4),
    ]  # fmt: skip


def insert_of(task: Task, store: Store, writer: log.LogWriter, key: int) -> None:
    """An insert is landed and stored; its numbers are 3 * key - 2 to 3 * key."""
    one = chunk(100 * key, b"B", insert(7, [key, "1"]), b"C")
    writer.add(Chunk(one.records, [(0, ITEM)] if key == 1 else [], one.complete, one.position))
    writer.commit()
    if key != 3:
        store.batch(
            runner(task.log_path, LogFiles(task.log_path, store.reached).batch(store.reached, 1 << 30))
        )


def keys_of(task: Task, spark) -> list[int]:
    found = FORMAT.read(FORMAT.load(spark, task.openedge_path, OpenEdgeOptions()), OpenEdgeOptions())
    (got,) = found.changes.values()
    return sorted(r[5][0] for r in comparable_rows(got))


@pytest.mark.slow
def test_behind_a_gap_in_log_they_go_on_where_change_tables_do(spark, tmp_path):
    task = read(TEXT, tmp_path)
    assert isinstance(task, Task)
    writer = log.LogWriter(task.log_path, task.relations_path)
    paths = replace(store_paths(task), passed=lambda: 9)  # as with newer baselines of all tables
    store, tables = Store(paths), OpenEdgeTables(task, spark)
    insert_of(task, store, writer, 1)
    assert tables.catch_up() == 3
    insert_of(task, store, writer, 2)
    insert_of(task, store, writer, 3)
    newest = max(Path(task.log_path).glob("*.parquet"), key=lambda p: p.stat().st_mtime_ns)
    newest.unlink()
    assert tables.catch_up() == 6
    assert store.begin() == 9
    insert_of(task, store, writer, 4)
    assert (tables.catch_up(), OpenEdgeTables(task, spark).catch_up()) == (12, 12)
    assert keys_of(task, spark) == [1, 2, 4]
    assert kept(tables.path(TRACKING_TABLE)) == 9
    (one,) = open_warnings(task, {})
    assert (one.table, one.what.split(" are ")[0], one.until_baseline) == (
        "shop.item",
        "changes 7 to 9",
        True,
    )


@pytest.mark.slow
def test_tracking_that_a_crash_held_back_comes_later(spark, tmp_path):
    task = read(TEXT, tmp_path)
    assert isinstance(task, Task)
    writer = log.LogWriter(task.log_path, task.relations_path)
    store, tables = Store(store_paths(task)), OpenEdgeTables(task, spark)
    insert_of(task, store, writer, 1)
    failpoints.arm("store.tracking:1:error")
    try:
        with pytest.raises(failpoints.InjectedError):
            insert_of(task, store, writer, 2)
    finally:
        failpoints.arm(None)
    assert tables.catch_up() == 3
    again = Store(store_paths(task))
    insert_of(task, again, writer, 4)
    assert tables.catch_up() == again.reached
    assert keys_of(task, spark) == [1, 2, 4]
