"""Tables whose values change without a record in the log are suspended for a new baseline, or warned about."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable

from tailrace.capture.process import Capture
from tailrace.cli import screen
from tailrace.config.task import Task, load
from tailrace.errors import TailraceError
from tailrace.operate.checks import check
from tailrace.operate.status import status
from tailrace.sources.postgresql.layout import UNKNOWN_VALUE
from tailrace.state import commands
from tailrace.state.capture_gaps import UNLOGGED_VALUES, of_table

from .test_ddl import held
from .test_model import drain

pytestmark = pytest.mark.db
TABLE = "public.t"
CREATE = """
create type mood as enum ('sad', 'ok');
create table t (id int primary key, price numeric(9,2), m mood);
insert into t select i, i, 'ok' from generate_series(1, 20) i;
"""
REWRITE = "alter table t alter price type numeric(9,2) using price * 100"


def task_of(folder: Path, url: str, more: str = "") -> Task:
    path = folder / "values.yaml"
    path.write_text(f"name: values\nsource: {{url: '{url}', tables: [{TABLE}]}}\n{more}")
    return load(path)


def differs(task: Task, db: psycopg.Connection) -> list[object]:
    """The rows that source and target do not share, in PostgreSQL's own text."""
    names = [c.name for c in db.execute("select * from t limit 0").description or ()]
    source = Counter(db.execute(f"select {', '.join(f'{n}::text' for n in names)} from t").fetchall())  # type: ignore[arg-type]
    rows = DeltaTable(task.target_path(TABLE)).to_pyarrow_table().to_pylist()
    target = Counter(tuple(None if r.get(n) is None else str(r[n]) for n in names) for r in rows)
    return [*(source - target), *(target - source)]


def warned(task: Task) -> list[str]:
    return [one.what for one in check(task, lambda: None) if one.where == TABLE]  # type: ignore[arg-type, return-value]


def test_rewrite_that_keeps_the_type_suspends_the_table_until_resync(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    task = task_of(tmp_path, database)
    db.execute(CREATE)
    drain(task, None)
    db.execute(f"insert into t values (21, 21, 'sad'); {REWRITE}; insert into t values (22, 22, 'sad')")
    assert any("column price: older rows have other values" in one for one in warned(task))
    drain(task, None)
    assert held(task)[TABLE].startswith(f"{UNLOGGED_VALUES} (column price: ")
    assert "price" in "\n".join(screen.reasons(status(task)))
    commands.resync(task.commands_path, TABLE, "looked at", who="test")
    drain(task, None)
    db.execute("update t set price = 7 where id = 3")
    drain(task, None)
    assert (held(task), differs(task, db)) == ({}, [])
    assert (warned(task), status(task).tables[0].changed_values) == ([], [])
    assert len(of_table(task, TABLE)) == 1  # no question is answered across it


def test_rewrite_is_accepted_by_resume_and_stays_in_status(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    task = task_of(tmp_path, database)
    db.execute(CREATE)
    drain(task, None)
    db.execute(REWRITE)
    drain(task, None)
    commands.give(task.commands_path, commands.RESUME, [TABLE], why="", who="test")
    db.execute("insert into t values (22, 22, 'sad')")
    drain(task, None)
    assert held(task) == {}
    assert len(differs(task, db)) == 40
    assert any("column price" in one for one in warned(task))


@pytest.mark.parametrize("policy", ["ignore", "stop"])
def test_rewrite_follows_the_policy_for_retype(
    tmp_path: Path, database: str, db: psycopg.Connection, policy: str
) -> None:
    task = task_of(tmp_path, database, f"apply: {{ddl: {{retype: {policy}}}}}\n")
    db.execute(CREATE)
    drain(task, None)
    db.execute(REWRITE)
    if policy == "stop":
        with pytest.raises(TailraceError, match="its policy is `stop`"):
            Capture(task, once=True).run()
        commands.resync(task.commands_path, TABLE, "looked at", who="test")
        drain(task, None)
        assert (held(task), differs(task, db)) == ({}, [])
        return
    drain(task, None)
    assert held(task) == {}
    assert any("column price" in one for one in warned(task))


def test_default_that_the_log_does_not_prove_suspends_the_table_before_it(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    task = task_of(tmp_path, database)
    db.execute(CREATE)
    drain(task, None)
    db.execute("insert into t values (21, 21, 'sad')")
    db.execute("alter table t add note text default 'x'; alter table t alter note type varchar(80)")
    db.execute("insert into t values (22, 22, 'sad')")
    drain(task, None)
    assert UNKNOWN_VALUE in held(task)[TABLE]
    assert DeltaTable(task.target_path(TABLE)).to_pyarrow_table().num_rows == 21
    commands.resync(task.commands_path, TABLE, "looked at", who="test")
    drain(task, None)
    assert (held(task), differs(task, db)) == ({}, [])


@pytest.mark.parametrize(
    ("shape", "suspended"),
    [
        ("alter table t drop constraint t_pkey, replica identity full", True),
        ("select 1", False),
    ],
    ids=["no key", "another column"],
)
def test_renamed_label_suspends_the_table_if_it_identifies_rows(
    tmp_path: Path, database: str, db: psycopg.Connection, shape: str, suspended: bool
) -> None:
    task = task_of(tmp_path, database)
    db.execute(CREATE)
    db.execute(shape)
    drain(task, None)
    db.execute("alter type mood rename value 'ok' to 'fine'")
    db.execute("update t set price = 0 where id = 3; delete from t where id = 4")
    drain(task, None)
    assert (TABLE in held(task)) == suspended
    assert any("column m: older rows have another text" in one for one in warned(task))
    assert "column m" in "\n".join(screen.reasons(status(task)))
    commands.resync(task.commands_path, TABLE, "looked at", who="test")
    drain(task, None)
    assert (held(task), differs(task, db), warned(task)) == ({}, [], [])
