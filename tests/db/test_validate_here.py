"""A task that stands still and has little to compare is validated without Spark."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailrace.capture.process import Capture
from tailrace.config.task import Task, load
from tailrace.errors import ApplyError, ConfigError, ConnectionLostError
from tailrace.lake import delta as lake
from tailrace.model.steps import Steps
from tailrace.operate.status import status
from tailrace.runtime import setup
from tailrace.state import commands
from tailrace.validate.sides import TargetSide
from tailrace.validate.validation import ValidationReport

pytestmark = pytest.mark.db

CREATE = """
create schema s;
create table s.t (id int primary key, v text, n numeric(9,2), at timestamptz);
create table s.bag (v text);
alter table s.bag replica identity full;
insert into s.t select i, 'v' || i, i / 3.0, '2026-01-01' from generate_series(1, 500) i;
insert into s.bag select 'w' || i % 3 from generate_series(1, 50) i;
"""


class StartedError(Exception):
    """Spark was asked for."""


def task_of(folder: Path, url: str, target: str = "") -> Task:
    file = folder / "shop.yaml"
    file.write_text(
        f"name: shop\nsource: {{url: '{url}', tables: [s.*]}}\nbaseline: {{workers: 1}}\n{target}"
    )
    task = load(file)
    Capture(task, once=True).run()
    return task


def validated(task: Task, steps: Steps | None = None) -> ValidationReport:
    return setup.validate_task(Path("shop.yaml"), task, (), timeout_s=60, samples=3, steps=steps)


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: Any, **__: Any) -> None:
        raise StartedError

    monkeypatch.setattr("tailrace.runtime.session.session", session)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "postgresql"])
def test_a_baseline_and_what_somebody_did_to_its_target(
    tmp_path: Path, database: str, db: psycopg.Connection, kind: str
) -> None:
    db.execute(CREATE)
    url = database + ("&" if "?" in database else "?") + "schema=copies"
    task = task_of(tmp_path, database, f"target: '{url}'\n" if kind == "postgresql" else "")
    found = validated(task)
    assert [(t.table, t.source_rows, t.target_rows, t.equal) for t in found.tables] == [
        ("s.bag", 50, 50, True),
        ("s.t", 500, 500, True),
    ]
    if kind == "postgresql":
        db.execute("delete from copies.t where id = 7; update copies.t set v = 'x' where id = 9")
    else:
        DeltaTable(task.target_path("s.t")).delete("id = 7")
        DeltaTable(task.target_path("s.t")).update(updates={"v": "'x'"}, predicate="id = 9")
    found = validated(task)
    assert [(t.table, t.differing_rows) for t in found.tables if not t.equal] == [("s.t", 3)]
    assert [(s["side"], s["id"], s["v"]) for s in found.tables[1].samples] == [
        ("source", "7", "v7"),
        ("source", "9", "v9"),
        ("target", "9", "x"),
    ]


@pytest.mark.slow
def test_a_table_gets_a_new_baseline_while_it_is_validated(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """Its target is newer than the snapshot then: all is compared at another one."""
    db.execute(CREATE)
    task, said = task_of(tmp_path, database), list[str]()

    def draw(words: str, *_: int) -> None:
        said.append(words)
        if said.count("reading s.t") == 1 and words == "reading s.t":
            commands.resync(task.commands_path, "s.t", "somebody wants it", who="me")

    found = validated(task, Steps(draw))
    assert [(t.table, t.target_rows, t.equal) for t in found.tables] == [
        ("s.bag", 50, True),
        ("s.t", 500, True),
    ]
    assert said.count("reading s.t") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "runs"),
    [
        ("", 0),
        ("keylog: {mode: all}\ntables: {s.t: {mode: strict}}\n", 1),
        ("tables: {s.t: {mode: soft_delete}}\n", 0),
    ],
)
def test_what_differs_is_repaired_without_spark(
    tmp_path: Path, database: str, db: psycopg.Connection, more: str, runs: int
) -> None:
    db.execute(CREATE)
    task = task_of(tmp_path, database, more)
    path, bag = task.target_path("s.t"), task.target_path("s.bag")
    for again in ("x", "y"):  # the second repair goes on where the first one ended
        DeltaTable(path).delete("id = 7")
        DeltaTable(path).update(updates={"v": f"'{again}'", "n": "NULL"}, predicate="id = 9")
        extra = DeltaTable(path).to_pyarrow_table(filters=[("id", "=", 1)])
        write_deltalake(path, extra.set_column(0, "id", pa.array([501], pa.int32())), mode="append")
        DeltaTable(bag).delete("v = 'w1'")
        write_deltalake(bag, pa.table({"v": ["w2", again, again]}), mode="append")
        said = list[str]()
        steps = Steps(lambda words, *_, said=said: said.append(words))
        before, done, after = setup.repair_task(task, (), dry_run=False, samples=3, steps=steps)
        assert not before.equal and after is not None and after.equal
        assert [(r.table, r.inserts, r.updates, r.deletes, r.refused) for r in done] == [
            ("s.bag", 17, 0, 3, None),
            ("s.t", 1, 1, 1, None),
        ]
        assert "repairing s.t" in said and not any("Spark" in words for words in said)
        assert (done[1].run_id is not None) == bool(runs)
    rows = DeltaTable(path).to_pyarrow_table().select(["id", "v", "n"]).sort_by("id").to_pylist()
    assert [r["v"] for r in rows if r["id"] in (7, 9)] == ["v7", "v9"] and rows[8]["n"] == Decimal("3.00")
    if runs:
        logged = lake.read(task.keylog_path).select(
            ["run_id", "change_row_type", "action_taken", "after_key"]
        )
        found = [tuple(r.values()) for r in logged.to_pylist() if r["run_id"] == done[1].run_id]
        assert [r[1:3] for r in found] == [("I", "I"), ("U", "M"), ("D", "D")]


@pytest.mark.slow
def test_a_postgresql_target_is_repaired_without_spark(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute(CREATE)
    task = task_of(tmp_path, database, f"target: '{database}&schema=copies'\n")
    for again in ("x", "y"):
        db.execute(
            f"delete from copies.t where id = 7; update copies.t set v = '{again}', n = null where id = 9"
        )
        db.execute("insert into copies.t select 501, v from copies.t where id = 1")
        db.execute(
            "delete from copies.bag where v = 'w1'; insert into copies.bag values ('w2'), ('z'), ('z')"
        )
        _, done, after = setup.repair_task(task, (), dry_run=False, samples=3)
        assert after is not None and after.equal
        assert [(r.table, r.inserts, r.updates, r.deletes, r.refused) for r in done] == [
            ("s.bag", 17, 0, 3, None),
            ("s.t", 1, 1, 1, None),
        ]
    rows = [db.execute(f"select * from {schema}.t order by id").fetchall() for schema in ("s", "copies")]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_dry_run_says_what_there_is_to_do_and_does_nothing(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute(CREATE)
    task = task_of(tmp_path, database)
    DeltaTable(task.target_path("s.t")).delete("id <= 7")
    version = DeltaTable(task.target_path("s.t")).version()
    _, done, after = setup.repair_task(task, (), dry_run=True, samples=3)
    assert [(r.table, r.inserts) for r in done] == [("s.t", 7)] and after is None
    assert DeltaTable(task.target_path("s.t")).version() == version


@pytest.mark.slow
def test_changes_that_wait_are_applied_without_spark(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute(CREATE)
    task = task_of(tmp_path, database)
    db.execute("update s.t set v = 'new' where id = 1; delete from s.t where id = 2")
    assert [(t.table, t.source_rows, t.equal) for t in validated(task).tables] == [
        ("s.bag", 50, True),
        ("s.t", 499, True),
    ]
    assert validated(task).equal  # exactly once: the next one goes on behind it


def test_spark_starts_for_changes_that_only_it_can_apply_and_that_is_said(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute(CREATE)
    more = "target: {path: target, local_limit: 0, rewrite_limit: 1}\n"
    task, said = task_of(tmp_path, database, more), list[str]()
    db.execute("update s.t set v = 'new' where id = 1")
    with pytest.raises(ApplyError, match=r"s\.t"):
        validated(task, Steps(lambda words, *_: said.append(words)))
    assert said[-1] == "starting Spark: changes wait that only Spark can apply"


SUSPENDS = "groups: {g: {tables: [s.u], retries: 1}}\ntables: {s.u: {ddl: {drop: ignore}}}\n"


@pytest.mark.slow
def test_a_table_that_cannot_be_compared_keeps_no_other_from_it(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """Its DDL stopped it: the others are compared and repaired, and it is told of with the reason."""
    db.execute(CREATE + "create table s.u (id int primary key, v text); insert into s.u values (1, 'a')")
    task = task_of(tmp_path, database, SUSPENDS)
    db.execute("alter table s.u drop v; alter table s.u add v text; insert into s.u values (2, 'new')")
    validated(task)
    DeltaTable(task.target_path("s.t")).delete("id = 7")
    found = validated(task)
    assert not found.equal
    assert [(t.table, t.equal, t.differing_rows) for t in found.tables] == [
        ("s.bag", True, 0), ("s.t", False, 1), ("s.u", False, 0),
    ]  # fmt: skip
    why = found.tables[-1].not_compared
    assert why is not None and why.startswith("the target would have two columns 'v'")
    assert [t.not_compared for t in found.tables[:2]] == [None, None]
    assert found.as_dict()["tables"][-1]["not_compared"] == why
    before, done, after = setup.repair_task(task, (), dry_run=False, samples=3)
    assert before.tables[-1].not_compared == why
    assert [(r.table, r.inserts, r.refused) for r in done] == [
        ("s.t", 1, None), ("s.u", 0, f"not compared: {why}"),
    ]  # fmt: skip
    assert after is not None and [(t.table, t.equal) for t in after.tables] == [("s.t", True)]
    alone = setup.validate_task(Path("shop.yaml"), task, ("s.u",), timeout_s=60, samples=3)
    assert not alone.equal and [t.not_compared for t in alone.tables] == [why]


@pytest.mark.parametrize("kind", ["delta", "postgresql"])
def test_a_target_that_is_gone_keeps_no_other_table_from_being_compared(
    tmp_path: Path, database: str, db: psycopg.Connection, kind: str
) -> None:
    db.execute(CREATE)
    target = f"target: '{database}&schema=copies'\n" if kind == "postgresql" else ""
    task = task_of(tmp_path, database, target)
    if kind == "postgresql":
        db.execute("drop table copies.t")
    else:
        shutil.rmtree(task.target_path("s.t"))
    bag, gone = validated(task).tables
    assert bag.equal and not gone.equal
    assert gone.not_compared is not None and gone.not_compared.startswith("s.t is not in the target")


@pytest.mark.slow
def test_a_target_that_lacks_a_column_keeps_no_other_table_from_being_compared(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute(CREATE)
    task = task_of(tmp_path, database, f"target: '{database}&schema=copies'\n")
    db.execute("alter table copies.t drop v")
    for _ in range(2):
        bag, lacking = validated(task).tables
        assert bag.equal and not lacking.equal
        assert (lacking.not_compared or "").startswith("the target of s.t has no columns v")
    _, done, _ = setup.repair_task(task, (), dry_run=False, samples=3)
    assert [(r.table, (r.refused or "")[:14]) for r in done] == [("s.t", "not compared: ")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "postgresql"])
def test_values_that_no_type_of_the_lake_holds_are_counted(
    tmp_path: Path, database: str, db: psycopg.Connection, kind: str
) -> None:
    """They are NULL in the target, as documented: it is equal, and the result says how many there are."""
    db.execute(CREATE + "create table s.u (id int primary key, d date, n numeric(6, 2), x numeric(6, 2))")
    db.execute("insert into s.u values (1, '0044-03-15 BC', 'NaN', 'NaN'), (2, '2026-01-01', 1, 1)")
    target = f"target: '{database}&schema=copies'\n" if kind == "postgresql" else ""
    dropped = "tables: {s.u: {drop: [x]}}\n"  # not in the target: not compared, not counted
    task = task_of(tmp_path, database, f"on_bad_value: quarantine\n{dropped}{target}")
    assert [(t.table, t.equal, t.as_null) for t in validated(task).tables] == [
        ("s.bag", True, 0), ("s.t", True, 0), ("s.u", True, 2),
    ]  # fmt: skip
    db.execute("update s.u set d = '0100-01-01 BC' where id = 2")
    found = validated(task)
    assert found.equal and [t.as_null for t in found.tables] == [0, 0, 3]
    assert found.as_dict()["tables"][2]["as_null"] == 3
    noted = {t.table: t.quarantined for t in status(task).tables}
    assert noted == {"s.bag": 0, "s.t": 0, "s.u": 4}  # with x, which is kept there too
    if kind == "postgresql":
        db.execute("update copies.u set d = '2026-01-01' where id = 2")
    else:
        DeltaTable(task.target_path("s.u")).update(updates={"d": "'2026-01-01'"}, predicate="id = 2")
    assert [(t.equal, t.as_null) for t in validated(task).tables] == [(True, 0), (True, 0), (False, 3)]


def test_an_error_of_the_task_ends_the_comparison(
    tmp_path: Path, database: str, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute(CREATE)
    task = task_of(tmp_path, database)
    monkeypatch.setattr(TargetSide, "why_sql", "only Spark can read it")

    def no_java(*_: Any, **__: Any) -> None:
        raise ConfigError("there is no Java")

    monkeypatch.setattr("tailrace.runtime.session.session", no_java)
    with pytest.raises(ConfigError, match="no Java"):
        validated(task)
    monkeypatch.setattr("tailrace.validate.validation._wait_stored", lost)
    with pytest.raises(ConnectionLostError, match="gone"):
        validated(task)


def lost(*_: Any) -> None:
    raise ConnectionLostError("the source is gone")
