"""Rules and key log with a PostgreSQL database as target: as with Delta tables, crashes included."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace.apply.rules import RulesApplier
from tailrace.apply.task_rules import TableRules
from tailrace.apply.vendor.applier import VendorApplier
from tailrace.config import tables_file
from tailrace.engine.rules import Rules
from tailrace.errors import TargetLostError
from tailrace.keylog.control_tables import EXCEPTIONS
from tailrace.lake import delta as lake
from tailrace.model import sequence
from tailrace.model.change import Relation
from tailrace.operate import vendor_apply as incoming
from tailrace.targets.postgresql.batch_merge import BatchMerge
from tailrace.targets.postgresql.merge import MergeTask
from tailrace.targets.postgresql.single_changes import SingleChanges
from tailrace.targets.postgresql.target import PostgresTarget
from tailrace.testing.images import Image, change_rows, change_table
from tailrace.testing.mapped_targets import EU, US, locations

from ..spark import bag_model as bags
from ..spark import test_keyless_rules as keyless
from ..spark.rules_model import RELATION, Change, Row, columns_of, told
from ..spark.rules_task import TIME, CrashError, Staged, every_mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.db, pytest.mark.spark]


class Rows(Staged):
    """The same with targets in a database."""

    url = ""

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        mode = self.rules[table].rules.mode
        with psycopg.connect(self.url) as db:
            names = ", ".join(columns_of(mode))
            return told(db.execute(f"select {names} from {self.target.path(table)}"), mode)

    def lose(self, table: str, where: str) -> None:
        with psycopg.connect(self.url) as db:
            db.execute(f"delete from {self.target.path(table)} where {where}")

    def gain(self, table: str, rows: list[Row]) -> None:
        with psycopg.connect(self.url) as db:
            names, marks = ("lane, id, a, b", "%(lane)s, %(id)s, %(a)s, %(b)s")
            into = f"insert into {self.target.path(table)} ({names}) values ({marks})"
            db.cursor().executemany(into, rows)


class KeylessRows(Rows):
    """A task whose tables have no key."""

    relation = keyless.Keyless.relation


def staged(spark: SparkSession, root: Path, url: str, rules: dict[str, TableRules]) -> Rows:
    made = Rows(spark, root, rules, target=PostgresTarget(spark, url, task="t"))
    made.url = url
    return made


@pytest.mark.slow
def test_every_mode_and_its_key_log(spark: SparkSession, tmp_path: Path, database: str) -> None:
    """By transaction, over histories with truncates and with rows that others wrote."""
    seed = random.randrange(10**6)
    rules, changes = every_mode(seed, ["transaction"])
    task = staged(spark, tmp_path, database, rules)
    task.per_transaction = cut = 5 * len(rules)
    task.store({t: [c for c in many if c.number < cut] for t, many in changes.items()})
    task.catch_up()
    task.disturb(2)
    task.store({t: [c for c in many if c.number >= cut] for t, many in changes.items()})
    task.catch_up()
    task.same(f"seed {seed}")
    assert task.catch_up() == []


def change(number: int, oper: str, key: str, **values: Any) -> Change:
    row = {"lane": 0, "id": key} | ({} if oper == "D" else {"a": number, "b": key} | values)
    return Change(number, oper, None, row)


@pytest.mark.slow
def test_the_key_log_lacks_nothing_of_a_commit_whose_answer_was_lost(
    spark: SparkSession, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends when the database has committed, and the same process tries again."""
    task = staged(spark, tmp_path, database, {"s.t": TableRules(Rules.of("strict"))})
    task.store({"s.t": [change(n, "I", k) for n, k in enumerate("abc", 1)]})
    task.catch_up()
    committed, lost = BatchMerge.run, []

    def unheard(*given: Any) -> Any:
        done = committed(*given)
        if not lost:
            lost.append(1)
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return done

    monkeypatch.setattr(BatchMerge, "run", unheard)
    task.store({"s.t": [change(4, "U", "b"), change(5, "D", "c"), change(6, "I", "d")]})
    process = task.applier()
    with pytest.raises(TargetLostError):
        process.catch_up()
    process.catch_up()
    task.same()


@pytest.mark.slow
def test_a_crash_before_or_after_the_transaction_is_made_good(
    spark: SparkSession, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it and right after it, and before the commit of the key log; each change is a transaction, so
    that a slice has several."""
    task = staged(spark, tmp_path, database, {"s.t": TableRules(Rules.of("strict"), transactional=True)})
    task.store({"s.t": [change(1, "I", "a")]})
    task.catch_up()
    commit, crashes = lake.commit, []
    owners: dict[str, Any] = {"_merged": MergeTask, "commit": lake}

    def dies(name: str, before: bool) -> Callable[..., Any]:
        real = getattr(owners[name], name)

        def call(*args: Any) -> Any:
            if not before:
                real(*args)
            crashes.append(name)
            raise CrashError

        return call

    def no_commit(which: str) -> Callable[..., Any]:
        def call(path: str, *args: Any, **kwargs: Any) -> Any:
            if path.endswith(which):
                crashes.append(which)
                raise CrashError
            return commit(path, *args, **kwargs)

        return call

    one = [("_merged", dies("_merged", before)) for before in (True, False)]
    points = [*one, ("commit", no_commit("keylog"))]
    for place, (name, broken) in enumerate(points, 1):
        number = 10 * place
        first = [Change(number - 1, "T", None, {})] if place % 2 else []
        task.store({"s.t": [*first, change(number, "D", "x"), change(number + 1, "I", f"k{number}")]})
        with monkeypatch.context() as patch:
            patch.setattr(owners[name], name, broken)
            with suppress(CrashError):
                task.catch_up()
        assert len(crashes) == place
    task.catch_up()
    task.same()
    kept = lake.read(f"{task.control}/{EXCEPTIONS}", ["STATEMENT"]).num_rows
    assert kept == len(points)


@pytest.mark.slow
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


@pytest.mark.slow
def test_sources_of_one_target_under_soft_delete(spark: SparkSession, tmp_path: Path, database: str) -> None:
    """They come one after the other to the column that rules add; a truncate is about its own source."""
    target = PostgresTarget(spark, database, task="t", locations=locations)
    under = RulesApplier(target, Rules.of("soft_delete"), root=str(tmp_path), task="t")
    rules = VendorApplier(under, str(tmp_path))

    def apply(of: Relation, *images: Image) -> None:
        placed = [(n, oper, {"site": of.schema, **values} if values else {}) for n, oper, values in images]
        rules.apply(replace(change_table(spark, of, placed), name=of.table))

    apply(EU, (1, "I", {"id": 1, "v": "a"}), (2, "I", {"id": 2, "v": "b"}))
    apply(US, (3, "I", {"id": 1, "v": "c"}), (4, "D", {"id": 1}))
    apply(EU, (5, "T", {}), (6, "I", {"id": 3, "v": "d"}))
    with psycopg.connect(database) as db:
        found = db.execute('select site, id, right(_deleted, 2) from "all".item order by 1, 2').fetchall()
    assert found == [("eu", 3, None), ("us", 1, "04")]


CLOSED = """
create function closed() returns trigger language plpgsql as $$
begin
    if old.b <> 'closed' then raise exception 'it is open'; end if;
    return old;
end $$;
create trigger closed before delete on s.t for each row execute function closed()
"""


@pytest.mark.slow
def test_a_trigger_that_refuses_what_a_batch_comes_to_gets_single_changes(
    spark: SparkSession, tmp_path: Path, database: str
) -> None:
    on = Rules.of("strict", {"data_error": "log"})
    task = staged(spark, tmp_path, database, {"s.t": TableRules(on)})
    task.per_transaction = 1
    task.put({"s.t": [change(1, "I", "a", b="open"), change(2, "I", "b", b="open")]})
    task.catch_up()
    with psycopg.connect(database) as db:
        db.execute(CLOSED)
    task.put({"s.t": [change(3, "U", "a", b="closed"), change(4, "D", "a"), change(5, "D", "b")]})
    task.catch_up()
    assert [r[1] for r in task.rows("s.t")] == ["b"]
    assert _errors(task)[5] == "data_error: it is open"


def _errors(task: Rows) -> dict[int, str | None]:
    return {r["change_row_counter"]: r["result_error"] for r in lake.read(task.log).to_pylist()}


MODE_OF = {"t": "strict", "k": "archive", "u": "strict", "v": "upsert"}
NEVER = """
create function never() returns trigger language plpgsql as $$
begin
    if new.b = 'never' then raise exception 'said never'; end if;
    return new;
end $$;
create trigger never before insert or update on s.t for each row execute function never()
"""


@pytest.mark.slow
def test_rows_that_the_database_refuses_are_set_aside_alone(
    spark: SparkSession, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {f"s.{n}": TableRules(Rules.of(m, {"data_error": "log"})) for n, m in MODE_OF.items()}
    rules["s.v"] = TableRules(Rules.of("upsert"))
    task = staged(spark, tmp_path, database, rules)
    task.put({"s.t": [change(1, "I", "a", b="first")]})
    task.catch_up()
    with psycopg.connect(database) as db:
        db.execute("alter table s.t alter a type smallint, alter b set not null, add unique (b)")
        db.execute("alter table s.t add constraint good check (b <> 'bad')")
    task.put({"s.t": [change(2, "I", "b"), change(3, "I", "c", a=70000), change(4, "I", "d", b="bad"),
                      change(5, "I", "e", b="first"), change(6, "U", "a", b=None), change(7, "D", "x"),
                      change(8, "I", "f")], "s.k": [change(9, "I", "a")], "s.u": [change(10, "I", "z")],
              "s.v": [change(11, "I", "a")]})  # fmt: skip
    task.catch_up()
    assert [r[1:] for r in task.rows("s.t")] == [("a", 1, "first"), ("b", 2, "b"), ("f", 8, "f")]
    log = {
        r["change_row_counter"]: r for r in lake.read(task.log).to_pylist() if r["subscription_id"] == "s.t"
    }
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
    with psycopg.connect(database) as db:
        db.execute(NEVER)
        db.execute("alter table s.k add constraint good check (b is not null)")
        db.execute("alter table s.u add constraint good check (b <> 'no')")
        db.execute("alter table s.v add constraint good check (b <> 'bad')")
    one_by_one, run = set(), SingleChanges.run
    monkeypatch.setattr(SingleChanges, "run", lambda t: one_by_one.add(t.chunk.relation.table) or run(t))
    task.put({"s.t": [change(30, "U", "f", b="next"), change(31, "U", "b", b="f"), change(32, "U", "b", b="next"),
                      change(33, "U", "b", b="bad"), change(34, "U", "a", b="never"), change(35, "U", "a", b="g")],
              "s.k": [change(36, "I", "b"), change(37, "D", "a"), change(38, "U", "a"),
                      change(39, "I", "n", b="U+0\0")],
              "s.u": [change(40, "I", "x", b="U+0\0"), change(41, "I", "y")],
              "s.v": [change(42, "I", "x"), change(43, "I", "y", b="bad"), change(44, "I", "z", b="U+0\0")]})  # fmt: skip
    why = task.suspended("s.v")
    assert 'check constraint "good"' in why and sequence.make(TIME, 43) in why
    with psycopg.connect(database) as db:
        db.execute("alter table s.v drop constraint good")
    why = task.suspended("s.v")
    assert "b is beyond the target's string" in why and sequence.make(TIME, 44) in why
    assert [r[1:] for r in task.rows("s.v")] == [("a", 11, "a"), ("x", 42, "x"), ("y", 43, "bad")]
    assert [r[0] for r in task.logged("s.v")] == [11, 42, 43]
    # A unique value passes from one row to another; what a later change corrects was refused all the same.
    assert [r[1:] for r in task.rows("s.t")] == [("a", 35, "g"), ("b", 31, "f"), ("f", 30, "next")]
    log = {r["change_row_counter"]: r for r in lake.read(task.log).to_pylist()}
    assert {n: log[n]["result_row_count"] for n in range(30, 42) if n in log} == {
        30: 1, 31: 1, 32: 0, 33: 0, 34: 0, 35: 1, 36: 1, 37: 0, 38: 1, 39: 0, 40: 0, 41: 1,
    }  # fmt: skip
    words = {32: "unique constraint", 33: 'check constraint "good"', 34: "said never", 37: "check constraint",
             39: "beyond the target's string", 40: "beyond the target's string"}  # fmt: skip
    assert all(word in log[n]["result_error"] for n, word in words.items()), log
    assert [r[1] for r in task.rows("s.k")] == ["I", "I", "U"]
    assert one_by_one == {"s.t", "s.k", "s.v"}


@pytest.mark.slow
def test_a_table_without_key(spark: SparkSession, tmp_path: Path, database: str) -> None:
    """A bag of rows, NULLs and copies among them; somebody else takes one away, and has the table refuse rows:
    for what is in them alone, and for other rows."""
    bag = bags.Bag(Rules.of("strict", {"data_error": "log"}))
    target = PostgresTarget(spark, database, task="t")
    task = KeylessRows(spark, tmp_path, {"s.t": TableRules(bag.rules)}, target=target)
    task.url = database
    keyless.sided(task, bag, [bags.Change(1, "I", None, row) for row in bags.ROWS], "0")
    task.lose("s.t", "id = 'q'")
    bag.rows.pop(bags.ROWS[2])
    keyless.sided(task, bag, [replace(c, number=c.number + 10) for c in bags.history(7, 25)], "1")
    p, q = (0, "p", 1, "x"), (1, "q", 2, None)
    with psycopg.connect(database) as db:
        db.execute("alter table s.t alter a type smallint, add constraint good check (b <> 'bad')")

    def bad(number: int, old: Any, *new: Any) -> bags.Change:
        return bags.Change(number, "U" if old else "I", old, new)

    task.put({"s.t": [bags.Change(50, "T"), bad(51, None, *p), bad(52, None, *p), bad(53, None, 0, "r", 1, "bad"),
                      bad(54, p, 0, "p", 70000, "x"), bags.Change(55, "D", (0, "p", 70000, "x")),
                      bad(56, p, *q), bad(57, q, 9, "q", 2, "bad"), bags.Change(58, "D", q), bad(59, p, *q)]})  # fmt: skip
    task.catch_up(run="2")
    assert task.rows("s.t") == [q]
    with psycopg.connect(database) as db:
        db.execute("create unique index on s.t (id)")
    task.put({"s.t": [bad(60, None, *q), bad(61, q, 1, "s", 3, None), bad(62, None, *q), bad(63, None, 5, "s", 5, "s"),
                      bags.Change(64, "D", q), bad(65, (1, "s", 3, None), 6, "q", 6, "s")]})  # fmt: skip
    task.catch_up(run="3")
    assert task.rows("s.t") == [(6, "q", 6, "s")]
    log = {r["change_row_counter"]: r for r in lake.read(task.log).to_pylist()}
    assert {n: (log[n]["action_taken"], log[n]["result_row_count"]) for n in range(50, 66)} == {
        50: ("T", None), 51: ("I", 1), 52: ("I", 1), 53: ("I", 0), 54: ("M", 0), 55: ("D", 0), 56: ("M", 1),
        57: ("M", 0), 58: ("D", 1), 59: ("M", 1), 60: ("I", 0), 61: ("M", 1), 62: ("I", 1), 63: ("I", 0),
        64: ("D", 1), 65: ("M", 1),
    }  # fmt: skip
    words = {53: 'check constraint "good"', 54: "smallint out of range", 55: "delete_missing", 57: '"good"',
             60: "unique constraint", 63: "unique constraint"}  # fmt: skip
    assert {n for n in range(50, 66) if log[n]["result_error"]} == words.keys()
    assert all(word in log[n]["result_error"] for n, word in words.items()), log
