"""Batches of many tables: one task each, side by side, and one that fails does not hold up the others."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tailrace.apply.task_rules import TableRules
from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError, LimitReachedError
from tailrace.keylog.key_log import KeyLog
from tailrace.lake import delta as lake
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.merge_result import MergeResult

from .rules_model import Change, history
from .rules_task import Staged, interleaved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
TABLES = [f"s.t{n}" for n in range(6)]


class Watched(DeltaTarget):
    """A target that tells what it did with the tables that it was given in one job."""

    took: Mapping[str, type | None] = {}

    def merge(self, batches: Sequence[Any]) -> list[Any]:
        found = super().merge(batches)
        self.took = {
            b.table: None if one is None else type(one) for b, one in zip(batches, found, strict=True)
        }
        return found


RULED = [
    Rules.of("strict"),
    Rules.of("upsert"),
    Rules.of("soft_delete"),
    Rules.of("strict", {"update_missing": "log then stop after 9999", "delete_missing": "ignore"}),
    Rules.of("upsert", {"insert_exists": "log", "data_error": "log"}),
    Rules.of("soft_delete", {"delete_missing": "log"}),
]


def staged(spark: SparkSession, root: Path, rules: Sequence[Rules] | None = None) -> tuple[Staged, Watched]:
    target = Watched(spark, f"{root}/lake", app_id="t")
    each = dict(zip(TABLES, map(TableRules, rules or [Rules.of("upsert")] * len(TABLES)), strict=True))
    return Staged(spark, root, each, keylog="all" if rules else "off", target=target), target


@pytest.mark.slow
@pytest.mark.parametrize("rules", [None, RULED], ids=["plain", "rules and key log"])
def test_tables_of_one_job_end_as_row_by_row(
    spark: SparkSession, tmp_path: Path, rules: Sequence[Rules] | None
) -> None:
    task, target = staged(spark, tmp_path, rules)
    seed = random.randrange(10**6)
    changes = interleaved({t: history(seed + k, 5, 6) for k, t in enumerate(TABLES)})
    cut = max(c.number for many in changes.values() for c in many[:20])
    for first in (True, False):
        task.store({t: [c for c in many if (c.number <= cut) is first] for t, many in changes.items()})
        done = task.catch_up()
        for table, model in task.models.items():
            assert task.rows(table) == sorted(model.state(), key=repr), (table, seed)
        if rules:
            task.same(seed)
        assert {one.table for one in done} == set(TABLES)
        # Tables that are not there yet are made first, and have a task each then.
        assert len(target.took) == (1 if first else len(TABLES))
        assert set(target.took.values()) == {MergeResult}
        before = {t: DeltaTable(task.target.path(t)).version() for t in TABLES}
        assert task.catch_up() == []
        assert before == {t: DeltaTable(task.target.path(t)).version() for t in TABLES}


def test_a_table_that_fails_does_so_alone(spark: SparkSession, tmp_path: Path) -> None:
    task, _ = staged(spark, tmp_path)
    row = {"lane": 0, "id": "k", "a": 1, "b": "x"}
    for number in (1, 2):
        bad = {**row, "id": None} if number == 2 else row
        rows = {t: [Change(10 * number + k, "I", None, bad if k == 2 else row)] for k, t in enumerate(TABLES)}
        task.put(rows)
        if number == 1:
            task.catch_up()
    assert "NULL in the row key (lane, id)" in task.suspended("s.t2")
    reached = [lake.progress(task.target.path(t), "t") for t in TABLES]
    assert reached == [25, 25, 15, 25, 25, 25]


@pytest.mark.slow
def test_a_table_that_stops_does_so_alone_and_a_lost_key_log_is_made_good(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [Rules.of("strict", {"delete_missing": "stop"} if k == 2 else {}) for k in range(len(TABLES))]
    task, _ = staged(spark, tmp_path, rules)
    row = {"lane": 0, "id": "k", "a": 1, "b": "x"}
    task.store({t: [Change(10 + k, "I", None, row)] for k, t in enumerate(TABLES)})
    task.catch_up()
    gone = {"lane": 0, "id": "gone"}
    later = {t: [Change(20 + k, "U", None, {**row, "a": 2}), Change(30 + k, "D", None, gone),
                 Change(40 + k, "I", None, row)] for k, t in enumerate(TABLES)}  # fmt: skip
    task.put(later)

    real = KeyLog.flush

    def killed(log: KeyLog) -> None:
        if log._files or log._rows:
            raise RuntimeError("killed before the key log is visible")
        real(log)

    with monkeypatch.context() as patch:
        patch.setattr(KeyLog, "flush", killed)
        with pytest.raises(RuntimeError, match="killed"):
            task.applier().catch_up()
    with pytest.raises(ApplyError, match="delete_missing") as caught:
        task.catch_up(run="2")
    assert "s.t2" in str(caught.value)
    actions = [("M", 1), ("D", 0), ("I", 0)]
    for k, table in enumerate(TABLES):
        found = task.logged(table)
        assert [(r[2], r[3]) for r in found] == [("I", 1), *(actions[:1] if k == 2 else actions)], table
        assert task.target.progress(table) == (22 if k == 2 else 45)


def test_two_tables_that_stop_at_their_limits_do_so_one_after_the_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Only one of them can be told: the other stops again, before it counts anew."""
    limited, both = Rules.of("strict", {"delete_missing": "log then stop after 1"}), TABLES[:2]
    task, _ = staged(spark, tmp_path, [limited] * len(TABLES))
    row = {"lane": 0, "id": "k", "a": 1, "b": "x"}
    task.store({t: [Change(10 + k, "I", None, row)] for k, t in enumerate(TABLES)})
    task.catch_up()
    gone, too = ({"lane": 0, "id": name} for name in ("gone", "too"))
    task.put(
        {t: [Change(20 + k, "D", None, gone), Change(30 + k, "D", None, too)] for k, t in enumerate(both)}
    )
    for table in both:
        with pytest.raises(LimitReachedError, match="delete_missing") as caught:
            task.catch_up()
        assert table in str(caught.value)
    task.catch_up()
    assert [task.target.progress(t) for t in both] == [31, 31]
