"""Partitions whose replica identity is not their root's: the stream labels an old row by the root, and fills it by
the partition."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tailrace.capture.process import Capture
from tailrace.errors import SourceError
from tailrace.lake import delta as lake
from tailrace.model import mask
from tailrace.model.change import HEADERS
from tailrace.operate.checks import check
from tailrace.sources.base import Finding

from .test_control import Shop, task_file
from .test_model import drain
from .test_publication import capturing
from .test_running import wait_for

pytestmark = pytest.mark.db
COLUMNS = ["id", "v", "big", "n"]
ROOT = """
create schema s;
create table s.p (id int {}, v text, big text, n int) partition by range (id);
create table s.p1 partition of s.p for values from (0) to (10);
create table s.p2 partition of s.p for values from (10) to (20);
alter table s.p alter big set storage external; alter table s.p1 alter big set storage external;
alter table s.p2 alter big set storage external;
"""
CURE = 'ALTER TABLE "s"."p1" REPLICA IDENTITY FULL'
FULL, EACH = "alter table s.{} replica identity full;", ("p", "p1", "p2")


def shop_of(folder: Path, url: str, db: psycopg.Connection, made: str) -> Shop:
    db.execute(made.encode())
    db.execute("insert into s.p select i, null, repeat('x', 9000), i from unnest(array[1, 2, 11]) i")
    path = task_file(folder, url, tables="s.p")
    path.write_text(path.read_text().replace("every: 2s", "every: 1h"))  # which would remove old changes
    return Shop(path, db)


def found(shop: Shop) -> list[Finding]:
    every = check(shop.task, lambda: None)  # type: ignore[arg-type, return-value]
    return [one for one in every if one.where.endswith("s.p")]


def old_images(shop: Shop) -> list[tuple[str, list[str]]]:
    """Operation and carried columns of deletes and before images, in the order of the changes."""
    rows = lake.read(shop.task.changes_path("s.p")).sort_by("header__change_seq").to_pylist()
    names = [None] * len(HEADERS) + COLUMNS
    carried = ((r["header__change_oper"], r["header__column_mask"]) for r in rows)
    return [
        (o, COLUMNS if m is None else [names[n] for n in mask.decode(m)]) for o, m in carried if o in "BD"
    ]  # type: ignore[misc]


def test_update_of_a_key_in_a_default_partition_of_a_full_root_keeps_large_values(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = shop_of(tmp_path, database, db, ROOT.format("primary key") + FULL.format("p") + FULL.format("p2"))
    (said,) = found(shop)
    assert (said.level, "(s.p1) have only the key of the old row" in said.what) == ("warning", True)
    assert said.cure == f"{CURE} (new partitions start with DEFAULT, so repeat this for each)"
    drain(shop.task, None)
    db.execute("update s.p set id = 12 where id = 11; update s.p set id = 3 where id = 1")
    db.execute("delete from s.p where id = 2; delete from s.p where id = 12")
    drain(shop.task, None)
    assert shop.equal("s.p")
    # p2 is FULL. Once the stream has rows of p1, a NULL of p2 cannot be told from what p1 does not send.
    assert old_images(shop) == [
        ("B", COLUMNS),
        ("B", ["id"]),
        ("D", ["id"]),
        ("D", ["id", "big", "n"]),
    ]


def test_old_images_are_whole_again_when_each_partition_is_full(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = shop_of(tmp_path, database, db, ROOT.format("primary key") + FULL.format("p") + FULL.format("p2"))
    drain(shop.task, None)
    db.execute("delete from s.p where id = 2")
    db.execute(FULL.format("p1"))  # type: ignore[arg-type]
    db.execute("delete from s.p where id = 1; delete from s.p where id = 11")
    assert found(shop) == []
    drain(shop.task, None)
    assert old_images(shop) == [("D", ["id"]), ("D", COLUMNS), ("D", COLUMNS)]


KEYED = "alter table s.p1 add primary key ({0}); alter table s.p2 add primary key ({0});"


SHAPES = {
    "keys at the leaves": ROOT.format("") + KEYED.format("id"),
    "index at the root": ROOT.format("not null") + KEYED.format("n") + "create unique index k on s.p (id);"
    " alter table s.p replica identity using index k",
    "and a full root": ROOT.format("") + KEYED.format("id") + FULL.format("p"),
}  # fmt: skip


def test_partitions_whose_changes_name_no_row_are_refused_until_each_is_full(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    for shape, made in SHAPES.items():
        db.execute("drop schema if exists s cascade")
        shop = shop_of(tmp_path, database, db, made)
        (said,) = found(shop)
        assert (said.level, "(s.p1, s.p2) do not identify their row" in said.what) == ("error", True), shape
    with pytest.raises(SourceError, match="do not identify their row"):
        Capture(shop.task, once=True).run()
    for statement in said.cure.partition(" (")[0].split("; "):
        db.execute(statement.encode())
    assert found(shop) == []
    drain(shop.task, None)
    db.execute("update s.p set v = 'new' where id = 1; update s.p set id = 4 where id = 2")
    db.execute("delete from s.p where id = 11")
    drain(shop.task, None)
    assert shop.equal("s.p")


def test_check_names_partitions_on_which_updates_would_fail(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = shop_of(tmp_path, database, db, ROOT.format("") + FULL.format("p") + FULL.format("p2"))
    (said,) = found(shop)
    assert (said.level, "its partition s.p1 has no replica identity" in said.what) == ("error", True)
    assert "identity: full" in said.cure


@pytest.mark.slow
def test_a_partition_that_is_made_so_later_suspends_the_table(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    shop = shop_of(tmp_path, database, db, ROOT.format("") + "".join(map(FULL.format, EACH)))
    drain(shop.task, None)
    with capturing(shop) as failed:
        db.execute("create table s.p3 partition of s.p for values from (20) to (30)")
        db.execute("alter table s.p3 add primary key (id)")
        wait_for(lambda: "(s.p3) do not identify their row" in (shop.state("s.p")[1] or ""), 20)
        assert shop.state("s.p")[0] == "suspended" and not failed
    (said,) = found(shop)
    assert said.level == "warning"
    drain(shop.task, None)  # the others of a task go on
