"""Changes that a target cannot hold because of the row they meet; those apart that their own image tells.

As if changes were applied one statement at a time: a bad one is set aside alone, and what comes after it
meets the row as it was before it. A database finds them itself, when it is written to. For a Delta table
the images that lack columns are made whole with the rows they meet. When some are refused, later ones meet
something else: so which are refused is guessed (none), and looked at again under that guess, until it is
right. Each round settles at least the earliest wrong one, most rounds all but a few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from ..engine.columns import OPER, SEQ, SILENT, WHY
from ..engine.rules import ENDING, Rules
from ..errors import ApplyError, ConcurrentCommitError
from ..execution import over_rows
from ..model.change import BEFORE, PREFIX, TRUNCATE, UPDATE, ChangeTable
from ..model.types import schema_of
from . import data_errors, effects
from .data_errors import Bad, Demands, lacks, retyped, unmarked, without
from .expect import truncates_of, under
from .images import col, images, masked, ordinals
from .rules_batch import RulesBatch
from .shards import ShardTask, sharded, small
from .targets.base import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_T = TypeVar("_T")
_ATTEMPTS, _AT = 10, "header__at"
ROUNDS = 100
"""More than so many changes that hang on each other, one after the other, are not looked at."""


@dataclass(frozen=True)
class ConstraintCheck:
    """Finds the changes of batches that a target cannot hold.

    Attributes:
        target, rules: where and how the changes are applied.
        reached: the batch was applied: judged as of the version with this change number.
    """

    target: Target
    rules: Rules
    reached: int | None = None

    def judged(self, batch: RulesBatch) -> RulesBatch:
        """The batch, its changes with a column `WHY` when the target may refuse some: what is wrong with each
        (NULL: nothing). That a key is NULL is found when they are decided.

        Raises:
            ApplyError: more than `ROUNDS` hang on each other.
        """
        demands, found = self.target.demands(batch.table), batch.found
        layout, archive = effects.relation_of(found.relation, self.rules), self.rules.mode == "archive"
        if not (demands or retyped(batch.changes, found.relation)):
            return batch
        # Rows of a bag are written as they come: there is none that they would take something from.
        hang = bool(demands and layout.key and lacking(batch.changes, found.counts))
        keyed = layout if archive else replace(found.relation, columns=layout.columns)
        if not (archive or hang):
            return replace(batch, changes=data_errors.marked(batch.changes, keyed, demands))
        changes, counts, letter = batch.changes, dict(found.counts), None
        if archive:
            have = self.target.columns(batch.table) if self.target.exists(batch.table) else {}
            order = list(dict.fromkeys([*have, *(c.name for c in layout.columns)]))
            changes, counts = effects.archived(changes, counts, order)
            letter = PREFIX + "change_oper"
        bad = data_errors.look(changes, keyed, demands, letter=letter)
        if hang:
            bad = self._rounds(batch, demands, bad)
        if bad is None and archive:  # every image was looked at: nothing is left to be judged
            return batch
        return replace(batch, changes=bad.marked(batch.changes) if bad else unmarked(batch.changes))

    def _rounds(self, batch: RulesBatch, demands: Demands, bad: Bad | None) -> Bad | None:
        rows = self._rows(batch)
        good = without(batch.changes, bad)
        guess: Bad | None = None
        for _ in range(ROUNDS):
            refused = self._refused(batch, good, guess, demands, rows)
            right, guess = _same(refused, guess), refused
            # Under a policy that ends the batch the first one will do, and that is right.
            if right or self.rules.on["data_error"] in ENDING:
                return bad if guess is None else Bad.of(guess.df, bad)
        raise ApplyError(
            f"more than {ROUNDS} changes are refused, or not, each for what the one before it leaves",
            where=batch.table,
            hint="let batches be smaller (`apply.max_changes`), apply by transactions (`transactional`), or "
            "take the target's constraint away",
        )

    def _refused(
        self,
        batch: RulesBatch,
        good: ChangeTable,
        guess: Bad | None,
        demands: Demands,
        rows: DataFrame,
    ) -> Bad | None:
        """The updates that are refused when those of a guess leave nothing."""
        from pyspark.sql import functions as F

        whole = self._completed(batch, good, guess, rows)
        why = F.coalesce(*data_errors.nulls(demands), *data_errors.refusals(demands))
        refused = whole.select(SEQ, F.lit(UPDATE).alias(OPER), why.alias(WHY))
        return Bad.of(refused.where(col(WHY).isNotNull()))

    def _completed(
        self, batch: RulesBatch, good: ChangeTable, guess: Bad | None, there: DataFrame
    ) -> DataFrame:
        """The updates that lack columns and take part, whole: `SEQ` and the layout's columns. Those of a
        guess leave nothing to later ones."""
        from pyspark.sql import functions as F

        found, layout = batch.found, effects.relation_of(batch.found.relation, self.rules)
        # They count as judged: old images, which nobody writes, may have values that are none of their types.
        changes = good.with_df(good.df.where(col(good.header("change_oper")) != TRUNCATE))
        rows = images(unmarked(changes), layout, extras=masked(good))
        if guess is not None:
            mine = guess.df.select(col(SEQ).alias(_AT), F.lit(True).alias(SILENT))
            same = (col(SEQ) == col(_AT)) & col(OPER).isin(BEFORE, UPDATE)
            rows = rows.join(small(mine, guess.many), same, "left").drop(_AT)
        there = under(rows, there, layout, sum(found.counts.values()))
        rows = rows.unionByName(there, allowMissingColumns=True)
        places = ordinals(good.df.columns, [c.name for c in found.relation.columns])
        task = CompleteTask(ShardTask(layout, places, self.rules, truncates_of(good, found.counts)))
        links, memory = bool(found.counts.get("key_changes")), self.target.capabilities.memory_bytes
        shards = sharded(rows, layout.key, found.counts, links=links, memory=memory)
        kinds = ", ".join(f"r{i} {c.type}" for i, c in enumerate(layout.columns))
        return over_rows(shards, task, f"seq string, {kinds}").toDF(SEQ, *[c.name for c in layout.columns])

    def _rows(self, batch: RulesBatch) -> DataFrame:
        """The target's rows under the keys of the updates, old and new, as they were before the batch."""
        relation = batch.found.relation
        layout = effects.relation_of(relation, self.rules)
        keys = batch.changes.df.select(*map(col, relation.key))
        return self.target.rows_there(layout, keys, reached=self.reached)


@dataclass(frozen=True)
class CompleteTask:
    """Makes the updates of a shard whole that lack columns, see `Shard.completed`."""

    decides: ShardTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rules, shard = self.decides.rules, self.decides.shard(batches)
        if shard is not None and rules is not None:
            whole, columns = shard.completed(rules), schema_of(self.decides.relation.columns)
            have, none = set(whole.schema.names), whole.num_rows
            made = [whole[f.name] if f.name in have else pa.nulls(none, f.type) for f in columns]
            yield from pa.table(
                [whole[SEQ], *made], ["seq", *[f"r{i}" for i in range(len(made))]]
            ).to_batches()


def lacking(changes: ChangeTable, counts: Mapping[str, int]) -> bool:
    """Whether updates lack columns; runs a small job when `counts` says that some may."""
    return bool(counts.get("absent")) and not changes.df.where(lacks(changes)).isEmpty()


def anew(work: Callable[[], _T]) -> _T:
    """Does work that looks at a target's rows and then commits; again when somebody else committed between
    the two, because what the changes met is then not what they meet."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except ConcurrentCommitError:
            continue
    return work()


def _same(one: Bad | None, other: Bad | None) -> bool:
    """Whether both are the same changes."""
    if one is None or other is None:
        return one is other
    return one.many == other.many and one.df.join(other.df, SEQ, "left_anti").isEmpty()
