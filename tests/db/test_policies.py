"""Capture policies on a live source, with OpenEdge's tables too: what each level leaves of the same changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psycopg
import pytest

from tailrace.config.task import load
from tailrace.formats.openedge.metadata import policy_id
from tailrace.lake import delta as lake
from tailrace.state import commands

from .model import bag
from .test_model import drain, target_rows

pytestmark = [pytest.mark.db, pytest.mark.spark]
LEVELS = (3, 2, 1, 0)
MAP = "_Change-FieldMap"


@pytest.mark.slow
def test_four_levels_and_openedges_tables(
    tmp_path: Path, database: str, db: psycopg.Connection, spark: object
) -> None:
    path = tmp_path / "levels.yaml"
    path.write_text(
        f"name: levels\nhome: home\ntarget: {{path: lake}}\nsource: {{url: '{database}', tables: ['p.*']}}\n"
        "freshness: 100ms\nstore: {openedge: true}\n"
        "policies: {p.*: 3, p.t2: 2, p.t1: 1, p.t0: 0, p.t3.secret: 1}\n"
    )
    db.execute("create schema p")
    for n in LEVELS:
        db.execute(
            f"create table p.t{n} (id int primary key, v text, secret text);"
            f"alter table p.t{n} replica identity full; insert into p.t{n} values (1, 'a', 's')"
        )
    task = load(path)
    drain(task, spark)
    for n in LEVELS:
        db.execute(
            f"insert into p.t{n} values (2, 'b', 's'); update p.t{n} set v = 'c', secret = 'x' where id = 1"
        )
        db.execute(f"delete from p.t{n} where id = 2")
    drain(task, spark)

    hidden = {"id": 1, "v": "c", "secret": None}
    assert bag(target_rows(task, "p.t3")) == bag([hidden])
    assert bag(target_rows(task, "p.t2")) == bag([hidden | {"secret": "x"}])
    assert not any(lake.exists(task.target_path(f"p.t{n}")) for n in (1, 0))

    # id, v, secret are bits 1, 2, 3: the update changed the last two, at levels that tell it
    codes = Counter((1, 4, 2))
    for where, id_of in (
        (task.tracking_path, str),
        (f"{task.openedge_path}/PUB._Cdc-Change-Tracking", policy_id),
    ):
        rows = lake.read(where).to_pylist()
        for n in LEVELS:
            mine = [r for r in rows if r["_Policy-Id"] == id_of(f"p.t{n}")]
            assert Counter(r["_Operation"] for r in mine) == codes, (where, n)
            (bits,) = (r[MAP] for r in mine if r["_Operation"] == 4)
            assert bits == (b"\x06" if n else None), (where, n)
    images = {n: f"{task.openedge_path}/p.CDC_t{n}" for n in LEVELS}
    kept = {n: lake.read(at).to_pylist() for n, at in images.items() if lake.exists(at)}
    assert [len(kept[n]) for n in (3, 2)] == [4, 3]
    assert not kept.get(1) and 0 not in kept
    seen = {
        n: [(r["_Operation"], r["id"], r["v"], r["secret"]) for r in kept[n] if r["id"] == 1] for n in (3, 2)
    }
    assert sorted(seen[3]) == [(3, 1, "a", None), (4, 1, "c", None)]
    assert seen[2] == [(4, 1, "c", "x")]

    db.execute("alter table p.t3 rename secret to private; insert into p.t3 values (3, 'd', 'hush')")
    drain(task, spark)
    assert bag(target_rows(task, "p.t3")) == bag(
        [{"id": 1, "v": "c", "private": None}, {"id": 3, "v": "d", "private": None}]
    )
    db.execute("alter table p.t3 rename private to hidden")
    commands.give(task.commands_path, commands.RESYNC, ["p.t3"], why="", who="me")
    drain(task, spark)
    assert {r["hidden"] for r in target_rows(task, "p.t3")} == {None}
    stored = lake.read(task.changes_path("p.t3"))
    assert {n: stored[n].null_count == len(stored) for n in ("secret", "private")} == {
        "secret": True,
        "private": True,
    }
