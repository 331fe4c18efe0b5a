"""The engine against a plain row-by-row model: arrays in, arrays out, no Spark and no files."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tailrace.engine.batch import Batch, Changes
from tailrace.engine.columns import MASK, OPER, SEQ
from tailrace.engine.decide import NAMES
from tailrace.engine.linked import linked
from tailrace.engine.rules import IGNORED, Rules
from tailrace.engine.source import Source
from tailrace.model import mask, sequence
from tailrace.model.types import schema_of

from ..examples import rounds
from ..spark.bag_model import Bag
from ..spark.bag_model import history as bag_history
from ..spark.rules_model import RELATION, Change, Model, history, nulled

pytestmark = pytest.mark.unit
TIME = 2026010100000000
DATA = schema_of(RELATION.columns)
NAMED, KEY, HEADERS = DATA.names, ("lane", "id"), 8
ORDINALS = tuple(range(HEADERS, HEADERS + len(NAMED)))
Row = dict[str, Any]
POLICIES = ("apply", "ignore", "log")


class Table:
    """A target in memory: key -> row, and its marks."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.rows = rules, dict[tuple[Any, ...], Row]()
        self.mark = rules.soft_column if rules.mode == "soft_delete" else None
        self.schema = DATA.append(pa.field(self.mark, pa.string())) if self.mark else DATA

    def met(
        self, changes: Sequence[Change]
    ) -> tuple[Source, npt.NDArray[np.bool_], dict[int, tuple[Any, ...]]]:
        """The changes, which of their keys live, and the keys by their numbers."""
        rows = arrow(changes, self.schema)
        source = Source.of(rows, KEY, self.schema, partial=False)
        if self.mark:
            source = replace(source, mark=self.mark)
        keys = list(zip(*[source.rows[k].to_pylist() for k in KEY], strict=True))
        number = dict(zip(source.keys.place.tolist(), keys, strict=True))
        exists = np.array([self.lives(number[n]) for n in range(len(source.last))], np.bool_)
        return source, exists, number

    def apply(self, changes: Sequence[Change]) -> Batch:
        source, exists, number = self.met(changes)
        batch = Changes.of(source, emptied(changes)).met(exists, self.rules, {})
        if any(c.oper == "T" for c in changes):
            self.rows.clear()

        def rows_of(wanted: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], pa.Table]:
            there = [n for n in wanted.tolist() if number[n] in self.rows]
            return np.array(there, np.int64), pa.Table.from_pylist(
                [self.rows[number[n]] for n in there], self.schema
            )

        left = batch.left(source, ORDINALS, rows_of)
        lasting = np.flatnonzero(left.last >= 0)
        gone = left.deletes[left.last[lasting]]
        met = np.array([number[n] in self.rows for n in lasting.tolist()], np.bool_)
        for n in lasting[gone].tolist():
            self.rows.pop(number[n], None)
        for some, there in ((lasting[~gone & met], True), (lasting[~gone & ~met], False)):
            if len(some):
                old = (
                    pa.RecordBatch.from_pylist([self.rows[number[n]] for n in some.tolist()], self.schema)
                    if there
                    else None
                )
                made = left.images(left.last[some], old).to_pylist()
                self.rows |= {number[n]: row for n, row in zip(some.tolist(), made, strict=True)}
        return batch

    def lives(self, key: tuple[Any, ...]) -> bool:
        row = self.rows.get(key)
        return row is not None and (self.mark is None or row[self.mark] is None)

    def state(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(r.values()) for r in self.rows.values()), key=repr)


def arrow(changes: Sequence[Change], schema: pa.Schema) -> pa.Table:
    """The images of changes; of one that lacks columns the mask says which are there."""
    rows = []
    for change in changes:
        for number, oper, values in change.images:
            some = mask.encode([HEADERS + i for i, n in enumerate(NAMED) if n in values])
            told = {SEQ: sequence.make(TIME, number), OPER: oper}
            rows.append(told | {MASK: None if len(values) == len(NAMED) else some} | values)
    kinds = [(SEQ, pa.string()), (OPER, pa.string()), (MASK, pa.binary()), *schema]
    return pa.Table.from_pylist(rows, pa.schema(kinds))


Told = tuple[int, str, str, int | None, bool]
"""What became of a change: number, operation, action, row count, whether it is flagged."""


def told(batch: Batch) -> list[Told]:
    """What became of each change of a batch."""
    made = []
    for row in batch.changes.tolist():
        outcome = batch.rules.outcome(NAMES[batch.decided.situation[row]])
        number = sequence.number_of(batch.rows[SEQ][row].as_py())
        made.append((number, str(batch.events.oper[row]), outcome.action, outcome.rows, outcome.flagged))
    return made


def some_rules(dice: random.Random) -> Rules:
    """A mode and policies that end no batch."""
    mode = dice.choice(["strict", "upsert", "soft_delete"])
    on = {k: dice.choice(POLICIES) for k in ("insert_exists", "update_missing", "delete_missing")}
    return Rules.of(mode, on | {"data_error": dice.choice(POLICIES[1:])})


def emptied(changes: Sequence[Change]) -> list[str]:
    """The sequences of truncates."""
    return [sequence.make(TIME, c.number) for c in changes if c.oper == "T"]


def run(seed: int, rules: Rules, lanes: int, steps: int, *, truncate: bool = False) -> None:
    """Lanes do not meet: each has a model of its own."""
    changes = nulled(history(seed, lanes, steps, truncate=truncate))
    cut = random.Random(seed).randrange(1, len(changes))
    models, table = [Model(rules.mode, rules.on) for _ in range(lanes)], Table(rules)
    for some in (changes[:cut], changes[cut:]):
        wanted: list[Told] = []
        for change in some:
            model = models[change.values.get("lane", 0)]
            for each in models if change.oper == "T" else [model]:
                assert each.apply(change) is None
            number, oper, action, rows, _, flagged = model.log[-1]
            wanted.append((number, oper, action, rows, flagged))
        assert told(table.apply(some)) == wanted, (seed, rules)
        state = sorted([row for model in models for row in model.state()], key=repr)
        assert table.state() == state, (seed, rules)


def test_any_history_ends_as_row_by_row() -> None:
    for _ in range(40):
        seed = random.randrange(10**9)
        run(seed, some_rules(random.Random(seed)), lanes=20, steps=10, truncate=seed % 3 == 0)


@pytest.mark.slow
def test_many_changes_end_as_row_by_row() -> None:
    """200,000 changes; `EXAMPLES=20`: four million."""
    for _ in range(rounds(2)):
        seed = random.randrange(10**9)
        run(seed, some_rules(random.Random(seed)), lanes=5_000, steps=10)


def test_a_chain_of_key_changes_that_hang_on_each_other() -> None:
    """Each is passed over only because the one before it was; a pass settles one of them at a time."""
    rules = Rules.of("strict")
    table, model = Table(rules), Model("strict", rules.on)
    start = [change(n, "I", k) for n, k in enumerate("abcde", 1)]
    chain = [change(10 + n, "U", new, old) for n, (old, new) in enumerate(zip("abcde", "bcdex", strict=True))]
    for some in (start, [*chain, change(20, "U", "d", "x"), change(21, "D", "e"), change(22, "U", "e", "c")]):
        table.apply(some)
        for one in some:
            model.apply(one)
        assert table.state() == sorted(model.state(), key=repr)


def test_a_bag_ends_as_row_by_row() -> None:
    """A table without key: rows are counted."""
    schema, width = pa.schema([("n", pa.int64())]), 6
    for _ in range(60):
        dice = random.Random(seed := random.randrange(10**9))
        on = {k: dice.choice(POLICIES) for k in ("update_missing", "delete_missing")}
        rules = Rules.of(dice.choice(["strict", "upsert"]), on)
        model = Bag(rules, Counter({(n,): dice.randrange(3) for n in range(width)}))
        changes = bag_history(seed, 60, [(n,) for n in range(width)])
        rows = [
            {SEQ: sequence.make(TIME, number), OPER: oper} | row
            for c in changes for number, oper, row in c.images_of(["n"])
        ]  # fmt: skip
        table = pa.Table.from_pylist(rows, pa.schema([(SEQ, pa.string()), (OPER, pa.string()), *schema]))
        source = Source.of(table, ("n",), schema, partial=False)
        values = dict(zip(source.keys.place.tolist(), table["n"].to_pylist(), strict=True))
        copies = np.array([model.rows[(values[n],)] for n in range(len(source.last))])
        bare = replace(source, key=())
        batch = Changes.of(bare, emptied(changes)).met_copies(copies, rules, {})  # type: ignore[arg-type]
        for one in changes:
            model.apply(one)
        assert told(batch) == [(n, oper, action, many, flag) for n, oper, action, many, _, flag in model.log]
        left = Counter(dict(model.rows)) if any(c.oper == "T" for c in changes) else None
        if left is not None:
            lasting = np.flatnonzero(batch.decided.effective & batch.events.lasting)
            net: Counter[tuple[Any, ...]] = Counter()
            for row in lasting.tolist():
                net[(table["n"][row].as_py(),)] += 1 if batch.events.oper[row] in "IU" else -1
            assert +net == +left, seed


def test_keys_that_changes_link() -> None:
    for _ in range(50):
        dice = random.Random(random.randrange(10**9))
        pairs = [(dice.randrange(40), dice.randrange(40)) for _ in range(dice.randrange(30))]
        groups: dict[int, set[int]] = {}
        for a, b in pairs:
            both = groups.get(a, {a}) | groups.get(b, {b})
            groups |= dict.fromkeys(both, both)
        keys, least = linked(
            np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)
        )
        assert dict(zip(keys.tolist(), least.tolist(), strict=True)) == {k: min(g) for k, g in groups.items()}


def test_a_long_chain_of_linked_keys() -> None:
    many = 200_000
    keys, least = linked(np.arange(many), np.arange(many) + 1)
    assert len(keys) == many + 1 and not least.any()


@pytest.mark.parametrize(
    ("on", "ends", "upto"),
    [
        ({"delete_missing": "stop"}, ("D0", 2), 1),
        ({"delete_missing": "log then suspend after 1"}, ("D0", 4), 3),
        ({"delete_missing": "log then stop after 2"}, None, 5),
        ({"update_missing": "suspend", "delete_missing": "stop"}, ("D0", 2), 1),
    ],
    ids=str,
)
def test_where_a_batch_ends(on: Mapping[str, str], ends: tuple[str, int] | None, upto: int) -> None:
    changes = [
        change(1, "I", "a"), change(2, "D", "p"), change(3, "U", "q"), change(4, "D", "r"),
        change(5, "I", "b"),
    ]  # fmt: skip
    table = Table(Rules.of("strict", on))
    batch = table.apply(changes)
    assert batch.upto(5) == upto
    found = None if batch.ends is None else (batch.ends[0], batch.ends[1])
    assert found == (ends and (sequence.make(TIME, ends[1]), "delete_missing"))
    assert sorted(k for _, k in table.rows) == (["a", "b"] if ends is None else ["a"])


def test_an_update_whose_old_key_is_null_is_set_aside_alone() -> None:
    table = Table(Rules.of("strict", {"data_error": "ignore"}))
    moved = Change(2, "U", (0, None), {"lane": 0, "id": "a", "a": 2, "b": "a"})  # type: ignore[arg-type]
    batch = table.apply([change(1, "I", "a"), moved, change(3, "U", "a")])
    assert told(batch) == [(1, "I", "I", 1, False), (2, "U", IGNORED, 0, False), (3, "U", "M", 1, False)]
    assert table.state() == [(0, "a", 3, "a")]


def test_the_engine_needs_no_spark_and_no_delta() -> None:
    names = [
        "batch",
        "columns",
        "decide",
        "events",
        "keys",
        "log_rows",
        "missing_values",
        "null_keys",
        "rules",
        "source",
    ]
    loads = "; ".join(f"import tailrace.engine.{n}" for n in names)
    code = f"import sys; {loads}; print([m for m in ('pyspark', 'deltalake', 'psycopg') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def change(number: int, oper: str, key: str, old: str | None = None) -> Change:
    row = {"lane": 0, "id": key} | ({} if oper == "D" else {"a": number, "b": key})
    return Change(number, oper, None if old is None else (0, old), row)
