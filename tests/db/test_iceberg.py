"""A task whose targets are Iceberg tables: random histories, crashes, queries of the past, validation, repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog import load_catalog

import tailrace
from tailrace.config.task import Task, load
from tailrace.errors import TailraceError, UnsupportedError
from tailrace.lake import delta as lake
from tailrace.operate.drop import drop
from tailrace.operate.status import status
from tailrace.sources import open_source
from tailrace.state.baselines import read_baselines
from tailrace.targets.iceberg.target import IcebergTarget
from tailrace.targets.task_tables import iceberg_tables
from tailrace.validate.repair import Repair
from tailrace.validate.sessions import Sessions
from tailrace.validate.validation import ValidationReport, validate

from .model import SCHEMA, TABLES, Writer, bag, histories, replay
from .test_model import drain, write_task

pytestmark = [pytest.mark.db, pytest.mark.spark]


def rows(task: Task, table: str, version: int | None = None) -> list[dict[str, Any]]:
    """A target's rows, read by pyiceberg."""
    found = iceberg_tables(task).catalog.load_table(table)
    snapshots = {one.sequence_number: one.snapshot_id for one in found.snapshots()}
    scan = found.scan() if version is None else found.scan(snapshot_id=snapshots[version])
    return scan.to_arrow().to_pylist()  # type: ignore[no-any-return]


@pytest.fixture
def task(tmp_path: Path, database: str, db: psycopg.Connection) -> Task:
    db.execute(SCHEMA)
    file = write_task(tmp_path, database, target=", type: iceberg")
    parts = "{m.keyed: {partition: ['bucket(2, id)'], sort: [id]}, m.part: {partition: [month(day)]}}"
    file.write_text(f"{file.read_text()}\ntables: {parts}\n")
    return load(file)


def check(task: Task, writer: Writer) -> None:
    baselines = read_baselines(task.control_path("baselines"))
    for table in TABLES:
        assert bag(rows(task, table)) == bag(writer.rows(table)), table
    for table, history in histories(task.relations_path):
        taken = baselines[table]
        start = rows(task, table, taken.version)
        replayed = replay(task.changes_path(table), history, start, taken.position)
        assert bag(replayed) == bag(writer.rows(table)), table


def validated(task: Task, spark: object, repair: bool = False) -> ValidationReport:
    """The comparison of source and target after all changes are applied."""
    source, sessions = open_source(task), Sessions(spark)  # type: ignore[arg-type]
    calls = iter([lambda: None, lambda: drain(task, spark)])

    def catch_up() -> None:
        next(calls)()

    try:
        return validate(
            task, sessions, source, catch_up=catch_up,
            amend=Repair(task, sessions) if repair else None,
        )  # fmt: skip
    finally:
        source.close()


@pytest.mark.slow
def test_targets_follow_any_history(task: Task, database: str, spark: object) -> None:
    writer = Writer(database, 3)
    writer.transactions(30)
    for phase in range(2):
        drain(task, spark)
        writer.transactions(60)
        if phase:
            writer.alter()
            writer.transactions(40)
            writer.alter()
            writer.transactions(20)
    drain(task, spark)
    check(task, writer)


@pytest.mark.slow
def test_a_crash_at_any_write_changes_nothing(
    task: Task, database: str, spark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before every second write."""
    armed = {"at": -1, "count": 0}

    class CrashError(Exception):
        pass

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            mine = armed["count"]
            armed["count"] += 1
            if mine == armed["at"]:
                raise CrashError
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(lake, "commit", guarded(lake.commit))
    monkeypatch.setattr(IcebergTarget, "merge", guarded(IcebergTarget.merge))
    writer, crashes = Writer(database, 11), 0
    writer.transactions(20)
    drain(task, spark)
    for point in range(0, 14, 2):
        writer.transactions(8)
        armed.update(at=point, count=0)
        try:
            drain(task, spark)
        except (CrashError, TailraceError):
            crashes += 1
    armed.update(at=-1)
    drain(task, spark)
    assert crashes >= 3
    check(task, writer)


def test_the_past_validation_repair_and_the_end(
    task: Task, tmp_path: Path, db: psycopg.Connection, spark: object
) -> None:
    db.execute("insert into m.keyed select i, 'n' || i, null, i, null from generate_series(1, 9) i")
    db.execute("insert into m.whole values (1, 'a', 1), (2, 'b', 2)")
    drain(task, spark)
    # The file of the baseline keeps its column names: the next row is in a file of its own.
    db.execute("alter table m.whole rename v to u; alter table m.whole alter w type bigint")
    db.execute("insert into m.whole values (3, 'c', 3)")
    db.execute("update m.keyed set name = 'later' where id = 3; delete from m.keyed where id = 4")
    db.execute("alter table m.keyed rename name to word; alter table m.keyed add more text")
    db.execute("update m.keyed set word = 'last' where id = 5")
    drain(task, spark)
    keyed = tailrace.open(str(tmp_path / "model.yaml")).table("m.keyed")
    now = {row["id"]: row["word"] for row in keyed.current().arrow().read_all().to_pylist()}
    assert now == {1: "n1", 2: "n2", 3: "later", 5: "last", 6: "n6", 7: "n7", 8: "n8", 9: "n9"}
    opened = tailrace.open(str(tmp_path / "model.yaml"))
    whole, wanted = opened.table("m.whole"), [(1, "a", 1), (2, "b", 2), (3, "c", 3)]
    found = opened.sql("SELECT id, u, w FROM m.whole ORDER BY id").arrow().read_all().to_pylist()
    assert [tuple(row.values()) for row in found] == wanted
    assert sorted(tuple(row.values()) for row in whole.current().arrow().read_all().to_pylist()) == wanted
    assert len(iceberg_tables(task).open("m.whole").data_files()) == 2
    changes = keyed.changes().arrow().read_all().to_pylist()
    before = keyed.as_of(changes[0]["header__change_seq"]).arrow().read_all().to_pylist()
    assert [row["name"] for row in before if row["id"] == 3] == ["later"]
    assert {row["id"] for row in before} == {*range(1, 10)}
    with pytest.raises(UnsupportedError, match="is an Iceberg table"):
        opened.sql("SELECT * FROM m.whole", spark=spark)
    uri = f"sqlite:///{tmp_path}/lake/catalog.db"
    read = load_catalog("tailrace", type="sql", uri=uri).load_table("m.keyed").scan().to_pandas()
    assert sorted(read["id"]) == sorted(now)
    shown = {one.table: one for one in status(task).tables}
    assert shown["m.keyed"].behind == 0
    assert validated(task, spark).equal
    iceberg_tables(task).catalog.load_table("m.whole").delete("id = 1")
    report = validated(task, spark, repair=True)
    assert not report.equal
    assert validated(task, spark).equal
    assert {row["id"] for row in rows(task, "m.whole")} == {1, 2, 3}
    assert {row["id"] for row in rows(task, "m.keyed")} == {1, 2, 3, 5, 6, 7, 8, 9}
    drop(task, dry_run=False, targets=True)
    assert not iceberg_tables(task).exists("m.keyed")
