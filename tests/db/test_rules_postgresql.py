"""Rules and key log with a PostgreSQL database as target: as with Delta tables, crashes included."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace import incoming, lake
from tailrace.apply.exceptions import EXCEPTIONS
from tailrace.apply.ruled import RuledApply
from tailrace.apply.rules import Rules
from tailrace.apply.targets.postgresql import PostgresTarget
from tailrace.apply.task_rules import TableRules
from tailrace.change import Relation
from tailrace.control import tables_file
from tailrace.errors import TailraceError
from tailrace.testing.images import Image, change_rows, change_table
from tailrace.testing.mapped_targets import EU, US, places

from ..spark.ruled_model import RELATION, Change, history
from ..spark.ruled_task import Staged, interleaved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.db, pytest.mark.spark]


class Rows(Staged):
    """The same with targets in a database."""

    url = ""

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        mode = self.rules[table].rules.mode
        names = [c.name for c in RELATION.columns]
        names += ["_deleted"] if mode == "soft_delete" else []
        names = ["header__change_seq", "header__change_oper", *names] if mode == "archive" else names
        with psycopg.connect(self.url) as db:
            found = db.execute(f"select {', '.join(names)} from {self.target.path(table)}").fetchall()
        return sorted(found, key=repr)

    def lose(self, table: str, where: str) -> None:
        with psycopg.connect(self.url) as db:
            db.execute(f"delete from {self.target.path(table)} where {where}")


def staged(spark: SparkSession, root: Path, url: str, rules: dict[str, TableRules]) -> Rows:
    made = Rows(spark, root, rules, target=PostgresTarget(spark, url, task="t"))
    made.url = url
    return made


def test_every_mode_and_its_key_log(spark: SparkSession, tmp_path: Path, database: str) -> None:
    modes = {"s.strict": "strict", "s.plain": "upsert", "s.soft": "soft_delete", "s.kept": "archive"}
    task = staged(spark, tmp_path, database, {t: TableRules(Rules.of(m)) for t, m in modes.items()})
    changes = interleaved({t: history(k, 5, 4, whole_moves=True) for k, t in enumerate(modes)})
    cut = sorted(c.number for many in changes.values() for c in many)[30]
    task.store({t: [c for c in many if c.number <= cut] for t, many in changes.items()})
    task.catch_up()
    task.lose("s.strict", "id = 'p'")
    strict = task.models["s.strict"]
    strict.rows = {k: r for k, r in strict.rows.items() if k[1] != "p"}
    task.store({t: [c for c in many if c.number > cut] for t, many in changes.items()})
    task.catch_up()
    task.same()
    assert task.catch_up() == []


def change(number: int, oper: str, key: str, **values: Any) -> Change:
    row = {"lane": 0, "id": key} | ({} if oper == "D" else {"a": number, "b": key} | values)
    return Change(number, oper, None, row)


def test_a_crash_before_or_after_the_transaction_is_made_good(
    spark: SparkSession, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it and right after it, and before the commit of the key log; each change is a transaction, so
    that a slice has several."""
    task = staged(spark, tmp_path, database, {"s.t": TableRules(Rules.of("strict"), transactional=True)})
    task.store({"s.t": [change(1, "I", "a")]})
    task.catch_up()
    commit, crashes = lake.commit, []

    def dies(name: str, before: bool) -> Callable[..., Any]:
        real = getattr(PostgresTarget, name)

        def call(*args: Any) -> Any:
            if not before:
                real(*args)
            crashes.append(name)
            raise KeyError

        return call

    def no_commit(which: str) -> Callable[..., Any]:
        def call(path: str, *args: Any, **kwargs: Any) -> Any:
            if path.endswith(which):
                crashes.append(which)
                raise KeyError
            return commit(path, *args, **kwargs)

        return call

    one = [("audited", dies("audited", before)) for before in (True, False)]
    # With truncates, exceptions, the transaction and the key log's rows are jobs of their own.
    several = [("apply_noted", dies("apply_noted", before)) for before in (True, False)]
    log = ("commit", no_commit("keylog"))
    points = [*one, log, *several, log]
    for place, (name, broken) in enumerate(points, 1):
        number = 10 * place
        first = [Change(number - 1, "T", None, {})] if place > 3 else []
        task.store({"s.t": [*first, change(number, "D", "x"), change(number + 1, "I", f"k{number}")]})
        with monkeypatch.context() as patch:
            patch.setattr(lake if name == "commit" else PostgresTarget, name, broken)
            with suppress(TailraceError, KeyError):
                task.catch_up()
        assert len(crashes) == place
    task.catch_up()
    task.same()
    kept = lake.read(f"{task.control}/{EXCEPTIONS}", ["STATEMENT"]).num_rows
    assert kept == len(points)


def test_the_command_takes_a_database(spark: SparkSession, tmp_path: Path, database: str) -> None:
    import pyarrow.parquet as pq

    changes = [change(1, "I", "a"), change(2, "D", "q"), change(3, "U", "a", b="new")]
    (tmp_path / "in" / "s.t__ct").mkdir(parents=True)
    rows = change_rows(RELATION, [i for c in changes for i in c.images])
    pq.write_table(rows, f"{tmp_path}/in/s.t__ct/1.parquet")
    chosen = incoming.ruling("strict", {}, None, f"{tmp_path}/keylog", "all")
    file = tmp_path / "tables.yaml"
    file.write_text(
        "tables: {s.t: {target: every.t, columns: {word: upper(b)}, drop: [b], constants: {site: x}}}"
    )
    done = incoming.run(
        spark, f"{tmp_path}/in", "tailrace", {"key": "lane,id"}, database,
        ruling=chosen, control=f"{tmp_path}/control", tables=tables_file.load(file),
    )["tables"][0]  # fmt: skip
    assert (done["actions"], done["flagged"]) == ({"I": 1, "D": 1, "M": 1}, 1)
    with psycopg.connect(database) as db:
        assert db.execute("select site, id, word from every.t").fetchall() == [("x", "a", "NEW")]
    assert lake.read(f"{tmp_path}/keylog").num_rows == 3


def test_sources_of_one_target_under_soft_delete(spark: SparkSession, tmp_path: Path, database: str) -> None:
    """They come one after the other to the column that rules add; a truncate is about its own source."""
    target = PostgresTarget(spark, database, task="t", places=places)
    rules = RuledApply(spark, target, Rules.of("soft_delete"), root=str(tmp_path), task="t", app_id="t")

    def apply(of: Relation, *images: Image) -> None:
        placed = [(n, oper, {"site": of.schema, **values} if values else {}) for n, oper, values in images]
        rules.apply(replace(change_table(spark, of, placed), name=of.table))

    apply(EU, (1, "I", {"id": 1, "v": "a"}), (2, "I", {"id": 2, "v": "b"}))
    apply(US, (3, "I", {"id": 1, "v": "c"}), (4, "D", {"id": 1}))
    apply(EU, (5, "T", {}), (6, "I", {"id": 3, "v": "d"}))
    with psycopg.connect(database) as db:
        found = db.execute('select site, id, right(_deleted, 2) from "all".item order by 1, 2').fetchall()
    assert found == [("eu", 3, None), ("us", 1, "04")]


def test_rows_that_the_database_refuses_are_set_aside_alone(
    spark: SparkSession, tmp_path: Path, database: str
) -> None:
    task = staged(spark, tmp_path, database, {"s.t": TableRules(Rules.of("strict", {"data_error": "log"}))})
    task.put({"s.t": [change(1, "I", "a", b="first")]})
    task.catch_up()
    with psycopg.connect(database) as db:
        db.execute("alter table s.t alter a type smallint, alter b set not null, add unique (b)")
        db.execute("alter table s.t add constraint good check (b <> 'bad')")
    task.put({"s.t": [change(2, "I", "b"), change(3, "I", "c", a=70000), change(4, "I", "d", b="bad"),
                      change(5, "I", "e", b="first"), change(6, "U", "a", b=None), change(7, "D", "x"),
                      change(8, "I", "f")]})  # fmt: skip
    task.catch_up()
    assert [r[1:] for r in task.rows("s.t")] == [("a", 1, "first"), ("b", 2, "b"), ("f", 8, "f")]
    log = {r["change_row_counter"]: r for r in lake.read(task.log).to_pylist()}
    assert {n: (r["action_taken"], r["result_row_count"]) for n, r in log.items()} == {
        1: ("I", 1), 2: ("I", 1), 3: ("I", 0), 4: ("I", 0), 5: ("I", 0), 6: ("M", 0), 7: ("D", 0), 8: ("I", 1),
    }  # fmt: skip
    said = {
        n: r["result_error"] for n, r in log.items() if (r["result_error"] or "").startswith("data_error")
    }
    words = {3: "smallint out of range", 4: 'check constraint "good"', 5: "unique constraint", 6: "not-null"}
    assert sorted(said) == sorted(words)
    assert all(words[n] in said[n] for n in words), said
    assert lake.read(f"{task.control}/{EXCEPTIONS}").num_rows == 5
