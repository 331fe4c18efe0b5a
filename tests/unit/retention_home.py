"""A task with old changes, for the tests of retention."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tailrace.config.task import Task, read
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.lake.log import Layout
from tailrace.model import sequence
from tailrace.model.change import Column, Relation
from tailrace.model.types import header_schema, schema_of
from tailrace.operate.retention import PurgeOrder, purge_task
from tailrace.state import commands, ledger
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.state.ledger import STORE_APP
from tailrace.store import tracking as tracked
from tailrace.store.tables import SEQ

from .once import once

NOW = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=2)  # so that no test meets a boundary
ITEM, NOTE = "shop.item", "shop.note"
KEEP = "retention: {keep: 10d}"


def seq(number: int, days_ago: float) -> str:
    at = int((NOW - dt.timedelta(days=days_ago)).timestamp() * 1e6)
    return sequence.make(int(sequence.time_parts(np.array([at]))[0]), number)


def relation(table: str, relid: int) -> Relation:
    return Relation(
        relid,
        "shop",
        table.removeprefix("shop."),
        "d",
        (Column("id", 1, "integer", "int4", "int", key=True),),
    )


class Home:
    """A task as its processes leave it: change n was committed 40 - n days ago."""

    file: Path

    def __init__(self, at: Path, said: str = KEEP, upto: int = 36, both: bool = True) -> None:
        self.file, self.names = begun(at, upto, both).file, [ITEM, NOTE] if both else [ITEM]
        self.says(said)

    def says(self, more: str) -> None:
        """What the task file says from now on."""
        self.file.write_text(f"name: t\nsource: {{url: 'postgresql://localhost/shop'}}\n{more}\n")

    @property
    def at(self) -> Path:
        return self.file.parent

    @property
    def task(self) -> Task:
        found = read(self.file.read_text(), self.at)
        assert isinstance(found, Task)
        return found

    def store(self, numbers: range) -> None:
        """A store batch: a file of each table."""
        task, seqs = self.task, [seq(n, 40 - n) for n in numbers]
        for table in self.names:
            schema = pa.schema([*header_schema(), *schema_of(relation(table, 1).columns)])
            rows = [{SEQ: s, "header__change_oper": "I", "id": n} for s, n in zip(seqs, numbers, strict=True)]
            lake.append(task.changes_path(table), pa.Table.from_pylist(rows, schema=schema), progress={STORE_APP: numbers[-1]})  # fmt: skip
        rows = [{"_Policy-Id": ITEM, "_Change-Sequence": n, "change_seq": s} for s, n in zip(seqs, numbers, strict=True)]  # fmt: skip
        stored = ledger.Stored(
            numbers[-1], seqs[-1], f"{numbers[-1]:040X}", NOW, {t: {"rows": 4} for t in self.names}
        )
        ledger.write_stored(task.control_path("stored"), stored, dict.fromkeys(self.names, 1))
        lake.append(task.tracking_path, pa.Table.from_pylist(rows, schema=tracked.SCHEMA), progress={STORE_APP: numbers[-1]})  # fmt: skip

    def baseline(self, table: str, number: int = 1, *, after: int = 0, version: int = 0, order: int = 0, **more: object) -> None:  # fmt: skip
        taken = Baseline(table, relation(table, 1), "0" * 40, 0, version, NOW, 0, number, order, after)
        write_baseline(self.task.control_path("baselines"), replace(taken, **more))  # type: ignore[arg-type]

    def applied(self, table: str, upto: int) -> None:
        """A target's progress; a later baseline may put it back."""
        path = self.task.target_path(table)
        lake.create(path, pa.schema([("id", pa.int32())]))
        lake.commit(path, [], progress={"tailrace/t": upto}, begin=True)

    def order(self, action: str, table: str = ITEM) -> int:
        return commands.give(self.task.commands_path, action, [table], why="", who="me")

    def land(self, baseline: int) -> None:
        commands.give(self.task.commands_path, "land", [ITEM], why="", who="capture", baseline=baseline)

    def ids(self, table: str = ITEM) -> list[int]:
        return sorted(lake.read(self.task.changes_path(table))["id"].to_pylist())

    def held(self, table: str = ITEM, order: PurgeOrder | None = None) -> list[tuple[str, int]]:
        """Who holds what is old, by a dry run."""
        lines = {one.table: one for one in purge_task(self.task, order, dry_run=True)}
        return [(n.who, n.after) for n in lines[table].held] if table in lines else []


def first(home: Home, table: str = ITEM, days: float = 0) -> int:
    """The first change that is left after a purge, so many days from now."""
    purge_task(home.task, now=NOW.timestamp() + days * 86_400)
    return home.ids(table)[0]


class Begun(Home):
    """The same, as it is built: all that retention says is in the task file."""

    def __init__(self, at: Path, upto: int, both: bool) -> None:
        self.file, self.names = at / "t.yaml", [ITEM, NOTE] if both else [ITEM]
        self.says("")
        layouts = [
            Layout(relation(t, n), bytes(20), sequence.make(0, 0)) for n, t in enumerate(self.names, 1)
        ]
        log.record_layouts(self.task.relations_path, layouts)
        for table in self.names:
            self.baseline(table)
            self.applied(table, upto)
        for first in range(1, upto, 4):
            self.store(range(first, min(first + 4, upto + 1)))


@once
def begun(at: Path, upto: int, both: bool) -> Begun:
    return Begun(at, upto, both)
