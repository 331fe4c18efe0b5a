"""Any history with any changes of layout: an answer is what the source had, or is refused; never anything else."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace
from tailrace.errors import UnsupportedError
from tailrace.lake import delta as lake
from tailrace.model.change import Column, Relation
from tailrace.model.types import schema_of
from tailrace.store.tables import ensure
from tailrace.targets.lake.layout import mark

from ..examples import rounds
from .task_home import ITEM, Row, TaskHome

pytestmark = pytest.mark.unit

KEY = Column("id", 1, "integer", "int4", "int", key=True)
NAMES = ("a", "b", "c")
VALUES = {"string": ["x", "y", None], "int": [1, 2, None]}
Rows = frozenset[tuple[tuple[str, Any], ...]]


@dataclass
class Source:
    """A table, what it was at each change number (its layout, its rows), and its changes, by attribute
    number."""

    dice: random.Random
    columns: tuple[Column, ...] = (KEY, Column("a", 2, "text", "text", "string"))
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)
    newest: int = 2
    past: dict[int, tuple[tuple[Column, ...], list[Row]]] = field(default_factory=dict)
    changes: dict[int, tuple[str, dict[int, Any]]] = field(default_factory=dict)
    retyped: bool = False

    def altered(self) -> bool:
        """Adds, drops or renames a column, or gives it another type; whether it did."""
        free = [n for n in NAMES if n not in {c.name for c in self.columns}]
        kind, others = self.dice.choice(["add", "drop", "rename", "retype"]), self.columns[1:]
        if kind == "drop" and others:
            gone = self.dice.choice(others)
            self.columns = tuple(c for c in self.columns if c != gone)
        elif kind == "rename" and others and free:
            old = self.dice.choice(others)
            new = Column(self.dice.choice(free), old.attnum, "text", "text", "string")
            self.columns = tuple(new if c == old else c for c in self.columns)
        elif kind == "retype" and others and not self.retyped:
            old = self.dice.choice(others)
            new = Column(old.name, old.attnum, "integer", "int4", "int")
            self.columns = tuple(new if c == old else c for c in self.columns)
            self.retyped = True
            for row in self.rows.values():
                row[old.attnum] = None
        elif kind == "add" and free:
            self.newest += 1
            added = Column(self.dice.choice(free), self.newest, "text", "text", "string")
            self.columns = (*self.columns, added)
        else:
            return False
        return True

    def change(self, number: int) -> list[tuple[int, str, Row]]:
        """A change, as images."""
        key, oper = self.dice.randrange(4), self.dice.choice("IUUUDT" if number % 7 == 0 else "IUUUD")
        values = {c.attnum: self.dice.choice(VALUES[c.type]) for c in self.columns[1:]} | {1: key}
        images: list[tuple[int, str, Row]] = []
        if oper == "T":
            self.rows.clear()
            images = [(number, "T", {})]
        elif oper == "D" and key in self.rows:
            del self.rows[key]
            images = [(number, "D", {"id": key})]
        elif key in self.rows:
            self.rows[key] = values
            images = [(number, "U", self.named(values))]
        else:
            self.rows[key] = values
            images = [(number, "I", self.named(values))]
        ((_, oper, _),) = images
        self.changes[number] = oper, {} if oper == "T" else {1: key} if oper == "D" else dict(values)
        self.past[number] = self.columns, self.now()
        return images

    def named(self, row: dict[int, Any]) -> Row:
        return {c.name: row.get(c.attnum) for c in self.columns}

    def now(self) -> list[Row]:
        return [self.named(row) for row in self.rows.values()]


def applied(home: TaskHome, source: Source, number: int, before: int) -> None:
    """The target reaches a change number; another layout comes first, in a commit of its own."""
    columns, rows = source.past[number]
    if columns != source.past[before][0]:
        have = {c.attnum: c.name for c in source.past[before][0]}
        kept = [{c.name: row.get(have.get(c.attnum, "")) for c in columns} for row in source.past[before][1]]
        path, schema = home.task.target_path(ITEM), schema_of(columns)
        part = lake.Part(path, schema)
        part.write(pa.Table.from_pylist(kept, schema))
        files = [added] if (added := part.close()) else []
        info = mark(Relation(1, "shop", "item", "d", columns))
        lake.overwrite(path, files, schema=schema, progress={}, only_after=lake.version(path), info=info)
    home.columns = columns
    home.applied(rows, number)


def held(rows: list[Row], names: list[str]) -> Rows:
    return frozenset(tuple((n, row.get(n)) for n in names) for row in rows)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(394162888, marks=pytest.mark.slow), *(random.randrange(10**9) for _ in range(rounds(1)))],
)
def test_answers_over_changes_of_layout(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    source = Source(dice)
    home = TaskHome(tmp_path, columns=source.columns)
    source.rows = {k: {1: k, 2: "z"} for k in range(3)}
    source.past[10] = source.columns, source.now()
    home.baseline(source.now(), after=10)
    reached, handle, answers = 10, tailrace.open(home.file).table(ITEM), 0
    for number in range(11, 22):
        if dice.random() < 0.25 and source.altered():
            home.layout(number, source.columns)
        images, columns = source.change(number), source.columns
        ensure(home.task.changes_path(ITEM), Relation(1, "shop", "item", "d", columns), number)
        home.columns = columns
        home.store(*images)
        if dice.random() < 0.3 and not source.retyped:  # another type needs a new baseline
            applied(home, source, number, reached)
            reached = number
        if dice.random() < 0.2:
            handle = tailrace.open(home.file).table(ITEM)
        start, end = sorted(dice.sample(range(10, number + 1), 2))
        if number % 2:
            answers += asked(home, handle, source, (start, end, number), seed)
    assert answers, seed


def asked(
    home: TaskHome, table: tailrace.TaskTable, source: Source, places: tuple[int, int, int], seed: int
) -> int:
    """Asks for the rows of a place and of the newest, and for what is between two; gives how many answers
    there were."""
    answers, (start, end, newest) = 0, places
    for place in (start, newest):
        try:
            found = table.as_of(place)
        except UnsupportedError:
            continue
        columns, rows = source.past[place]
        names = [c.name for c in columns]
        assert held(found.rows(), names) == held(rows, names), (seed, place)
        assert found.schema.names == names, (seed, place)
        answers += 1
    try:
        told = tailrace.open(home.file).table(ITEM).changes(start + 1, end, names="then").rows()
    except UnsupportedError:
        assert source.retyped, (seed, start, end)  # whatever columns were called, they are the same ones
        told = []
    else:
        columns, answers = source.past[end][0], answers + 1
        wanted = [(n, *source.changes[n]) for n in range(start + 1, end + 1)]
        assert [
            (
                int(r["header__change_seq"][16:]),
                r["header__change_oper"],
                {c.attnum: r[c.name] for c in columns},
            )
            for r in told
        ] == [(n, oper, {c.attnum: row.get(c.attnum) for c in columns}) for n, oper, row in wanted], (
            seed,
            start,
            end,
        )
    try:
        found = table.diff(start, end)
    except UnsupportedError:
        return answers
    names = [c.name for c in source.past[end][0]]
    old, new = (held(source.past[n][1], names) for n in (start, end))
    kinds = {"delete": old, "update_preimage": old, "insert": new, "update_postimage": new}
    told = {side: [r for r in found.rows() if kinds[r["_change_type"]] is side] for side in (old, new)}
    assert held(told[old], names) == old - new, (seed, start, end)
    assert held(told[new], names) == new - old, (seed, start, end)
    return answers + 1
