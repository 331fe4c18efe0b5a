"""On one machine a pipeline needs no JVM for changes that a task can merge: every kind of target and rules."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pyarrow.compute as pc
import pytest

from tailrace.capture.process import Capture
from tailrace.config.late_session import LateSession
from tailrace.config.task import load
from tailrace.lake import delta as lake
from tailrace.runtime import setup
from tailrace.runtime.pipeline import Pipeline

pytestmark = pytest.mark.db
CREATE = """
create schema s;
create table s.t (id int primary key, v text, n numeric(9,2));
create table s.other (id int, part int, v text, primary key (id, part));
alter table s.other replica identity full;
insert into s.t select i, 'v' || i, i / 3.0 from generate_series(1, 500) i;
"""
ROUNDS = [
    "insert into s.t select i, 'w', 1 from generate_series(501, 900) i; delete from s.t where id <= 10",
    "update s.t set id = id + 5000 where id % 50 = 0; insert into s.other values (1, 1, 'a'), (1, 2, null)",
    "update s.other set v = 'b', part = 7 where part = 2; delete from s.t where id > 5200; insert into s.t values (1)",
]
KINDS = {
    "delta": "",
    "rules and key log": "apply: {mode: strict}\nkeylog: {mode: all}\n",
    "soft delete": "apply: {mode: soft_delete}\n",
    "postgresql": "target: '{url}'\nkeylog: {{mode: all}}\n",
}


def never() -> None:
    raise AssertionError("Spark was asked for")


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_on_one_machine_starts_no_jvm(
    tmp_path: Path, database: str, db: psycopg.Connection, kind: str
) -> None:
    db.execute(CREATE)
    url = database + ("&" if "?" in database else "?") + "schema=copies"
    file = tmp_path / "shop.yaml"
    more = KINDS[kind].format(url=url) if kind == "postgresql" else KINDS[kind]
    file.write_text(f"name: shop\nsource: {{url: '{database}', tables: [s.*]}}\n{more}")
    task = load(file)
    Capture(task, once=True).run()
    for changes in ROUNDS:
        db.execute(changes)
        Capture(task, once=True).run()
        Pipeline(task, LateSession(never).as_session).drain()  # type: ignore[arg-type]
    if "key log" in more:
        log = lake.read(task.keylog_path)
        assert pc.all(pc.equal(log["result_error"].fill_null(""), "")).as_py(), log
    if kind in ("delta", "postgresql", "rules and key log"):
        found = setup.validate_task(file, task, (), timeout_s=60, samples=3)
        assert [(t.table, t.equal) for t in found.tables] == [("s.other", True), ("s.t", True)]
    else:
        rows = lake.read(task.target_path("s.t")).select(["id", "_deleted"]).to_pylist()
        assert {r["id"] for r in rows if r["_deleted"]} >= {2, 10, 5250}
        assert len(rows) > len([r for r in rows if not r["_deleted"]]) == 890 - 14 + 1
