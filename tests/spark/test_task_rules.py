"""A task's tables under rules, with one key log: side by side, interrupted anywhere, suspended, by transaction."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType, Schema

from tailrace.apply.merger import Merger
from tailrace.apply.task_rules import TableRules, TaskRules
from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError
from tailrace.keylog.control_tables import EXCEPTIONS, ApplyExceptions
from tailrace.lake import delta as lake
from tailrace.model import sequence
from tailrace.model.positions import order_key
from tailrace.model.types import schema_of
from tailrace.state import commands, ledger, lifecycle
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.parts import Parts

from .rules_model import RELATION, Change
from .rules_task import TIME, CrashError, Staged, by_shards, every_mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def change(number: int, oper: str, key: str, **values: Any) -> Change:
    row = {"lane": 0, "id": key} | ({} if oper == "D" else {"a": number, "b": key} | values)
    return Change(number, oper, None, row)


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Makes the n-th durable write of this process fail, before it happens; -1: none."""
    armed = {"left": -1}

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            armed["left"] -= 1
            if armed["left"] == -1:
                raise CrashError
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(lake, "commit", guarded(lake.commit))
    monkeypatch.setattr(DeltaTarget, "merge", guarded(DeltaTarget.merge))

    def arm(at: int) -> None:
        armed["left"] = at if at >= 0 else -(10**9)

    arm(-1)
    yield arm


ON = {"delete_missing": "log then stop after 1000"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "each", "points"),
    [(False, False, [0, 1, 1, 2]), (True, False, [0, 1, 2, 1, 2]), (False, True, [0, 1, 3, 4, 6])],
    ids=["in one task", "by shards", "transaction by transaction"],
)
def test_a_crash_between_any_two_writes_is_made_good(
    spark: SparkSession,
    tmp_path: Path,
    crash_at: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    jobs: bool,
    each: bool,
    points: list[int],
) -> None:
    """ApplyExceptions, target, key log, applied: each slice dies before another one of them."""
    if jobs:
        by_shards(monkeypatch)
    task = Staged(spark, tmp_path, {"s.t": TableRules(Rules.of("strict", ON), each)}, per_transaction=2)
    crashes = 0
    for place, point in enumerate(points):
        number, kept = 10 * (place + 1), f"k{place}"
        first = [Change(number - 1, "T", None, {})] if place % 2 else []
        task.store({"s.t": [*first, change(number, "I", kept), change(number + 1, "D", "gone"),
                            change(number + 2, "U", kept, b="new"), change(number + 3, "I", kept)]})  # fmt: skip
        crash_at(point)
        with suppress(CrashError):
            task.catch_up(run=str(place))
            crashes -= 1
        crashes += 1
        crash_at(-1)
        if place % 2:  # more changes come before it is started again
            task.store({"s.t": [change(number + 5, "D", kept)]})
    task.catch_up(run="last")
    task.same()
    assert crashes == len(points)
    counted = ApplyExceptions(task.control, "t").counts("s.t", task.target.progress("s.t"), ON)
    assert counted == {"delete_missing": len(points)}
    kept = lake.read(f"{task.control}/{EXCEPTIONS}", ["ERROR"])["ERROR"].to_pylist()
    assert sorted(kept) == sorted(
        f"{what}, change_seq {sequence.make(TIME, n + 10 * (p + 1))}"
        for p in range(len(points))
        for n, what in (
            (1, "delete_missing: the row to be deleted does not exist"),
            (3, "insert_exists: the row to be inserted, or the new key of an update, already exists"),
        )
    )


@pytest.mark.slow
def test_a_limit_suspends_one_table_and_its_changes_wait(spark: SparkSession, tmp_path: Path) -> None:
    limited = Rules.of("strict", {"delete_missing": "log then suspend after 2"})
    task = Staged(spark, tmp_path, {"s.t": TableRules(limited), "s.u": TableRules(Rules.of("strict"))})
    lost = [change(n, "D", "x") for n in (3, 6, 9)]
    task.store({"s.t": [change(1, "I", "a"), lost[0]], "s.u": [change(2, "I", "u")]})
    task.catch_up()
    task.store(
        {"s.t": [lost[1], change(7, "I", "b"), lost[2], change(11, "I", "c")], "s.u": [change(12, "I", "v")]}
    )
    done = task.catch_up()
    why = f"delete_missing at change_seq {sequence.make(TIME, 9)}: the row to be deleted does not exist"
    assert {one.table: one.suspended for one in done} == {
        "s.t": why,
        "s.u": "",
    }
    held = lifecycle.of_task(task.orders, {}).waiting["s.t"]
    assert (held.held, held.why) == ("suspended", why)
    assert [r[1] for r in task.rows("s.t")] == ["a", "b"]
    assert [r[1] for r in task.rows("s.u")] == ["u", "v"]
    reached = {r["table"]: r["upto"] for r in ledger.read_applied(f"{task.control}/applied")}
    assert (reached["s.t"], reached["s.u"]) == (7, 12)
    task.store({"s.u": [change(14, "D", "u")]})
    assert [one.table for one in task.catch_up()] == ["s.u"]
    commands.give(task.orders, commands.RESUME, ["s.t"], why="", who="me")
    assert [one.table for one in task.catch_up()] == ["s.t"]
    task.same()


@pytest.mark.slow
def test_a_crash_before_the_key_log_suspends_no_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would catch up with the key log of one that is suspended, and a new baseline ends the wait."""
    limited = Rules.of("strict", {"delete_missing": "log then suspend after 1"})
    task = Staged(spark, tmp_path, {"s.t": TableRules(limited)})
    task.store({"s.t": [change(1, "I", "a")]})
    task.catch_up()
    task.store({"s.t": [change(n, "D", "x") for n in (2, 3)]})
    with monkeypatch.context() as patch:
        patch.setattr(TaskRules, "flush", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            task.catch_up(run="2")
    assert lifecycle.of_task(task.orders, {}).waiting == {}
    (done,) = task.catch_up(run="3")
    assert done.suspended.startswith("delete_missing at change_seq")
    assert list(lifecycle.of_task(task.orders, {}).waiting) == ["s.t"]
    assert [n for n, *_ in task.logged("s.t")] == [1, 2]


@pytest.mark.slow
def test_what_a_crash_kept_from_the_record_is_recorded_with_the_versions_that_have_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two transactions are in the target, and neither in the key log; then somebody else commits."""
    limited = Rules.of("strict", {"delete_missing": "suspend"})
    task = Staged(spark, tmp_path, {"s.t": TableRules(limited, True)}, per_transaction=1)
    task.store({"s.t": [change(2, "I", "a")]})
    task.catch_up()
    task.put({"s.t": [change(4, "I", "b"), change(5, "I", "c"), change(6, "D", "x")]})
    with monkeypatch.context() as patch:
        patch.setattr(TaskRules, "flush", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            task.catch_up(run="2")
    path = task.target.path("s.t")  # type: ignore[attr-defined]
    task.lose("s.t", "id = 'a'")
    versions = {}
    for version in range(order_key(lake.version(path)) + 1):
        versions[lake.reached(DeltaTable(path, version=version), "t")] = version
    by_shards(monkeypatch)
    done = task.catch_up(run="3")
    assert [(one.upto, one.version, bool(one.suspended)) for one in done] == [
        (5, versions[5], False),
        (5, versions[5], True),
    ]


def test_what_a_crash_kept_from_the_key_log_is_logged_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several transactions, however often it happens; those after them go on by one task each."""
    task = Staged(spark, tmp_path, {"s.t": TableRules(Rules.of("strict"), True)}, per_transaction=1)
    task.store({"s.t": [change(1, "I", "a")]})
    task.catch_up()
    task.store({"s.t": [change(n, "I", key) for n, key in enumerate("bcd", 2)]})
    with monkeypatch.context() as patch:
        patch.setattr(TaskRules, "flush", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            task.catch_up(run="2")
    task.store({"s.t": [change(n, "I", key) for n, key in enumerate("ef", 5)]})
    merges, merge = [], DeltaTarget.merge
    with monkeypatch.context() as patch:

        def dies(self: DeltaTarget, batches: Any) -> Any:
            merges.append([b.range.end for b in batches])
            if len(merges) == 3:
                raise CrashError
            return merge(self, batches)

        patch.setattr(DeltaTarget, "merge", dies)
        with pytest.raises(CrashError):
            task.catch_up(run="3")
    assert merges == [[4], [5], [6]]
    task.catch_up(run="4")
    task.same()


@pytest.mark.slow
@pytest.mark.parametrize("by_task", [True, False])
def test_transaction_by_transaction_comes_to_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_task: bool
) -> None:
    """In every mode, over histories with truncates and targets that somebody else has written to."""
    seed = random.randrange(10**6)
    if not by_task:
        monkeypatch.setattr(Merger, "_memory", 1)
        by_shards(monkeypatch)
    rules, changes = every_mode(seed, ["batch", "transaction"])
    cut = 5 * len(rules)
    task = Staged(spark, tmp_path, rules, per_transaction=cut)
    task.store({t: [c for c in many if c.number < cut] for t, many in changes.items()})
    task.catch_up()
    task.disturb(2)
    task.store({t: [c for c in many if c.number >= cut] for t, many in changes.items()})
    done = Counter(one.table for one in task.catch_up())
    task.same(f"seed {seed}")
    assert task.catch_up() == []
    assert {r["table"] for r in ledger.read_applied(f"{task.control}/applied")} == {None, *rules}
    assert {n for t, n in done.items() if t.endswith("batch")} == {1}
    assert {n for t, n in done.items() if t.endswith("transaction")} == {2}


@pytest.mark.slow
def test_changes_that_the_target_cannot_hold_are_set_aside_alone(spark: SparkSession, tmp_path: Path) -> None:
    modes = {"s.t": "upsert", "s.k": "archive"}
    task = Staged(
        spark, tmp_path, {t: TableRules(Rules.of(m, {"data_error": "log"})) for t, m in modes.items()}
    )
    fields = [
        ("lane", "integer", True),
        ("id", "string", True),
        ("a", "integer", True),
        ("b", "string", False),
    ]
    schema = Schema([Field(name, PrimitiveType(kind), nullable) for name, kind, nullable in fields])
    table = DeltaTable.create(task.target.path("s.t"), schema)
    table.alter.add_constraint({"positive": "a > 0"})
    # Both are computed from the same; a * a is beyond an int for a large a.
    table.alter.add_constraint({"small": "a * a < 1000000"})
    table.alter.add_constraint({"even": "a * a % 2 = 0 or a < 100"})
    task.put({"s.t": [change(1, "I", "a"), change(2, "I", "c", b=None), change(3, "U", "a", a=-5),
                     change(4, "U", "a", b="new"), change(5, "D", "c"), change(6, "I", "e")],
              "s.k": [change(7, "I", "a")]})  # fmt: skip
    task.catch_up()
    assert task.rows("s.t") == [(0, "a", 4, "new"), (0, "e", 6, "e")]
    assert task.logged("s.t") == [
        (1, "I", "I", 1, 0, False), (2, "I", "I", 0, 1, True), (3, "U", "U", 0, 2, True),
        (4, "U", "U", 1, 2, False), (5, "D", "\0", 0, 2, False), (6, "I", "I", 1, 2, False),
    ]  # fmt: skip
    kept = lake.read(f"{task.control}/{EXCEPTIONS}", ["ERROR"])["ERROR"].to_pylist()
    assert sorted(e.split(",")[0] for e in kept if e.startswith("data_error")) == [
        "data_error: CHECK positive refuses it", "data_error: NULL in b",
    ]  # fmt: skip
    DeltaTable(task.target.path("s.k")).alter.add_constraint({"b": "b is not null"})
    partly = [Change(8, "U", None, {"lane": 0, "id": "e", "b": "w"})]
    large = change(12, "U", "a", a=100_000)
    task.put({"s.t": [*partly, large], "s.k": [change(10, "D", "a"), change(11, "U", "a")]})
    task.catch_up()
    assert task.rows("s.t") == [(0, "a", 4, "new"), (0, "e", 6, "w")]
    assert [r[3] for r in task.logged("s.t")[6:]] == [1, 0]
    kept = lake.read(f"{task.control}/{EXCEPTIONS}", ["ERROR"])["ERROR"].to_pylist()
    assert sum("cannot be computed for it" in e for e in kept) == 1
    assert [r[1] for r in task.rows("s.k")] == ["I", "U"]
    assert [r[3] for r in task.logged("s.k")] == [1, 0, 1]
    task.rules = {"s.t": TableRules(Rules.of("upsert"))}  # which stops
    bad = change(15, "U", "e", a=100_000)
    task.put({"s.t": [change(14, "D", "a"), bad, change(16, "D", "e")]})
    why = task.suspended("s.t")
    assert why.startswith("data_error: CHECK even cannot be computed for it")
    assert sequence.make(TIME, 15) in why
    assert (task.rows("s.t"), task.logged("s.t")[-1][0]) == ([(0, "e", 6, "w")], 14)


def test_a_stop_leaves_nothing_out(spark: SparkSession, tmp_path: Path) -> None:
    """What came before it, and the other tables, are applied and logged; a mended target lets it go on."""
    stopping = Rules.of("strict", {"update_missing": "stop"})
    task = Staged(spark, tmp_path, {"s.t": TableRules(stopping), "s.u": TableRules(Rules.of("strict"))})
    task.put(
        {"s.t": [change(1, "I", "a"), change(3, "U", "x"), change(5, "I", "b")], "s.u": [change(2, "I", "u")]}
    )
    for _ in range(2):
        with pytest.raises(ApplyError, match="the row to be updated does not exist") as caught:
            task.catch_up()
        assert sequence.make(TIME, 3) in str(caught.value)
    assert [r[1] for r in task.rows("s.t")] == ["a"] and [r[1] for r in task.rows("s.u")] == ["u"]
    assert [len(task.logged(t)) for t in ("s.t", "s.u")] == [1, 1]
    row = pa.table({"lane": [0], "id": ["x"], "a": [0], "b": ["mended"]})
    write_deltalake(task.target.path("s.t"), row.cast(schema_of(RELATION.columns)), mode="append")
    task.catch_up()
    assert [r[1:3] for r in task.rows("s.t")] == [("a", 1), ("b", 5), ("x", 3)]
    assert [r[0] for r in task.logged("s.t")] == [1, 3, 5]


@pytest.mark.parametrize(
    ("mode", "each"),
    [("upsert", False), ("strict", True), ("soft_delete", False)],
    ids=["upsert by batch", "strict by transaction", "soft delete by batch"],
)
def test_changes_that_come_again_after_a_baseline_are_logged_once(
    spark: SparkSession, tmp_path: Path, mode: str, each: bool
) -> None:
    """The rows of the new baseline are of change 1; changes 2 to 4 have been applied and logged before it."""
    task = Staged(spark, tmp_path, {"s.t": TableRules(Rules.of(mode), each)})
    task.store({"s.t": [change(1, "I", "p")]})
    task.catch_up()
    before = lake.read(task.target.path("s.t"))  # type: ignore[attr-defined]
    task.store({"s.t": [change(2, "U", "p", b="new"), change(3, "I", "q"), change(4, "D", "q")]})
    task.catch_up()
    task.target.load(task.relation("s.t"), Parts(["all"], lambda _: before.to_batches()), 1)
    task.store({"s.t": [change(5, "I", "r"), change(6, "D", "p")]})
    plans = [one.plan for one in task.catch_up(run="2")]
    task.same()
    assert plans
    assert set(plans) == {"task_local"}
    task.catch_up(run="3")
    task.same()
