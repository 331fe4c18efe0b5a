"""The audited merge into a database, without Spark: its task gets Arrow batches; tables and key log are as the
row-by-row model has them, whoever else writes meanwhile."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tailrace.apply.target_mode import relation_of
from tailrace.engine.columns import AT, MASK, OPER, SEQ
from tailrace.engine.log_rows import KeyLogHeader
from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError, TargetLostError
from tailrace.keylog.control_tables import EXCEPTIONS, ApplyExceptions
from tailrace.keylog.key_log import SCHEMA
from tailrace.lake import delta as lake
from tailrace.model.change import Relation
from tailrace.model.types import schema_of
from tailrace.targets import multi_source as shared
from tailrace.targets.audit import Audit, KeyLogOutput
from tailrace.targets.auditor import batch_columns
from tailrace.targets.merge_result import MergeResult
from tailrace.targets.postgresql import layout as postgresql_layout
from tailrace.targets.postgresql.batch_merge import BatchMerge, Merged
from tailrace.targets.postgresql.connection import Database, locked_session
from tailrace.targets.postgresql.progress import ProgressTable
from tailrace.targets.postgresql.statements import MergeStatements
from tailrace.wire.keylog_values import KeyLogField

from ..spark.rules_model import RELATION, Change, Model, history, logged, nulled
from ..unit.test_audit import CASES, HEADERS, KEY, STORED, images, until_done

pytestmark = pytest.mark.db
TABLE = RELATION.table
EXTRA = pa.schema([(MASK, pa.binary()), (AT, pa.timestamp("us", "UTC"))])
NAMES = dict(zip(STORED.names, (SEQ, OPER, MASK, AT), strict=False))


class Table:
    """A table of a task in a database, its key log, and the model for them."""

    def __init__(
        self,
        root: Path,
        database: str,
        mode: str,
        on: Mapping[str, str],
        *,
        of: Relation = RELATION,
        name: str = "t",
        at: shared.TargetLocation | None = None,
    ) -> None:
        self.root, self.rules, self.log = root, Rules.of(mode, on), str(root / "keylog")
        self.url, self.database = database, Database.of(database)
        self.model = Model(mode, self.rules.on)
        self.relation, self.name, self.at = (
            relation_of(of, self.rules),
            name,
            at or shared.TargetLocation(of.table),
        )
        self.progress = ProgressTable(self.database, name, lambda _: self.at)
        self.flagged = 0
        self.memory: int | None = None
        self.plain = False
        with locked_session(self.database, name, of.table) as on_:
            postgresql_layout.create(on_, self.database, self.progress, self.relation)
        lake.create(self.log, SCHEMA)

    def apply(self, changes: Sequence[Change]) -> MergeResult:
        merged = self.merge(changes)
        assert merged is not None and merged[1] is not None
        done = merged[1]
        if done.parts:
            lake.commit(self.log, list(done.parts), progress={})
        self.flagged += sum(n for s, (n, _) in done.tally.items() if self.rules.outcome(s).flagged)
        return done

    def merge(self, changes: Sequence[Change]) -> Merged | None:
        rows = rows_of(changes)
        if self.memory is None:
            random.Random(1).shuffle(rows)
        task = self.task(changes[-1].number, changes[0].number - 1)
        columns = batch_columns(EXTRA, schema_of(self.relation.columns))
        whole = pa.RecordBatch.from_pylist(rows, columns)  # what a row lacks is NULL
        return task([whole.slice(begin, 3) for begin in range(0, len(rows), 3)])

    def task(self, upto: int, after: int) -> BatchMerge:
        fields = tuple(KeyLogField(c.name, c.type) for c in RELATION.columns)
        ordinals = tuple(range(HEADERS, HEADERS + 4))
        table = self.relation.table
        header = KeyLogHeader("1", "g", table, 0, self.flagged, 0, fields, ordinals, KEY, "<Dest>x</Dest>")
        exceptions = ApplyExceptions(str(self.root), "task")
        audit = Audit(table, self.rules, exceptions, header, KeyLogOutput(self.log, SCHEMA, header, "all"))
        audit = replace(audit, plain=self.plain, keylog=None if self.plain else audit.keylog)
        with locked_session(self.database, self.name, table) as on:
            reached = self.progress.read(on, table)
        assert reached is not None
        made = (self.database, self.name, False, self.at, reached, upto, self.relation, audit, EXTRA)
        return BatchMerge(*made, self.memory)

    def rows(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as session:
            table = self.relation.table
            own = f"{self.progress.target(table)} WHERE {self.progress.partition_condition(table)}"
            return sorted(session.execute(f"SELECT * FROM {own}".encode()).fetchall(), key=repr)

    def logged(self) -> list[dict[str, Any]]:
        return sorted(lake.read(self.log).to_pylist(), key=lambda r: r["keylog_sort"])

    def same(self, seed: object) -> None:
        assert self.rows() == sorted(self.model.state(), key=repr), seed
        assert logged(self.logged()) == self.model.log, seed


def rows_of(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """The rows of changes as a merge gets them."""
    return [{NAMES.get(name, name): v for name, v in row.items()} for c in changes for row in images(c)]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "on"), CASES[::2], ids=str)
def test_any_history_ends_as_row_by_row(
    tmp_path: Path, database: str, mode: str, on: Mapping[str, str]
) -> None:
    seed = random.randrange(10**6)
    changes = nulled(history(seed, 20, 10, truncate=seed % 3 > 0))
    first = len(changes) // 4
    cut = random.Random(seed).randrange(first + 1, len(changes))
    table = Table(tmp_path, database, mode, on)
    for some in (changes[:first], changes[first:cut], changes[cut:]):
        until_done(table, some)
        table.same(f"seed {seed}, cut {cut}")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "on"), CASES[1::3], ids=str)
def test_changes_that_memory_does_not_hold_end_as_row_by_row(
    tmp_path: Path, database: str, mode: str, on: Mapping[str, str]
) -> None:
    seed = random.randrange(10**6)
    changes = nulled(history(seed, 10, 10, truncate=seed % 3 > 0))
    table = Table(tmp_path, database, mode, on)
    table.memory = 9000
    until_done(table, changes)
    table.same(f"seed {seed}")


def test_changes_in_no_order_that_memory_does_not_hold_are_not_merged(tmp_path: Path, database: str) -> None:
    table = Table(tmp_path, database, "upsert", {})
    table.memory = 300
    assert table.merge([change(n, "I", f"k{n}") for n in (5, 4, 3, 2, 1, 9)]) is None
    assert table.rows() == []


NUMERIC = RELATION.with_columns(
    [replace(c, kind="numeric", source_type="numeric") if c.name == "id" else c for c in RELATION.columns]
)
NUMBERS = {"p": "1", "q": "2", "r": "3", "s": "4"}


def spelled(change: Change, dice: random.Random) -> Change:
    """A change whose keys are numbers, each with any of its texts."""

    def text(key: str) -> str:
        return NUMBERS[key] + dice.choice(["", ".0", ".00"])

    values = {n: text(v) if n == "id" else v for n, v in change.values.items()}
    return replace(change, values=values, old=change.old and (change.old[0], text(change.old[1])))


@pytest.mark.parametrize(("mode", "on"), CASES[::3], ids=str)
def test_keys_that_the_database_holds_to_be_equal_are_one(
    tmp_path: Path, database: str, mode: str, on: Mapping[str, str]
) -> None:
    dice = random.Random(seed := random.randrange(10**6))
    changes = history(seed, 8, 12, truncate=seed % 3 > 0)
    table = Table(tmp_path, database, mode, on, of=NUMERIC)
    first = len(changes) // 3
    for some in (changes[:first], changes[first:]):
        for one in some:
            table.model.apply(one)
        table.apply([spelled(one, dice) for one in some])
        letters = {number: letter for letter, number in NUMBERS.items()}
        rows = [(lane, letters[str(int(id))], *rest) for lane, id, *rest in table.rows()]
        assert sorted(rows, key=repr) == sorted(table.model.state(), key=repr), seed
        assert logged(table.logged()) == table.model.log, seed


@pytest.mark.parametrize("mode", ["upsert", "soft_delete"])
def test_an_equal_key_has_its_newest_text(tmp_path: Path, database: str, mode: str) -> None:
    table = Table(tmp_path, database, mode, {}, of=NUMERIC)
    table.apply([change(1, "I", "1.0"), change(2, "I", "2.0")])
    moved = replace(change(5, "U", "2.00"), old=(0, "2.0"))
    done = table.apply([change(3, "D", "1.0"), change(4, "I", "1.00"), moved])
    assert not any(Rules.of(mode).outcome(s).flagged for s in done.tally)
    assert [(str(r[1]), r[2], r[3]) for r in table.rows()] == [("1.00", 4, "1.00"), ("2.00", 5, "2.00")]
    again = [change(6, "D", "1.00"), change(7, "I", "1.0"), change(8, "D", "1.0"), change(9, "I", "1.000")]
    table.apply(again)
    assert [(str(r[1]), r[2]) for r in table.rows()] == [("1.000", 9), ("2.00", 5)]


def change(number: int, oper: str, key: str) -> Change:
    rest = {} if oper == "D" else {"a": number, "b": key}
    return Change(number, oper, None, {"lane": 0, "id": key} | rest)


START = [change(1, "I", "p"), change(2, "I", "q"), change(3, "I", "r")]


def test_a_row_that_somebody_takes_away_meanwhile_is_counted_as_gone(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the keys and the write: the transaction begins again."""
    table = Table(tmp_path, database, "strict", {})
    table.apply(START)
    real, attempts = MergeStatements.upsert, []

    def raced(to: MergeStatements, *, partial: bool) -> None:
        if not attempts:
            with psycopg.connect(database) as other:
                other.execute("DELETE FROM s.t WHERE id = 'q'")
                other.execute("INSERT INTO s.t VALUES (0, 'new', 0, 'theirs')")
        attempts.append(1)
        real(to, partial=partial)

    monkeypatch.setattr(MergeStatements, "upsert", raced)
    done = table.apply([change(4, "U", "p"), change(5, "U", "q"), change(6, "I", "new"), change(7, "D", "r")])
    assert len(attempts) == 2
    assert {s: n for s, (n, _) in done.tally.items()} == {"U0": 1, "I1": 1}
    assert table.rows() == [(0, "new", 0, "theirs"), (0, "p", 4, "p")]
    counts = [(r["change_row_type"], r["result_row_count"]) for r in table.logged()[3:]]
    assert counts == [("U", 1), ("U", 0), ("I", 0), ("D", 1)]


def test_a_connection_that_dies_at_the_commit_leaves_nothing(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path, database, "strict", {})
    real = ProgressTable.advance

    def dies(progress: ProgressTable, on: Any, *given: Any) -> int:
        done = real(progress, on, *given)
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", (on.info.backend_pid,))
        return done

    with monkeypatch.context() as patch:
        patch.setattr(ProgressTable, "advance", dies)
        with pytest.raises(TargetLostError, match="terminat"):
            table.apply(START)
    assert table.rows() == []
    table.apply(START)
    assert [r[1] for r in table.rows()] == ["p", "q", "r"]


def test_a_crash_between_exceptions_and_transaction_leaves_no_change_out(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path, database, "strict", {})
    table.apply(START)
    changes = [change(4, "U", "x"), change(5, "D", "p")]

    def dies(*_: Any) -> int:
        raise KeyError

    with monkeypatch.context() as patch:
        patch.setattr(ProgressTable, "advance", dies)
        with pytest.raises(KeyError):
            table.apply(changes)
    assert [r[1] for r in table.rows()] == ["p", "q", "r"]
    table.apply([*changes, change(6, "U", "y")])  # it comes again, with more
    assert [r[1] for r in table.rows()] == ["q", "r"]
    kept = lake.read(f"{tmp_path}/{EXCEPTIONS}", ["STATEMENT"])["STATEMENT"].to_pylist()
    assert sorted(s.partition(" id=")[2][:3] for s in kept) == ['"x"', '"y"']


def test_a_task_that_runs_again_changes_nothing_and_its_note_is_there(tmp_path: Path, database: str) -> None:
    table = Table(tmp_path, database, "upsert", {})
    task = table.task(3, 0)
    table.apply(START)
    rows = rows_of(START)
    columns = batch_columns(EXTRA, schema_of(RELATION.columns))
    merged = task([pa.RecordBatch.from_pylist(rows, columns)])
    assert merged is not None and merged[1] is None
    with psycopg.connect(database, autocommit=True) as on:
        ((name, upto, note),) = table.progress.notes(on)
    assert (name, upto) == (TABLE, 3)
    words = json.loads(note)
    assert (words["end"], words["flagged"], words["sort"]) == (3, 0, 3)
    assert len(words["files"]) == 1
    late = replace(task, end=9)
    with pytest.raises(ApplyError, match="another process applied to this table meanwhile"):
        late([pa.RecordBatch.from_pylist(rows, columns)])


def test_a_batch_that_ends_at_its_first_change_leaves_all_as_it_was(tmp_path: Path, database: str) -> None:
    table = Table(tmp_path, database, "strict", {"delete_missing": "stop"})
    table.apply(START)
    done = table.apply([change(4, "D", "x"), change(5, "I", "y")])
    assert done.ends is not None
    assert (done.end, done.ends[1:]) == (None, ("delete_missing", "stop"))
    assert [r[1] for r in table.rows()] == ["p", "q", "r"]
    with locked_session(table.database, "t", TABLE) as on:
        reached = table.progress.read(on, TABLE)
    assert reached is not None and reached.number == 3
