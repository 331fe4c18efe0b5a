"""An error at each fail point of targets, key logs, baselines and upkeep: started again, all is as if there was none.

Those of capture, store and apply are in `tests/nemesis/test_schedules.py`, which kills there; those within Spark's
tasks are met by `make chaos` alone.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tailrace import failpoints
from tailrace.control.task import Task, load
from tailrace.errors import TailraceError
from tailrace.ordering import order

from .test_model import drain, target_rows

pytestmark = [pytest.mark.db, pytest.mark.spark, pytest.mark.slow]

SCHEMA = """
create schema s;
create table s.a (id int primary key, v text, n numeric(5,1));
create table s.b (id int primary key, v text);
create table s.bag (v text);
alter table s.bag replica identity full;
insert into s.a select i, 'v' || i, i from generate_series(1, 5) i;
insert into s.b select i, 'v' || i from generate_series(1, 5) i;
"""
TASK = """\
name: points
home: home
source: {{url: '{url}', tables: ['s.*']}}
target: {target}
on_bad_value: quarantine
capture: {{commit_every: 100ms, idle_advance: 1s}}
baseline: {{workers: 1}}
maintenance: {{every: 0s, small_files: 2, keep_log: 0s}}
apply: {{mode: upsert}}
tables:
  s.a: {{mode: strict, ddl: {{rename_table: apply}}}}
  s.b: {{target: s.mapped, columns: {{w: v}}}}
keylog: {{mode: all}}
"""
CHANGES = """
insert into s.a select max(id) + 1, 'new', 1 from s.a; update s.a set v = v || '!' where id % 2 = 0;
insert into s.b select max(id) + 1, 'new' from s.b; update s.bag set v = v || '!'; insert into s.bag values ('x');
"""
BOTH = {
    "capture.slot": "", "baseline.land": "", "baseline.landed": "", "apply.mapped": "", "apply.staging": "",
    "ddl.history": "alter table s.bag add y int", "log.committed": "", "keylog.parts": "", "keylog.flush": "", "keylog.flushed": "",
    "control.change": "", "store.quarantine": "insert into s.a values (901, 'bad', 'NaN')",
    "store.retype": "alter table s.bag alter v type varchar(30); alter table s.a alter n type numeric(7,1)",
    "ddl.event": "alter table s.a rename to a2; update s.a2 set v = 'moved' where id = 1",
    "rename.target": "alter table s.a2 rename to a", "rename.moved": "alter table s.a rename to a2; alter table s.a2 rename to a3; alter table s.a3 rename to a",
    "maintain.trim": "", "maintain.compact": "", "maintain.vacuum": "",
}  # fmt: skip
OWN = {
    "delta": {"delta.parts": "", "delta.rewrite": "alter table s.a add x int default 7; update s.a set x = 8 where id = 1", "delta.load": "resync s.b"},
    "postgresql": {"postgresql.commit": "", "postgresql.committed": "", "postgresql.land": "resync s.a", "postgresql.load": "resync s.b"},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["delta", "postgresql"])
def test_an_error_at_each_point_changes_nothing(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: object, kind: str
) -> None:
    target = "{path: lake}" if kind == "delta" else f"'{database}&schema=lake'"
    file = tmp_path / "points.yaml"
    file.write_text(TASK.format(url=database, target=target))
    db.execute(SCHEMA)
    task, missed = load(file), []
    for point, provoked in {**BOTH, **OWN[kind]}.items():
        if provoked.startswith("resync"):
            order(task, "resync", [provoked.split()[1]], why="test")
        else:
            db.execute(provoked)
        with suppress(psycopg.errors.UndefinedTable):
            db.execute(CHANGES)
        failpoints.arm(f"{point}:1:error")
        try:
            with suppress(TailraceError):
                drain(task, spark)
            missed += [point] * failpoints.armed()
        finally:
            failpoints.arm(None)
    drain(task, spark)
    assert (missed, differences(task, db)) == ([], [])


def differences(task: Task, db: psycopg.Connection) -> list[str]:
    """Tables whose target is not as the source."""
    found = []
    for name, target, columns in (("a", "a", "id, v"), ("b", "mapped", "id, v as w"), ("bag", "bag", "v")):
        want = sorted(db.execute(f"select {columns} from s.{name}").fetchall())
        names = [c.rpartition(" ")[2] for c in columns.split(", ")]
        if task.target.database:
            have = sorted(db.execute(f"select {', '.join(names)} from lake.{target}").fetchall())
        else:
            rows = target_rows(task, f"s.{target}")
            have = sorted(tuple(r[n] for n in names) for r in rows)
        if have != want:
            found.append(f"{name}: {have} instead of {want}")
    return found
