"""Batches that a database refuses, one change at a time: tables and key log are as the row-by-row model has
them, and every refused change has the server's message."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.errors import ConstraintError
from tailrace.targets.merge_result import MergeResult
from tailrace.targets.postgresql.chunk_merge import ChunkMerge

from ..spark.rules_model import CHECK, RELATION, Change, Model, RefusedError, held, history, nulled, spoiled
from ..unit.test_audit import CASES, until_done
from .test_audit_postgresql import NUMBERS, NUMERIC, Table, change, spelled
from .test_shared_postgresql import in_lane, part

pytestmark = pytest.mark.db
NARROW = f"alter table s.t alter a type smallint, alter b type varchar(8), alter b set not null, add check ({CHECK})"


class Tried(Model):
    """A table that refuses rows when they are written, and not before."""

    def judge(self, oper: str, values: Mapping[str, Any], keys: Sequence[Any]) -> None:
        if None in keys:
            raise RefusedError


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database refuses every batch as a whole."""

    def refuse(*_: Any) -> None:
        raise psycopg.errors.CheckViolation("refused")

    monkeypatch.setattr(ChunkMerge, "merge", refuse)


@pytest.mark.slow
@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(("mode", "on"), CASES[::2], ids=str)
def test_single_changes_end_as_row_by_row(
    tmp_path: Path, database: str, mode: str, on: Mapping[str, str]
) -> None:
    seed = random.randrange(10**6)
    changes = nulled(history(seed, 8, 10, truncate=seed % 3 > 0))
    table = Table(tmp_path, database, mode, on)
    for some in (changes[: len(changes) // 4], changes[len(changes) // 4 :]):
        until_done(table, some)
        table.same(f"seed {seed}")


@pytest.mark.slow
@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(("mode", "memory"), [("strict", None), ("upsert", 9000), ("soft_delete", None)])
def test_refused_changes_are_logged_and_later_ones_find_what_the_others_leave(
    tmp_path: Path, database: str, db: psycopg.Connection, mode: str, memory: int | None
) -> None:
    seed = random.randrange(10**6)
    table = Table(tmp_path, database, mode, {"data_error": "log"})
    table.memory, table.model = memory, Tried(mode, table.rules.on, holds=held)
    db.execute(NARROW.encode())
    until_done(table, spoiled(history(seed, 4, 12, truncate=True)))
    table.same(f"seed {seed}")


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize("mode", ["strict", "soft_delete"])
def test_equal_keys_with_other_texts_are_one_key(tmp_path: Path, database: str, mode: str) -> None:
    dice = random.Random(seed := random.randrange(10**6))
    changes = history(seed, 4, 12)
    table = Table(tmp_path, database, mode, {}, of=NUMERIC)
    for one in changes:
        table.model.apply(one)
    table.apply([spelled(one, dice) for one in changes])
    letters = {number: letter for letter, number in NUMBERS.items()}
    rows = [(lane, letters[str(int(id))], *rest) for lane, id, *rest in table.rows()]
    assert sorted(rows, key=repr) == sorted(table.model.state(), key=repr), seed


@pytest.mark.usefixtures("refused")
def test_a_truncate_leaves_rows_of_other_sources_alone(tmp_path: Path, database: str) -> None:
    mine, other = (part(tmp_path, database, lane) for lane in (0, 1))
    other.apply(in_lane([change(1, "I", "p")], 1))
    done = mine.apply(in_lane([change(1, "I", "a"), Change(2, "T", None, {}), change(3, "I", "b")], 0))
    assert isinstance(done, MergeResult) and [r[1] for r in (*mine.rows(), *other.rows())] == ["b", "p"]
    outcome = done.outcome
    assert (outcome.inserted, outcome.updated, outcome.deleted, outcome.plan) == (1, 0, 0, "replace_all")


def test_a_unique_value_passes_from_one_row_to_another(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    table = Table(tmp_path, database, "strict", {"data_error": "log"})
    table.apply([change(1, "I", "x"), change(2, "I", "y")])
    db.execute("alter table s.t add unique (b)")
    swap = [updated(3, "x", "free"), updated(4, "y", "x"), updated(5, "x", "y")]
    done = table.apply(swap)
    assert isinstance(done, MergeResult) and not done.tally
    assert [(r[1], r[3]) for r in table.rows()] == [("x", "y"), ("y", "x")]
    outcome = done.outcome
    assert (outcome.inserted, outcome.updated, outcome.deleted, outcome.plan) == (0, 2, 0, "upsert")


def test_the_key_log_has_the_servers_message(tmp_path: Path, database: str, db: psycopg.Connection) -> None:
    table = Table(tmp_path, database, "strict", {"data_error": "log"})
    db.execute("alter table s.t add constraint good check (b <> 'bad')")
    table.apply([change(1, "I", "x"), change(2, "I", "bad"), change(3, "D", "none"), change(4, "I", "y")])
    said = {r["change_row_counter"]: r["result_error"] for r in table.logged()}
    assert said == {
        1: None,
        2: 'data_error: new row for relation "t" violates check constraint "good"',
        3: "delete_missing: the row to be deleted does not exist",
        4: None,
    }
    assert [r[1] for r in table.rows()] == ["x", "y"]


def test_a_policy_of_stop_ends_the_batch_before_the_refused_change(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    table = Table(tmp_path, database, "upsert", {})
    db.execute("alter table s.t add check (b <> 'bad')")
    done = table.apply([change(1, "I", "x"), change(2, "I", "bad"), change(3, "I", "y")])
    assert isinstance(done, MergeResult) and done.ends is not None
    assert (done.end, done.ends[1:]) == (1, ("data_error", "stop"))
    assert [r[1] for r in table.rows()] == ["x"]
    with psycopg.connect(database) as on:
        assert on.execute("select upto from tailrace.tailrace_progress").fetchall() == [(1,)]


def test_a_reference_that_waits_for_the_end_of_the_transaction_may_come_first(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    """Unless it refuses the batch in the end: then each change is checked."""
    of = RELATION.with_columns([replace(c, key=c.name == "id") for c in RELATION.columns])
    table = Table(tmp_path, database, "strict", {"data_error": "log"}, of=of)
    db.execute("alter table s.t add foreign key (b) references s.t deferrable initially deferred")
    db.execute("alter table s.t add check (a <> 3)")
    rows = [refers(1, "x", "y"), refers(2, "y", "y"), refers(3, "z", "y")]
    table.apply(rows)
    assert [r[1] for r in table.rows()] == ["x", "y"]
    table.apply([refers(4, "u", "none"), refers(5, "v", "x")])
    assert [r[1] for r in table.rows()] == ["v", "x", "y"]


def test_a_row_that_fits_no_partition_is_a_data_error(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    db.execute("create schema s")
    db.execute(
        "create table s.t (lane int, id text, a int, b text, primary key (lane, id)) partition by list (lane)"
    )
    db.execute("create table s.t0 partition of s.t for values in (0)")
    table = Table(tmp_path, database, "strict", {"data_error": "log"})
    other = replace(change(2, "I", "y"), values={"lane": 1, "id": "y", "a": 2, "b": "y"})
    table.apply([change(1, "I", "x"), other, change(3, "I", "z")])
    assert [r[1] for r in table.rows()] == ["x", "z"]
    assert "no partition" in table.logged()[1]["result_error"]


def test_a_key_that_is_no_value_of_the_targets_type_is_a_data_error(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    table = Table(tmp_path, database, "strict", {"data_error": "log"})
    db.execute("alter table s.t alter id type uuid using id::uuid")
    good = "00000000-0000-0000-0000-00000000000a"
    moved = replace(change(4, "U", "q"), old=(0, good))
    table.apply([change(1, "I", good)])
    table.apply([change(2, "I", "p"), change(3, "U", good), moved, change(5, "D", "q")])
    assert [(str(r[1]), r[2]) for r in table.rows()] == [(good, 3)]
    said = {r["change_row_counter"]: r["result_error"] for r in table.logged()}
    wrong = 'data_error: invalid input syntax for type uuid: "{}"'
    assert said == {1: None, 2: wrong.format("p"), 3: None, 4: wrong.format("q"), 5: wrong.format("q")}


def test_a_batch_without_rules_names_the_refused_change(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    table = Table(tmp_path, database, "upsert", {})
    db.execute("alter table s.t add check (b <> 'bad')")
    table.plain = True
    with pytest.raises(ConstraintError, match="violates check constraint") as told:
        table.apply([change(1, "I", "x"), change(2, "I", "bad")])
    assert "0000000000000000002" in str(told.value.where)
    assert table.rows() == []


def updated(number: int, key: str, b: str) -> Change:
    return Change(number, "U", None, {"lane": 0, "id": key, "a": number, "b": b})


def refers(number: int, key: str, to: str) -> Change:
    return Change(number, "I", None, {"lane": 0, "id": key, "a": number, "b": to})


def test_a_text_that_no_database_holds_does_not_hinder_the_others(
    tmp_path: Path, database: str, db: psycopg.Connection
) -> None:
    table = Table(tmp_path, database, "upsert", {"data_error": "log"})
    db.execute("alter table s.t add check (b <> 'bad')")
    table.apply([refers(1, "x", "x"), refers(2, "y", "bad"), refers(3, "z", "U+0\0"), refers(4, "u", "u")])
    assert [r[1] for r in table.rows()] == ["u", "x"]
