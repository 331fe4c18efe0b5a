"""Random histories against a plain model: every plan and `state_at` agree with it after each batch.

Many small histories run side by side in one table: `lane` is part of the key, and no change crosses lanes. So
a few Spark jobs judge many histories.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.engine.rules import Rules
from tailrace.model.change import Column, Relation
from tailrace.query.state import state_at
from tailrace.targets.delta.target import DeltaTarget
from tailrace.testing.images import Image, change_table, count, merge_images

from . import rules_model
from .literal_tables import rows_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LANES, STEPS, BATCHES = 30, 12, 2
LANE = Column("lane", 1, "integer", "int4", "int", key=True)
ID = Column("id", 2, "text", "text", "string", key=True)
A = Column("a", 3, "integer", "int4", "int")
B = Column("b", 4, "text", "text", "string")
C = Column("c", 5, "text", "text", "string")
RELATION = Relation(1, "s", "t", "d", (LANE, ID, A, B, C))
BAG = Relation(2, "s", "bag", "f", (A, B))

Row = dict[str, Any]


class Model:
    """One table with a key: applies what a random user does, and keeps the images a source would send."""

    def __init__(self, seed: int, full: bool) -> None:
        self.random, self.full = random.Random(seed), full
        self.rows: dict[tuple[int, str], Row] = {}
        self.images: list[Image] = []
        self.number = 0

    def step(self, lane: int) -> None:
        self.number += 1
        mine = [k for k in self.rows if k[0] == lane]
        free = [(lane, i) for i in "pqrst" if (lane, i) not in self.rows]
        kind = self.random.choice("IIUUUUMMMD")
        if kind == "I" and free:
            self.insert(self.random.choice(free))
        elif kind == "D" and mine:
            self.delete(self.random.choice(mine))
        elif kind == "U" and mine:
            key = self.random.choice(mine)
            self.update(key, key)
        elif kind == "M" and mine and free:
            self.update(self.random.choice(mine), self.random.choice(free))

    def value(self) -> str | None:
        return self.random.choice([None, "", "x" * self.random.randrange(1, 9), f"v{self.number}"])

    def insert(self, key: tuple[int, str]) -> None:
        row = {"lane": key[0], "id": key[1], "a": self.number, "b": self.value(), "c": self.value()}
        self.rows[key] = row
        self.images.append((self.number, "I", dict(row)))

    def delete(self, key: tuple[int, str]) -> None:
        row = self.rows.pop(key)
        self.images.append((self.number, "D", dict(row) if self.full else {"lane": key[0], "id": key[1]}))

    def update(self, old: tuple[int, str], new: tuple[int, str]) -> None:
        row = self.rows.pop(old)
        if self.full:
            self.images.append((self.number, "B", dict(row)))
        elif old != new:
            self.images.append((self.number, "B", {"lane": old[0], "id": old[1]}))
        sent = {"lane": new[0], "id": new[1], "a": self.number}
        sent |= {c: self.value() for c in "bc" if self.full or self.random.random() < 0.5}
        self.rows[new] = row | sent
        self.images.append((self.number, "U", sent))

    def state(self) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(r[c.name] for c in RELATION.columns) for r in self.rows.values())


def histories(seed: int, full: bool) -> list[tuple[list[Image], Counter[tuple[Any, ...]]]]:
    """Batches of images, shuffled, and the state after each."""
    model, found = Model(seed, full), []
    for _ in range(BATCHES):
        model.images = []
        for _ in range(STEPS):
            for lane in range(LANES):
                model.step(lane)
        model.random.shuffle(model.images)
        found.append((model.images, model.state()))
    return found


def held(df: Any, relation: Relation) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(r) for r in df.select(*[c.name for c in relation.columns]).collect())


PLANS = {"task_local": (1 << 30, 0), "distributed": (0, 0), "rewritten": (0, 1 << 30)}
# Of full images no plan takes anything from a row; Spark's MERGE is another one then.
CASES = [(*PLANS["distributed"], True), *((*how, False) for how in PLANS.values())]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "rewritten", "full"), CASES, ids=["distributed, full images", *PLANS])
def test_any_history_ends_in_the_models_state(
    spark: SparkSession, tmp_path: Path, limit: int, rewritten: int, full: bool
) -> None:
    seed = random.randrange(10**6)
    target = DeltaTarget(
        spark, str(tmp_path), app_id="t", local_limit_bytes=limit, rewrite_share=0, rewrite_bytes=rewritten
    )
    target.alter(RELATION.table, RELATION, RELATION)
    path = target.path(RELATION.table)
    for number, (images, want) in enumerate(histories(seed, full)):
        before = rows_at(spark, path)
        if not limit and not rewritten:  # once is enough: it does not depend on the target's plan
            overlaid = state_at(before, change_table(spark, RELATION, images), RELATION)
            assert held(overlaid, RELATION) == want, f"state_at, seed {seed}, batch {number}"
        merge_images(spark, target, RELATION, images)
        assert held(rows_at(spark, path), RELATION) == want, f"seed {seed}, batch {number}"


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "rewritten"), PLANS.values(), ids=PLANS)
def test_what_an_image_lacks_is_the_rows_that_it_meets(
    spark: SparkSession, tmp_path: Path, limit: int, rewritten: int
) -> None:
    """Of changes that meet other rows than at the source, and whose images before have other values."""
    seed = random.randrange(10**6)
    target = DeltaTarget(
        spark, str(tmp_path), app_id="t", local_limit_bytes=limit, rewrite_share=0, rewrite_bytes=rewritten
    )
    model = rules_model.Model("upsert", Rules.of("upsert").on)
    changes, path = rules_model.history(seed, LANES, STEPS), target.path(rules_model.RELATION.table)
    for some in (changes[: LANES * 4], changes[LANES * 4 : LANES * 8], changes[LANES * 8 :]):
        for one in some:
            assert model.apply(one) is None
        images = [image for one in some for image in one.images]
        random.Random(seed).shuffle(images)
        merge_images(spark, target, rules_model.RELATION, images)
        rows = rows_at(spark, path).collect()
        assert sorted(map(tuple, rows), key=repr) == model.state(), f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 0], ids=["one task", "several tasks"])
def test_any_bag_ends_in_the_models_state(spark: SparkSession, tmp_path: Path, limit: int | None) -> None:
    """Some rows that changes take away are missing in the target, and come later."""
    dice = random.Random(seed := random.randrange(10**6))
    sized = {} if limit is None else {"local_limit_bytes": limit}
    target = DeltaTarget(spark, str(tmp_path), app_id="t", **sized)
    path, number = target.path(BAG.table), 0
    rows: Counter[tuple[Any, ...]] = Counter()
    target.alter(BAG.table, BAG, BAG)
    for _ in range(BATCHES):
        images: list[Image] = []
        missing = 0
        for _ in range(200):
            number += 1
            kind = dice.choice("IIUD")
            old, new = ((dice.choice([None, 1, 2]), dice.choice([None, "", "x"])) for _ in range(2))
            if kind in "UD":
                images.append((number, "B" if kind == "U" else "D", dict(zip("ab", old, strict=True))))
                missing += rows[old] == 0
                rows[old] = max(rows[old] - 1, 0)
            if kind in "IU":
                images.append((number, kind, dict(zip("ab", new, strict=True))))
                rows[new] += 1
        dice.shuffle(images)
        before = rows_at(spark, path)
        assert held(state_at(before, change_table(spark, BAG, images), BAG), BAG) == +rows, seed
        done = merge_images(spark, target, BAG, images)
        assert done.missing == missing, seed
        assert held(rows_at(spark, path), BAG) == +rows, seed


def test_state_after_a_truncate(spark: SparkSession) -> None:
    before = spark.createDataFrame([(1, "p", 1, "b", "c")], "lane int, id string, a int, b string, c string")
    row = {"lane": 1, "id": "q", "a": 2, "b": "x", "c": None}
    images: list[Image] = [(1, "T", {}), (2, "I", row), (3, "U", {"lane": 1, "id": "q", "a": 3})]
    changes = change_table(spark, RELATION, images)
    assert held(state_at(before, changes, RELATION), RELATION) == Counter([(1, "q", 3, "x", None)])
    counted = state_at(before, changes, RELATION, count(RELATION, images))
    assert held(counted, RELATION) == Counter([(1, "q", 3, "x", None)])


def test_a_crash_after_the_commit_changes_nothing_on_replay(spark: SparkSession, tmp_path: Path) -> None:
    first = DeltaTarget(spark, str(tmp_path), app_id="t")
    ((images, want), *_) = histories(7, True)
    merge_images(spark, first, RELATION, images)
    version = merge_images(spark, first, RELATION, images).version
    again = merge_images(spark, DeltaTarget(spark, str(tmp_path), app_id="t"), RELATION, images)
    assert (again.plan, again.version) == ("none", version)
    assert held(rows_at(spark, first.path(RELATION.table)), RELATION) == want
