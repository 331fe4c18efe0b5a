"""A target under test: how the conformance suite creates, writes and reads it."""

# ruff: noqa: S101 - a test suite

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..model.change import Relation
from ..targets.base import Target
from ..targets.merge_result import ApplyOutcome
from ..targets.merge_rows import merge_rows
from .concurrent_step import Wait
from .images import RELATION, batch_of, change_table, image, merge_images

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TargetHooks:
    """Creates, reads and writes a target under test; a suite's subclass defines all three."""

    @pytest.fixture
    def target(self) -> Target:
        """Returns a new target."""
        raise NotImplementedError("give a fixture `target`")

    def rows(self, spark: SparkSession, target: Target, table: str) -> DataFrame:
        """Returns the target table, read without the target's own code."""
        raise NotImplementedError

    def sql(self, spark: SparkSession, target: Target, table: str, statement: str) -> None:
        """Executes a statement of another writer, committed without the target's own code; `{}`
        is the table."""
        raise NotImplementedError


class TargetCase(TargetHooks):
    """A target under test, and the steps of its tests."""

    relation: Relation = RELATION
    """It has the columns id (key), v and Wide_Word (a name in mixed case)."""

    def run(
        self, spark: SparkSession, target: Target, *rows: Any, of: Relation | None = None
    ) -> ApplyOutcome:
        """Applies one batch of images."""
        return merge_images(spark, target, of or self.relation, rows)

    def run_meanwhile(
        self, spark: SparkSession, target: Target, folder: Path, statement: str, *rows: Any, of: Relation
    ) -> ApplyOutcome:
        """Applies one batch of images; another writer's statement is committed while its changes are read."""
        changes, wait = change_table(spark, of, rows), Wait(str(folder / uuid.uuid4().hex))
        changes = changes.with_df(changes.df.mapInArrow(wait, changes.df.schema))
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(wait.between, lambda: self.sql(spark, target, of.table, statement))
            done = merge_rows(target, changes, batch_of(of, rows), str(folder))
            other.result()
        return done

    def same(
        self, spark: SparkSession, target: Target, *want: Sequence[Any], of: Relation | None = None
    ) -> None:
        """Asserts that the target has exactly these rows, with columns in the relation's order."""
        relation = of or self.relation
        df = self.rows(spark, target, relation.table)
        names = [c.name for c in relation.columns]
        assert sorted(df.columns) == sorted(names)
        have = [tuple(_plain(r[n]) for n in names) for r in df.collect()]
        assert sorted(have, key=repr) == sorted((tuple(r) for r in want), key=repr)

    @pytest.fixture
    def filled(self, spark: SparkSession, target: Target) -> Target:
        """Returns a target with the rows 1 a, 2 b, 3 c (change number 3)."""
        self.run(spark, target, *[(n, "I", image(n, w)) for n, w in ((1, "a"), (2, "b"), (3, "c"))])
        return target


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value
