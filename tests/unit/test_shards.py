"""What tasks find of shards of a batch, without Spark: they get Arrow batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tailrace.apply.completed import CompleteTask
from tailrace.apply.expect import DecideTask
from tailrace.apply.fold import CARRIED
from tailrace.apply.fold_tasks import FoldTask
from tailrace.engine.columns import OPER, SEQ
from tailrace.engine.rules import PLAIN, Rules
from tailrace.model import sequence
from tailrace.model.types import schema_of

from ..spark.bag_model import Bag
from ..spark.bag_model import history as bag_history
from ..spark.ruled_model import RELATION, Change, Model, history, nulled

pytestmark = pytest.mark.unit
KEYS = schema_of([c for c in RELATION.columns if c.key])
TIME = 2026010100000000
HAVE = "header__have"


def seq(number: int) -> str:
    return sequence.make(TIME, number)


def decided(task: DecideTask, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a task tells of a shard whose rows come in any order, in batches."""
    kinds = pa.schema([(SEQ, pa.string()), (OPER, pa.string()), (HAVE, pa.int64()), *task.schema])
    table = pa.Table.from_pylist(random.sample(rows, len(rows)), kinds)
    batches = table.to_batches(max_chunksize=max(1, len(rows) // 3))
    return [row for batch in task(batches) for row in batch.to_pylist()]


def there(**values: Any) -> dict[str, Any]:
    return {SEQ: "", OPER: "", **values}


def image(number: int, oper: str, **values: Any) -> dict[str, Any]:
    return {SEQ: seq(number), OPER: oper, **values}


@pytest.mark.parametrize("mode", ["strict", "upsert", "soft_delete"])
def test_shards_tell_what_a_row_by_row_model_finds(mode: str) -> None:
    """Lanes do not meet, so any lanes together are a shard."""
    dice = random.Random(seed := random.randrange(10**9))
    policies = {k: dice.choice(["apply", "ignore", "log"]) for k in ("insert_exists", "update_missing")}
    rules = Rules.of(mode, policies | {"data_error": "log"})
    changes = nulled(history(seed, 12, 10, truncate=True))
    model = Model(rules.mode, rules.on)
    met: list[tuple[str, dict[str, Any]]] = []
    for change in changes:
        assert model.apply(change) is None
    truncates = tuple(seq(c.number) for c in changes if c.oper == "T")
    task = DecideTask(KEYS, rules, truncates, ("lane", "id"), bag=False)
    for some in (range(0, 5), range(5, 9), range(9, 12)):
        mine = [c for c in changes if c.values.get("lane") in some]
        rows = [image(n, o, lane=v["lane"], id=v["id"]) for c in mine for n, o, v in c.images]
        met += [(r["situation"], r) for r in decided(task, rows)]
    flagged = {r["seq"] for s, r in met if rules.outcome(s).flagged}
    assert flagged == {seq(number) for number, *_, flag in model.log if flag}, seed
    moved = {r["seq"]: (r["k0"], r["k1"]) for _, r in met if r["moved"]}
    assert moved == {seq(c.number): c.old for c in changes if c.old and moves(c)}, seed
    assert {r["why"] for s, r in met if s.endswith("!")} <= {"NULL in id, which is in the key"}


def moves(change: Change) -> bool:
    """Whether a change of a history changes its key, and is not set aside for a NULL in it."""
    key = (change.values["lane"], change.values["id"])
    return change.old != key and None not in (*key, *(change.old or ()))


def test_keys_that_the_target_has_are_met() -> None:
    task = DecideTask(KEYS, Rules.of("strict"), (), ("lane", "id"), bag=False)
    rows = [there(lane=0, id="a"), there(lane=0, id="b"), image(1, "I", lane=0, id="a"),
            image(2, "D", lane=0, id="b"), image(3, "B", lane=0, id="a"), image(3, "U", lane=0, id="b"),
            image(4, "U", lane=0, id="c")]  # fmt: skip
    found = {r["seq"]: (r["situation"], r["moved"], r["k1"]) for r in decided(task, rows)}
    assert found == {
        seq(1): ("I1", False, None), seq(3): ("K10", True, "a"), seq(4): ("U0", False, None),
    }  # fmt: skip


def test_only_rows_of_the_target_are_nothing() -> None:
    task = DecideTask(KEYS, Rules.of("strict"), (), ("lane", "id"), bag=False)
    assert decided(task, [there(lane=0, id="a")]) == []
    assert list(task([])) == []


def test_a_bag_counts_the_copies_of_the_target() -> None:
    """The old row of each update is told, as the key log needs it."""
    schema = pa.schema([("n", pa.int64()), ("v", pa.string())])
    values = [(1, "x"), (1, None), (None, None)]
    for _ in range(20):
        seed = random.randrange(10**9)
        rules = Rules.of("strict", {"update_missing": random.choice(["apply", "log"])})
        changes = bag_history(seed, 40, values)
        before = Counter({v: random.randrange(3) for v in values})
        bag = Bag(rules, Counter(before))
        for change in changes:
            bag.apply(change)
        truncates = tuple(seq(c.number) for c in changes if c.oper == "T")
        task = DecideTask(schema, rules, truncates, ("n", "v"), bag=True)
        rows = [there(n=n, v=v) | {HAVE: many} for (n, v), many in before.items() if many]
        rows += [image(n, o, **v) for c in changes if c.oper != "T" for n, o, v in c.images_of(["n", "v"])]
        found = decided(task, rows)
        odd = {r["seq"] for r in found if r["situation"] not in PLAIN}
        assert odd == {seq(number) for number, *_, flag in bag.log if flag}, seed
        olds = {r["seq"]: (r["k0"], r["k1"]) for r in found if r["moved"]}
        assert olds == {seq(c.number): c.old for c in changes if c.oper == "U"}, seed


def test_updates_that_lack_columns_are_made_whole() -> None:
    """By the row of the target, by an earlier change, and by that under another key; a silent one leaves
    nothing, a truncate takes all."""
    schema = schema_of(RELATION.columns)
    kinds = [(SEQ, pa.string()), (OPER, pa.string()), (CARRIED, pa.string()), ("header__silent", pa.bool_()),
             ("header__lives", pa.bool_()), *schema]  # fmt: skip
    task = CompleteTask(schema, ("lane", "id"), Rules.of("strict"), (seq(9),))

    def lacking(number: int, key: str, **values: Any) -> dict[str, Any]:
        carries = "".join(str(int(n in ("lane", "id") or n in values)) for n in schema.names)
        return image(number, "U", lane=0, id=key, **values) | {CARRIED: carries}

    rows = [
        there(lane=0, id="p", a=1, b="theirs", header__lives=True),
        lacking(1, "p", a=2),
        lacking(2, "p", b="silent") | {"header__silent": True},
        lacking(3, "p", a=3),
        image(4, "B", lane=0, id="p"), lacking(4, "q", b="moved"),
        lacking(5, "q", a=5),
        lacking(6, "r", a=6),
        image(7, "I", lane=0, id="r", a=7, b="new"),
        lacking(8, "r", a=8),
        lacking(10, "r", a=10),
    ]  # fmt: skip
    table = pa.Table.from_pylist(random.sample(rows, len(rows)), pa.schema(kinds))
    (made,) = task(table.to_batches())
    found = {r["seq"]: (r["c1"], r["c2"], r["c3"]) for r in made.to_pylist()}
    assert found == {
        seq(1): ("p", 2, "theirs"), seq(2): ("p", 2, "silent"), seq(3): ("p", 3, "theirs"),
        seq(4): ("q", 3, "moved"), seq(5): ("q", 5, "moved"), seq(8): ("r", 8, "new"),
    }  # fmt: skip


def test_images_that_lack_columns_are_folded() -> None:
    """What stays in the target's own row (`kept`), what comes along from another key, what a delete ends."""
    schema = schema_of(RELATION.columns)
    kinds = [(SEQ, pa.string()), (OPER, pa.string()), (CARRIED, pa.string()), *schema]

    def some(number: int, oper: str, key: str, **values: Any) -> dict[str, Any]:
        carries = "".join(str(int(n in ("lane", "id") or n in values)) for n in schema.names)
        return image(number, oper, lane=0, id=key, **values) | {CARRIED: carries}

    rows = [
        there(lane=0, id="p", a=1, b="theirs"),
        some(1, "U", "own", a=1),
        some(2, "U", "whole", a=2, b="x"),
        some(3, "B", "p", a=9, b="before"), some(3, "U", "q", a=3),
        some(4, "B", "none", b="before"), some(4, "U", "made", a=4),
        some(5, "D", "gone"), some(6, "U", "gone", a=6),
        some(7, "I", "left", b="new"), some(8, "D", "left"),
    ]  # fmt: skip
    table = pa.Table.from_pylist(random.sample(rows, len(rows)), pa.schema(kinds))
    made = pa.Table.from_batches(FoldTask(schema, ("lane", "id"))(table.to_batches())).to_pylist()
    assert {r["c1"]: (r["op"], r["kept"], r["c2"], r["c3"]) for r in made if r["op"] == "U"} == {
        "own": ("U", "0001", 1, None), "whole": ("U", None, 2, "x"), "q": ("U", None, 3, "theirs"),
        "made": ("U", None, 4, "before"), "gone": ("U", None, 6, None),
    }  # fmt: skip
    assert sorted(r["c1"] for r in made if r["op"] == "D") == ["left", "none", "p"]
