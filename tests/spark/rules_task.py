"""What a task's store has written, by hand, and the applier that takes it to a target under rules."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailrace.apply.applier import Applier
from tailrace.apply.reading import ApplyPaths
from tailrace.apply.scheduler import RETRIES, Scheduler
from tailrace.apply.task_rules import TableRules, TaskRules
from tailrace.engine.rules import MODES, Rules
from tailrace.keylog.control_tables import SuspendCommands
from tailrace.keylog.key_log import KeyLog
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model import sequence
from tailrace.model.change import Relation
from tailrace.state import commands, ledger, lifecycle
from tailrace.state.ledger import AppliedTable, Stored
from tailrace.targets.base import Target
from tailrace.targets.delta.target import DeltaTarget
from tailrace.testing.images import change_rows, count

from .rules_model import RELATION, Change, Model, Row, columns_of, history, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
TIME = 2026010100000000


class CrashError(BaseException):
    """Stands for a kill: nobody tries another way."""


def by_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is one task's."""
    monkeypatch.setattr("tailrace.targets.lake.merge.ROWS", 0)


class Staged:
    """A task without a source: `store` is what capture and store do, `applier` a process that applies.

    Each table has its own change numbers out of those of all, as in a task.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        rules: Mapping[str, TableRules],
        *,
        keylog: str = "all",
        target: Target | None = None,
        per_transaction: int = 0,
    ) -> None:
        self.spark, self.root, self.rules, self.keylog = spark, str(root), rules, keylog
        self.target = target or DeltaTarget(spark, f"{root}/lake", app_id="t")
        self.log, self.per_transaction = f"{root}/keylog", per_transaction
        self.orders, self.control = f"{root}/control/commands", f"{root}/control"
        self.models = {t: Model(r.rules.mode, r.rules.on) for t, r in rules.items()}
        layouts = [log.Layout(self.relation(t), bytes(20), sequence.make(0, 0)) for t in rules]
        log.record_layouts(f"{root}/relations", layouts)

    def relation(self, table: str) -> Relation:
        return replace(RELATION, relid=list(self.rules).index(table) + 1, name=table.removeprefix("s."))

    def store(self, changes: Mapping[str, Sequence[Change]]) -> None:
        """One store batch, and the model for it."""
        self.put(changes)
        for table, many in changes.items():
            for c in many:
                assert self.models[table].apply(c) is None

    def put(self, changes: Mapping[str, Sequence[Change]]) -> None:
        """One store batch."""
        upto = max(c.number for many in changes.values() for c in many)
        counts = {}
        for table, many in changes.items():
            relation = self.relation(table)
            images = [i for c in many for i in c.images]
            rows = change_rows(relation, images, self.per_transaction)
            lake.append(f"{self.root}/{table}__ct", rows, progress={ledger.STORE_APP: upto})
            counts[table] = count(relation, images) | {"rows": len(images)}
        batch = Stored(upto, sequence.make(TIME, upto), f"{upto:040X}", NOW, counts)
        relids = {t: self.relation(t).relid for t in counts}
        ledger.write_stored(f"{self.control}/stored", batch, relids)

    def applier(self, run: str = "1", **more: Any) -> Applier:
        """A new process."""
        root = self.root
        paths = ApplyPaths(
            f"{root}/relations",
            f"{self.control}/stored",
            f"{self.control}/applied",
            f"{self.control}/baselines",
            lambda t: f"{root}/{t}__ct",
        )
        rules = TaskRules(
            self.target,
            self.rules.__getitem__,
            root=self.control,
            task="t",
            keylog=KeyLog(self.log, app_id="t", run_id=run, mode=self.keylog, at_once=False),
            suspensions=SuspendCommands(self.orders),
        )
        limits = {"max_changes": 10**6, "parallel": 2, "need_baseline": False} | more
        scheduler = Scheduler(self.orders, f"{self.orders}_errors", {}, patient=False)
        return Applier(self.spark, paths, self.target, rules=rules, scheduler=scheduler, **limits)

    def catch_up(self, **more: Any) -> list[AppliedTable]:
        return self.applier(**more).catch_up()

    def suspended(self, table: str) -> str:
        """Why a table is suspended by its errors; it is resumed then."""
        one = self.applier()
        for _ in range(RETRIES):
            one.catch_up()
        why = lifecycle.of_task(self.orders, {})[table].why
        commands.give(self.orders, commands.RESUME, [table], why="", who="test")
        return why

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """The target's rows as the model has them."""
        mode = self.rules[table].rules.mode
        names = columns_of(mode)
        found = lake.read(self.target.path(table), names).to_pylist()  # type: ignore[attr-defined]
        return told((tuple(r[n] for n in names) for r in found), mode)

    def logged(self, table: str) -> list[Any]:
        """A table's rows of the key log as the model tells them: in order, with their change numbers."""
        rows = [r for r in lake.read(self.log).to_pylist() if r["subscription_id"] == table]
        return [
            (
                r["change_row_counter"], r["change_row_type"], r["action_taken"], r["result_row_count"],
                r["flagged_count"], r["result_error"] is not None,
            )
            for r in sorted(rows, key=lambda r: r["keylog_sort"])
        ]  # fmt: skip

    def same(self, seed: object = "") -> None:
        """Targets and key log are as the models are; no number in the key log is there twice."""
        for table, model in self.models.items():
            assert self.rows(table) == sorted(model.state(), key=repr), (table, seed)
            found = self.logged(table)
            assert found == model.log, (table, seed, found, model.log)
        sorts = lake.read(self.log, ["keylog_sort"])["keylog_sort"].to_pylist()
        assert len(set(sorts)) == len(sorts)

    def lose(self, table: str, where: str) -> None:
        """Somebody else deletes rows of a target."""
        DeltaTable(self.target.path(table)).delete(where)  # type: ignore[attr-defined]

    def gain(self, table: str, rows: list[Row]) -> None:
        """Somebody else writes rows into a target."""
        kept = DeltaTable(self.target.path(table))  # type: ignore[attr-defined]
        write_deltalake(kept, pa.Table.from_pylist(rows, pa.schema(kept.schema().to_arrow())), mode="append")

    def disturb(self, lanes: int) -> None:
        """Takes rows away from targets and puts some there, so that changes meet what they do not expect."""
        for table, model in self.models.items():
            if model.mode != "archive":
                self.lose(table, "id = 'q'")
                model.lose("q")
                self.gain(table, model.gain(lanes, "s"))


def every_mode(seed: int, ways: Sequence[str]) -> tuple[dict[str, TableRules], dict[str, list[Change]]]:
    """A table for each mode, by `batch` or `transaction`, with changes that are the same for both: truncates
    among them, 4 before the change number 5 times as many as there are tables, 9 from there on."""
    rules, changes = {}, {}
    for k, mode in enumerate(MODES):
        for way in ways:
            rules[f"s.{mode}_{way}"] = TableRules(Rules.of(mode), way == "transaction")
            changes[f"s.{mode}_{way}"] = history(seed + k, 2, 6, truncate=True)
    return rules, interleaved(changes)


def interleaved(histories: Mapping[str, Sequence[Change]]) -> dict[str, list[Change]]:
    """Histories of several tables with change numbers of one task: no two tables have the same."""
    width, found = len(histories), {}
    for place, (table, changes) in enumerate(histories.items()):
        found[table] = [replace(c, number=c.number * width + place) for c in changes]
    return found
