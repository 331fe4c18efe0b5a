"""What tasks find of shards of a batch, and what is left of them, without Spark: they get Arrow batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.apply.constraint_check import CompleteTask
from tailrace.apply.shards import ShardTask
from tailrace.engine.columns import (
    ADD,
    HAVE,
    KEPT,
    MASK,
    MOVED,
    OP,
    OPER,
    SEQ,
    SILENT,
    SITUATION,
    TAKE,
    WHY,
)  # fmt: skip
from tailrace.engine.rules import Rules
from tailrace.errors import ApplyError
from tailrace.model import mask, sequence
from tailrace.model.change import Column, Relation
from tailrace.model.types import schema_of

from ..spark.bag_model import Bag
from ..spark.bag_model import history as bag_history
from ..spark.rules_model import RELATION, Change, Model, history, nulled

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
    kinds = {SEQ: pa.string(), OPER: pa.string(), MASK: pa.binary(), WHY: pa.string(), SILENT: pa.bool_()}
    schema = pa.schema([*kinds.items(), (HAVE, pa.int64()), *schema_of(relation.columns)])
    table = pa.Table.from_pylist(random.sample(list(rows), len(rows)), schema)
    found: list[pa.RecordBatch] = table.to_batches(max_chunksize=max(1, len(rows) // 3))
    return found


def given(task: ShardTask, rows: Sequence[Row]) -> list[Row]:
    """What a task gives of a shard, under the names of its columns."""
    names, made = list(task._kinds), task(batches(task.relation, rows))
    return [dict(zip(names, row.values(), strict=True)) for b in made for row in b.to_pylist()]


def told(found: Iterable[Row]) -> list[Row]:
    return [r for r in found if r.get(SITUATION) is not None]


def left(found: Iterable[Row]) -> list[Row]:
    return [r for r in found if r.get(SITUATION) is None]


def there(**values: Any) -> Row:
    return {SEQ: "", OPER: "", **values}


def image(number: int, oper: str, **values: Any) -> Row:
    return {SEQ: seq(number), OPER: oper, **values}


def images(changes: Iterable[Change], why: Mapping[int, str] | None = None) -> list[Row]:
    """The images of changes but truncates, with masks; `why`: what is wrong with the values of some."""
    made = []
    for change in changes:
        for number, oper, values in change.images if change.oper != "T" else []:
            some = mask.encode([HEADERS + i for i, n in enumerate(NAMES) if n in values])
            row = {MASK: None if len(values) == len(NAMES) else some, WHY: (why or {}).get(number)}
            made.append(image(number, oper, **values) | row)
    return made


def truncates(changes: Iterable[Change]) -> tuple[str, ...]:
    return tuple(seq(c.number) for c in changes if c.oper == "T")


def decides(rules: Rules, changes: Sequence[Change] = ()) -> ShardTask:
    """Decides shards of changes by their keys alone."""
    return ShardTask(KEYS, (HEADERS, HEADERS + 1), rules, truncates(changes), folds=False)


@pytest.mark.parametrize("mode", ["strict", "upsert", "soft_delete"])
def test_shards_tell_what_a_row_by_row_model_finds(mode: str) -> None:
    """Lanes do not meet, so any lanes together are a shard."""
    dice = random.Random(seed := random.randrange(10**9))
    policies = {k: dice.choice(["apply", "ignore", "log"]) for k in ("insert_exists", "update_missing")}
    rules = Rules.of(mode, policies | {"data_error": "log"})
    changes = nulled(history(seed, 12, 10, truncate=True))
    model = Model(rules.mode, rules.on)
    met: list[tuple[str, Row]] = []
    for change in changes:
        assert model.apply(change) is None
    for some in (range(0, 5), range(5, 9), range(9, 12)):
        mine = [c for c in changes if c.values.get("lane") in some]
        rows = [image(n, o, lane=v["lane"], id=v["id"]) for c in mine for n, o, v in c.images]
        met += [(r[SITUATION], r) for r in given(decides(rules, changes), rows)]
    flagged = {r[SEQ] for s, r in met if rules.outcome(s).flagged}
    assert flagged == {seq(number) for number, *_, flag in model.log if flag}, seed
    moved = {r[SEQ]: (r["lane"], r["id"]) for _, r in met if r[MOVED]}
    assert moved == {seq(c.number): c.old for c in changes if c.old and moves(c)}, seed
    assert {r[WHY] for s, r in met if s.endswith("!")} <= {"NULL in id, which is in the key"}


def moves(change: Change) -> bool:
    """Whether a change of a history changes its key, or would if it were not set aside for a NULL in it."""
    return change.old != (change.values["lane"], change.values["id"])


class Target:
    """A target in memory, which gets what is left of the changes of shards."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.rows = rules, dict[tuple[Any, ...], Row]()
        more = [MARK] if rules.mode == "soft_delete" else []
        self.layout = RELATION.with_columns([*RELATION.columns, *more])

    def apply(self, changes: Sequence[Change], lanes: int, why: Mapping[int, str]) -> list[Row]:
        """Applies changes, a shard a few lanes, with all rows of the target; gives what became of the changes
        that did not meet what they expect."""
        task, odd = ShardTask(self.layout, ORDINALS, self.rules, truncates(changes)), []
        made: list[Row] = []
        for low in range(0, lanes, 3):
            rows = images([c for c in changes if c.values.get("lane") in range(low, low + 3)], why)
            found = given(task, [*rows, *[there(**row) for row in self.rows.values()]])
            odd += told(found)
            made += left(found)
        if any(c.oper == "T" for c in changes):
            self.rows.clear()
        for row in made:
            self.write(row)
        return odd

    def write(self, row: Row) -> None:
        key = (row["lane"], row["id"])
        if row[OP] == "D":
            self.rows.pop(key, None)
            return
        names, old = [c.name for c in self.layout.columns], self.rows.get(key)
        kept = row[KEPT] if row[KEPT] and old else "0" * len(names)
        stays = dict(zip(names, (k == "1" for k in kept), strict=True))
        self.rows[key] = {n: old[n] if old and stays[n] else row[n] for n in names}

    def state(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(r.values()) for r in self.rows.values()), key=repr)


def _holds(bad: Mapping[int, str], row: Row, _: bool) -> bool:
    return row["a"] not in bad  # it is the number of its change


@pytest.mark.parametrize("mode", ["strict", "upsert", "soft_delete"])
def test_what_is_left_of_shards_makes_the_target_of_a_row_by_row_model(mode: str) -> None:
    """With images that lack columns, NULLs in keys, values that are refused, and truncates."""
    for _ in range(8):
        dice = random.Random(seed := random.randrange(10**9))
        kinds = ("insert_exists", "update_missing", "delete_missing")
        on = {k: dice.choice(["apply", "ignore", "log"]) for k in kinds}
        rules, lanes = Rules.of(mode, on | {"data_error": "log"}), 9
        changes = nulled(history(seed, lanes, 10, truncate=seed % 3 == 0))
        why = {c.number: "a is no smallint" for c in changes if "a" in c.values and dice.random() < 0.1}
        bad = {c.number: {**c.values, "a": None} for c in changes if c.number in why}
        model, target = Model(rules.mode, rules.on), Target(rules)
        model.holds = lambda row, _, bad=why: row["a"] not in bad  # type: ignore[misc]  # `a` is the number of its change
        cut = dice.randrange(1, len(changes))
        for some in (changes[:cut], changes[cut:]):
            before = len(model.log)
            for change in some:
                assert model.apply(change) is None
            # A value that does not fit comes as NULL, with what is wrong with it.
            mine = [replace(c, values=bad.get(c.number, c.values)) for c in some]
            odd = target.apply(mine, lanes, why)
            flagged = {r[SEQ] for r in odd if rules.outcome(r[SITUATION]).flagged}
            assert flagged == {seq(n) for n, *_, flag in model.log[before:] if flag}, (seed, rules)
            assert target.state() == sorted(model.state(), key=repr), (seed, rules)


@pytest.mark.parametrize("masked", [True, False])
def test_soft_delete_of_rows_that_are_nothing_but_a_key(masked: bool) -> None:
    """Their deletes lack no column, and mark them nevertheless; so does a change of key, the old one."""
    task = ShardTask(KEYS.with_columns([*KEYS.columns, MARK]), ORDINALS[:2], Rules.of("soft_delete", {}), ())
    some = {MASK: mask.encode([HEADERS, HEADERS + 1])} if masked else {}
    rows = [
        image(5, "D", lane=1, id="p") | some, image(6, "B", lane=1, id="q") | some, image(6, "U", lane=1, id="r"),
        *[there(lane=1, id=n) for n in "pq"],
    ]  # fmt: skip
    found = [(r["id"], r[OP], r["_deleted"]) for r in left(given(task, rows))]
    assert sorted(found) == [("p", "U", seq(5)), ("q", "U", seq(6)), ("r", "U", None)]


def test_changes_that_no_rules_decide_are_all_made_to_fit() -> None:
    """As upserts are, without a look at what is there but for rows that move."""
    for _ in range(8):
        seed, lanes = random.randrange(10**9), 9
        changes = history(seed, lanes, 10)
        model, target = Model("upsert", Rules().on), Target(Rules())
        cut = random.Random(seed).randrange(1, len(changes))
        for some in (changes[:cut], changes[cut:]):
            for change in some:
                assert model.apply(change) is None
            moving = {c.old for c in some if c.old}
            known = [there(**row) for key, row in target.rows.items() if key in moving]
            for row in given(ShardTask(RELATION, ORDINALS), [*images(some), *known]):
                target.write(row)
            assert target.state() == sorted(model.state(), key=repr), seed


def test_what_is_wrong_with_an_old_image_is_its_updates_error() -> None:
    task = decides(Rules.of("strict", {"data_error": "log"}))
    rows = [there(lane=0, id="a"), image(1, "B", lane=0, id="a") | {WHY: "id is no int"},
            image(1, "U", lane=0, id="b"), image(2, "D", lane=0, id="a")]  # fmt: skip
    (bad,) = given(task, rows)
    assert (bad[SEQ], bad[OPER], bad[SITUATION], bad[WHY]) == (seq(1), "U", "U!", "id is no int")


def test_a_key_that_is_no_value_of_its_type_is_told_so() -> None:
    """It comes as NULL."""
    task = decides(Rules.of("strict", {"data_error": "log"}))
    (bad,) = given(task, [image(1, "I", lane=0) | {WHY: "id is no int"}])
    assert (bad[SITUATION], bad[WHY]) == ("I!", "id is no int")


def test_keys_that_the_target_has_are_met() -> None:
    rows = [there(lane=0, id="a"), there(lane=0, id="b"), image(1, "I", lane=0, id="a"),
            image(2, "D", lane=0, id="b"), image(3, "B", lane=0, id="a"), image(3, "U", lane=0, id="b"),
            image(4, "U", lane=0, id="c")]  # fmt: skip
    found = {r[SEQ]: (r[SITUATION], r[MOVED], r["id"]) for r in given(decides(Rules.of("strict")), rows)}
    assert found == {
        seq(1): ("I1", False, None), seq(3): ("K10", True, "a"), seq(4): ("U0", False, None),
    }  # fmt: skip


def test_only_rows_of_the_target_are_nothing() -> None:
    assert given(decides(Rules.of("strict")), [there(lane=0, id="a")]) == []
    assert list(decides(Rules.of("strict"))([])) == []


def test_a_null_in_the_key_ends_what_no_rules_decide() -> None:
    with pytest.raises(ApplyError, match="NULL in the row key") as caught:
        given(ShardTask(RELATION, ORDINALS), [image(1, "I", lane=0, id="a"), image(2, "U", lane=0)])
    assert caught.value.where == f"s.t, change_seq {seq(2)}"


BAG = Relation(2, "s", "bag", "f", (Column("n", 1, "bigint", "int8", "bigint"),
                                    Column("v", 2, "text", "text", "string")))  # fmt: skip


def test_a_bag_counts_the_copies_of_the_target() -> None:
    """The old row of each update is told, as the key log needs it; what is left are copies to add or take."""
    values = [(1, "x"), (1, None), (None, None)]
    for _ in range(20):
        dice = random.Random(seed := random.randrange(10**9))
        on = {k: dice.choice(["apply", "log", "ignore"]) for k in ("update_missing", "delete_missing")}
        rules = Rules.of(dice.choice(["strict", "upsert"]), on)
        changes = bag_history(seed, 40, values)
        before = Counter({v: dice.randrange(3) for v in values})
        bag = Bag(rules, Counter(before))
        for change in changes:
            bag.apply(change)
        emptied = tuple(seq(c.number) for c in changes if c.oper == "T")
        task = ShardTask(BAG, (), rules, emptied)
        rows = [there(n=n, v=v) | {HAVE: many} for (n, v), many in before.items() if many]
        rows += [image(n, o, **v) for c in changes if c.oper != "T" for n, o, v in c.images_of(["n", "v"])]
        found = given(task, rows)
        odd = {r[SEQ] for r in told(found) if rules.outcome(r[SITUATION]).flagged}
        assert odd == {seq(number) for number, *_, flag in bag.log if flag}, seed
        olds = {r[SEQ]: (r["n"], r["v"]) for r in told(found) if r[MOVED]}
        assert olds == {seq(c.number): c.old for c in changes if c.oper == "U"}, seed
        have = Counter() if emptied else before
        have.update({(r["n"], r["v"]): r[ADD] - r[TAKE] for r in left(found)})
        assert +have == +bag.rows, (seed, rules)


def test_a_bag_that_no_rules_decide() -> None:
    rows = [
        image(1, "I", n=1),
        image(2, "B", n=1),
        image(2, "U", n=2),
        image(3, "D", n=3),
        image(4, "I", n=2),
    ]
    found = given(ShardTask(BAG, ()), rows)
    assert sorted((r["n"], r[TAKE], r[ADD]) for r in found) == [(2, 0, 2), (3, 1, 0)]


def test_a_bag_that_no_rules_decide_ends_as_row_by_row() -> None:
    """Whatever the target has: first `TAKE` copies go, as far as they are there, then `ADD` copies come."""
    values = [(1, "x"), (1, None), (None, None)]
    for _ in range(30):
        dice = random.Random(seed := random.randrange(10**9))
        changes = [c for c in bag_history(seed, 40, values) if c.oper != "T"]
        rows = [image(n, o, **v) for c in changes for n, o, v in c.images_of(["n", "v"])]
        found = {(r["n"], r["v"]): (r[TAKE], r[ADD]) for r in given(ShardTask(BAG, ()), rows)}
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


def test_updates_that_lack_columns_are_made_whole() -> None:
    """By the row of the target, by an earlier change, and by that under another key; a silent one leaves
    nothing, a truncate takes all."""
    task = CompleteTask(ShardTask(RELATION, ORDINALS, Rules.of("strict"), (seq(9),)))
    rows = [
        there(lane=0, id="p", a=1, b="theirs"),
        lacking(1, "U", "p", a=2),
        lacking(2, "U", "p", b="silent") | {SILENT: True},
        lacking(3, "U", "p", a=3),
        image(4, "B", lane=0, id="p"), lacking(4, "U", "q", b="moved"),
        lacking(5, "U", "q", a=5),
        lacking(6, "U", "r", a=6),
        image(7, "I", lane=0, id="r", a=7, b="new"),
        lacking(8, "U", "r", a=8),
        lacking(10, "U", "r", a=10),
    ]  # fmt: skip
    (made,) = task(batches(RELATION, rows))
    found = {r["seq"]: (r["r1"], r["r2"], r["r3"]) for r in made.to_pylist()}
    assert found == {
        seq(1): ("p", 2, "theirs"), seq(2): ("p", 2, "silent"), seq(3): ("p", 3, "theirs"),
        seq(4): ("q", 3, "moved"), seq(5): ("q", 5, "moved"), seq(8): ("r", 8, "new"),
    }  # fmt: skip


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
    made = given(ShardTask(RELATION, ORDINALS), rows)
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
    made = given(ShardTask(RELATION, ORDINALS), rows)
    assert sorted((r["id"], r[OP], r["a"] if r[OP] == "U" else None) for r in made) == [
        ("a", "D", None), ("b", "U", 6), ("c", "D", None), ("d", "U", 7), ("e", "D", None), ("f", "U", 8),
    ]  # fmt: skip
