"""What tasks find of shards of a batch, and what is left of them, without Spark: they get Arrow batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tailrace.engine.columns import (
    ADD,
    KEPT,
    MASK,
    OP,
    OPER,
    SEQ,
    TAKE,
)  # fmt: skip
from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError
from tailrace.model import mask, sequence
from tailrace.model.change import Column, Relation
from tailrace.model.types import schema_of
from tailrace.targets.spark_fold import FoldTask

from ..spark.bag_model import Bag
from ..spark.bag_model import history as bag_history
from ..spark.rules_model import RELATION, Change, Model, history

pytestmark = pytest.mark.unit
KEYS = RELATION.with_columns([c for c in RELATION.columns if c.key])
MARK = Column("_deleted", 9, "text", "text", "string")
NAMES = [c.name for c in RELATION.columns]
KEY = ("lane", "id")
TIME, HEADERS = 2026010100000000, 8
ORDINALS = tuple(range(HEADERS, HEADERS + len(NAMES)))
Row = dict[str, Any]


def seq(number: int) -> str:
    return sequence.make(TIME, number)


def batches(relation: Relation, rows: Sequence[Row]) -> list[pa.RecordBatch]:
    """Rows as a task gets them: in any order, in batches."""
    kinds = {SEQ: pa.string(), OPER: pa.string(), MASK: pa.binary()}
    schema = pa.schema([*kinds.items(), *schema_of(relation.columns)])
    table = pa.Table.from_pylist(random.sample(list(rows), len(rows)), schema)
    found: list[pa.RecordBatch] = table.to_batches(max_chunksize=max(1, len(rows) // 3))
    return found


def given(task: FoldTask, rows: Sequence[Row]) -> list[Row]:
    """What a task gives of a shard, under the names of its columns."""
    names, made = list(task._kinds), task(batches(task.relation, rows))
    return [dict(zip(names, row.values(), strict=True)) for b in made for row in b.to_pylist()]


def there(**values: Any) -> Row:
    return {SEQ: "", OPER: "", **values}


def image(number: int, oper: str, **values: Any) -> Row:
    return {SEQ: seq(number), OPER: oper, **values}


def images(changes: Iterable[Change]) -> list[Row]:
    """The images of changes but truncates, with masks."""
    made = []
    for change in changes:
        for number, oper, values in change.images if change.oper != "T" else []:
            some = mask.encode([HEADERS + i for i, n in enumerate(NAMES) if n in values])
            row = {MASK: None if len(values) == len(NAMES) else some}
            made.append(image(number, oper, **values) | row)
    return made


class Target:
    """Rows in memory, which get what remains of the changes of shards."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], Row] = {}

    def write(self, row: Row) -> None:
        key = (row["lane"], row["id"])
        if row[OP] == "D":
            self.rows.pop(key, None)
            return
        old = self.rows.get(key)
        kept = row[KEPT] if row[KEPT] and old else "0" * len(NAMES)
        stays = dict(zip(NAMES, (k == "1" for k in kept), strict=True))
        self.rows[key] = {n: old[n] if old and stays[n] else row[n] for n in NAMES}

    def state(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(r.values()) for r in self.rows.values()), key=repr)


def test_changes_that_no_rules_decide_are_all_made_to_fit() -> None:
    """As upserts are, without a look at what is there but for rows that move."""
    for _ in range(8):
        seed, lanes = random.randrange(10**9), 9
        changes = history(seed, lanes, 10)
        model, target = Model("upsert", Rules().on), Target()
        cut = random.Random(seed).randrange(1, len(changes))
        for some in (changes[:cut], changes[cut:]):
            for change in some:
                assert model.apply(change) is None
            moving = {c.old for c in some if c.old}
            known = [there(**row) for key, row in target.rows.items() if key in moving]
            for row in given(FoldTask(RELATION, ORDINALS), [*images(some), *known]):
                target.write(row)
            assert target.state() == sorted(model.state(), key=repr), seed


def test_existing_rows_alone_are_nothing() -> None:
    assert given(FoldTask(RELATION, ORDINALS), [there(lane=0, id="a")]) == []
    assert list(FoldTask(RELATION, ORDINALS)([])) == []


def test_a_null_in_the_key_ends_what_no_rules_decide() -> None:
    with pytest.raises(ApplyError, match="NULL in the row key") as caught:
        given(FoldTask(RELATION, ORDINALS), [image(1, "I", lane=0, id="a"), image(2, "U", lane=0)])
    assert caught.value.where == f"s.t, change_seq {seq(2)}"


BAG = Relation(2, "s", "bag", "f", (Column("n", 1, "bigint", "int8", "bigint"),
                                    Column("v", 2, "text", "text", "string")))  # fmt: skip


def test_a_bag_that_no_rules_decide() -> None:
    rows = [
        image(1, "I", n=1),
        image(2, "B", n=1),
        image(2, "U", n=2),
        image(3, "D", n=3),
        image(4, "I", n=2),
    ]
    found = given(FoldTask(BAG, ()), rows)
    assert sorted((r["n"], r[TAKE], r[ADD]) for r in found) == [(2, 0, 2), (3, 1, 0)]


def test_a_bag_that_no_rules_decide_ends_as_row_by_row() -> None:
    """Whatever the target has: first `TAKE` copies go, as far as they are there, then `ADD` copies come."""
    values = [(1, "x"), (1, None), (None, None)]
    for _ in range(30):
        dice = random.Random(seed := random.randrange(10**9))
        changes = [c for c in bag_history(seed, 40, values) if c.oper != "T"]
        rows = [image(n, o, **v) for c in changes for n, o, v in c.images_of(["n", "v"])]
        found = {(r["n"], r["v"]): (r[TAKE], r[ADD]) for r in given(FoldTask(BAG, ()), rows)}
        bag = Bag(Rules.of("upsert"), Counter({v: dice.randrange(9) for v in values}))
        before = Counter(bag.rows)
        for change in changes:
            bag.apply(change)
        for value in values:
            take, add = found.get(value, (0, 0))
            assert max(before[value] - take, 0) + add == bag.rows[value], seed


def lacking(number: int, oper: str, key: str, **values: Any) -> Row:
    """An image that has its key, and nothing but `values` besides."""
    carries = [HEADERS + i for i, n in enumerate(NAMES) if n in KEY or n in values]
    return image(number, oper, lane=0, id=key, **values) | {MASK: mask.encode(carries)}


def test_images_that_lack_columns_are_folded() -> None:
    """What stays in the target's own row (`KEPT`), what comes along from another key, what a delete ends."""
    rows = [
        there(lane=0, id="p", a=1, b="theirs"),
        lacking(1, "U", "own", a=1),
        lacking(2, "U", "whole", a=2, b="x"),
        lacking(3, "B", "p", a=9, b="before"), lacking(3, "U", "q", a=3),
        lacking(4, "B", "none", b="before"), lacking(4, "U", "made", a=4),
        lacking(5, "D", "gone"), lacking(6, "U", "gone", a=6),
        lacking(7, "I", "left", b="new"), lacking(8, "D", "left"),
    ]  # fmt: skip
    made = given(FoldTask(RELATION, ORDINALS), rows)
    assert {r["id"]: (r[OP], r[KEPT], r["a"], r["b"]) for r in made if r[OP] == "U"} == {
        "own": ("U", "0001", 1, None), "whole": ("U", None, 2, "x"), "q": ("U", None, 3, "theirs"),
        "made": ("U", None, 4, "before"), "gone": ("U", None, 6, None),
    }  # fmt: skip
    assert sorted(r["id"] for r in made if r[OP] == "D") == ["left", "none", "p"]


def test_whole_images_are_folded_in_any_order() -> None:
    """The last image of a key counts; the old key of a change of key is deleted; chains and swaps follow."""
    rows = [
        image(4, "D", lane=0, id="a"), image(2, "I", lane=0, id="a", a=2), image(3, "U", lane=0, id="a", a=3),
        image(5, "B", lane=0, id="b"), image(5, "U", lane=0, id="c", a=5),
        image(6, "B", lane=0, id="c"), image(6, "U", lane=0, id="b", a=6),
        image(7, "B", lane=0, id="d", a=0), image(7, "U", lane=0, id="d", a=7),
        image(8, "B", lane=0, id="e"), image(8, "U", lane=0, id="f", a=8),
    ]  # fmt: skip
    made = given(FoldTask(RELATION, ORDINALS), rows)
    assert sorted((r["id"], r[OP], r["a"] if r[OP] == "U" else None) for r in made) == [
        ("a", "D", None), ("b", "U", 6), ("c", "D", None), ("d", "U", 7), ("e", "D", None), ("f", "U", 8),
    ]  # fmt: skip
