"""A task with a target and stored changes, as its processes leave it, without any of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tailrace
from tailrace.config.task import Task, load
from tailrace.lake import delta as lake
from tailrace.lake import log
from tailrace.model import sequence
from tailrace.model.change import Column, Relation, split
from tailrace.model.types import header_schema, schema_of
from tailrace.state import ledger
from tailrace.state.baselines import Baseline, write_baseline
from tailrace.state.ledger import STORE_APP, AppliedTable, Stored
from tailrace.store.kept import KEPT_APP

from .once import once

START = dt.datetime(2026, 11, 22, 10, 0, tzinfo=dt.timezone.utc)
ITEM = "shop.item"
COLUMNS = (
    Column("id", 1, "integer", "int4", "int", key=True),
    Column("name", 2, "text", "text", "string"),
    Column("price", 3, "numeric(8,2)", "numeric", "decimal(8,2)"),
)
Row = dict[str, Any]


def at(number: int) -> dt.datetime:
    """When a change is committed: a second a number."""
    return START + dt.timedelta(seconds=number)


def seq(number: int) -> str:
    us = int(at(number).timestamp() * 1e6)
    return sequence.make(int(sequence.time_parts(np.array([us]))[0]), number)


def position(number: int) -> str:
    return f"{number:040X}"


class TaskHome:
    """A task `shop` with one table: what was stored, what was applied to its Delta target."""

    def __init__(
        self, folder: Path, more: str = "", columns: Sequence[Column] = COLUMNS, *, met: bool = True
    ) -> None:
        self.file = folder / "shop.yaml"
        self.file.write_text(f"name: shop\nsource: {{url: 'postgresql://nobody@localhost/shop'}}\n{more}\n")
        self.columns = tuple(columns)
        if met:  # a change has told the layout
            self.layout(0, columns)

    @property
    def task(self) -> Task:
        return load(self.file)

    def layout(self, number: int, columns: Sequence[Column], relid: int = 1) -> None:
        """A layout in force from a change number on."""
        self.columns = tuple(columns)
        relation = Relation(relid, "shop", "item", "d", self.columns)
        log.record_layouts(
            self.task.relations_path, [log.Layout(relation, bytes.fromhex(position(number)), seq(number))]
        )

    def baseline(self, rows: Sequence[Row], after: int = 0, number: int = 1, **more: Any) -> None:
        """The rows at a change number become the target."""
        self.write(rows, after)
        relation = Relation(1, "shop", "item", "d", self.columns)
        path = self.task.target_path(ITEM)
        taken = Baseline(
            ITEM, relation, position(after + 1), len(rows), lake.version(path), at(after), 0, number, 0, after
        )  # fmt: skip
        write_baseline(self.task.control_path("baselines"), replace(taken, **more))

    def write(self, rows: Sequence[Row], number: int) -> None:
        """A version of the target, which has reached a change number."""
        path, schema = self.task.target_path(ITEM), schema_of(self.columns)
        lake.create(path, schema)
        part = lake.Part(path, schema)
        part.write(pa.Table.from_pylist(list(rows), schema))
        added = part.close()
        lake.replace_all(
            path, [added] if added else [], schema=schema, progress={self.task.apply_app: number}
        )

    def applied(self, rows: Sequence[Row], number: int) -> None:
        """The target after a batch up to a change number, recorded."""
        self.write(rows, number)
        one = AppliedTable(ITEM, lake.version(self.task.target_path(ITEM)), 0, 0, 0, 0, "test", 0.0)
        batch = Stored(number, seq(number), position(number), at(number))
        ledger.write_applied(self.task.control_path("applied"), batch, [one])

    def store(
        self,
        *changes: tuple[int, str, Mapping[str, Any]],
        transaction: int | None = None,
        recorded: bool = True,
    ) -> None:
        """Change-table rows: number, operation, values; one file. `recorded`: the batch has come to its end."""
        path = self.task.changes_path(ITEM)
        schema = pa.schema([*header_schema(), *schema_of(self.columns)])
        rows = [
            {
                "header__change_seq": seq(n), "header__change_oper": oper, "header__stream_position": position(n),
                "header__transaction_id": str(transaction or n), "header__timestamp": at(n),
                "header__change_mask": b"", **values,
            }
            for n, oper, values in changes
        ]  # fmt: skip
        last = max(n for n, _, _ in changes)
        lake.append(path, pa.Table.from_pylist(rows, schema), progress={STORE_APP: last})
        if not recorded:
            return
        counts = {ITEM: {"rows": len(rows)}}
        stored = Stored(last, seq(last), position(last), at(last), counts)
        ledger.write_stored(self.task.control_path("stored"), stored, {ITEM: 1})

    def captured(self, at: int, number: int) -> None:
        """LOG ends at a position, with a change number."""
        raw = bytes.fromhex(position(at)).ljust(21, b"\0")
        words = [int.from_bytes(raw[k : k + 7], "big") for k in (0, 7, 14)]
        progress = {f"tailrace/position/{k}": word for k, word in enumerate(words)}
        lake.create(self.task.log_path, pa.schema([("n", pa.int64())]))
        progress |= {"tailrace/number": number, "tailrace/time": 0}
        lake.commit(self.task.log_path, [], progress=progress, begin=True)

    def forget(self, number: int) -> None:
        """Retention has taken changes up to a number."""
        lake.commit(self.task.changes_path(ITEM), [], progress={KEPT_APP: number})


def item(id: int, name: str | None = "a", price: str = "1.00") -> Row:
    return {"id": id, "name": name, "price": Decimal(price)}


@once
def partly_applied(folder: Path) -> TaskHome:
    """Two rows in the baseline; 11 to 13 are applied, 14 to 16 only stored."""
    made = TaskHome(folder)
    made.baseline([item(1), item(2)], after=10)
    made.store((11, "U", item(1, "b")), (12, "I", item(3)))
    made.store((13, "D", item(2)))
    made.applied([item(1, "b"), item(3)], 13)
    made.store((14, "B", item(3)), (14, "U", item(4)), (15, "U", item(1, "c")), (16, "I", item(5)))
    return made


def with_tables(folder: Path, tables: Mapping[str, int]) -> tailrace.OpenTask:
    """A task whose tables have a target of one row, whose id is given, and a change of id 10 * that."""
    home = TaskHome(folder)
    task = home.task
    relations = [Relation(relid, *split(table), "d", COLUMNS) for relid, table in enumerate(tables, 10)]
    begin = bytes.fromhex(position(0))
    log.record_layouts(task.relations_path, [log.Layout(one, begin, seq(0)) for one in relations])
    for table, number in tables.items():
        lake.append(task.target_path(table), pa.table({"id": [number]}))
        nulls = {f.name: pa.nulls(1, f.type) for f in header_schema()}
        lake.append(task.changes_path(table), pa.table(nulls | {"id": [10 * number]}))
    return tailrace.open(home.file)


def values(row: Row) -> tuple[Any, ...]:
    return row["id"], row["name"], row["price"]


def rows(found: tailrace.Result) -> list[Any]:
    return sorted((r["id"], r["name"]) for r in found.rows())
