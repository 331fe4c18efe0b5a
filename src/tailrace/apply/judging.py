"""Changes that a target cannot hold because of the row they meet; those apart that their own image tells.

As if changes were applied one statement at a time: a bad one is set aside alone, and what comes after it
meets the row as it was before it. A database is asked and tries them in that order itself. For a Delta table
the images that lack columns are made whole with the rows they meet. When some are refused, later ones meet
something else: so which are refused is guessed (none), and looked at again under that guess, until it is
right. Each round settles at least the earliest wrong one, most rounds all but a few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from ..engine.columns import OPER, SEQ
from ..engine.rules import ENDING, Rules
from ..errors import ApplyError, ConcurrentCommitError
from ..model.change import PREFIX, UPDATE, ChangeTable
from . import data_errors, effects
from .completed import completed, lacking
from .data_errors import Bad, Demands, retyped, without
from .fold import col, met_null_key
from .outcomes import WHY
from .plan import TableBatch
from .ruled_batch import Batch
from .targets.base import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_T = TypeVar("_T")
_ATTEMPTS = 10
ROUNDS = 100
"""More than so many changes that hang on each other, one after the other, are not looked at."""


@dataclass(frozen=True)
class Judge:
    """Finds the changes of batches that a target cannot hold.

    Attributes:
        target, rules: where and how the changes are applied.
        reached: the batch was applied: judged as of the version with this change number.
        null_keys: a job has met a change with a NULL in its key.
    """

    target: Target
    rules: Rules
    reached: int | None = None
    null_keys: bool = False

    def bad(self, batch: Batch) -> Bad | None:
        """The changes that the target cannot hold; None: there are none. Looks only if there may be some.

        Raises:
            ApplyError: more than `ROUNDS` hang on each other.
        """
        demands, found = self.target.demands(batch.table), batch.found
        if not self._may_have(batch, demands):
            return None
        layout, archive = effects.relation_of(found.relation, self.rules), self.rules.mode == "archive"
        changes, counts, letter = batch.changes, dict(found.counts), None
        if archive:
            order = list(self.target.columns(batch.table))
            changes, counts = effects.archived(changes, counts, order)
            letter = PREFIX + "change_oper"
        keyed = layout if archive else replace(found.relation, columns=layout.columns)
        bad = data_errors.look(changes, keyed, demands, letter=letter)
        if demands.tested and (tests := self.target.capabilities.tests) is not None:
            asked = TableBatch(batch.table, layout, without(changes, bad), found.upto, counts)
            refused = tests.refused(asked, self.rules, letter)
            return bad if refused is None else Bad.of(refused, bad)
        # Rows of a bag are written as they come: there is none that they would take something from.
        if demands and layout.key and lacking(changes, counts):
            return self._rounds(batch, demands, bad)
        return bad

    def _may_have(self, batch: Batch, demands: Demands) -> bool:
        """Whether to look. Under `stop` a NULL in a key needs no look: `expect` tells of it, and what is
        written without that fails at it (see `twice`), but before a truncate."""
        if self.null_keys or demands or demands.values or self.rules.on["data_error"] != "stop":
            return True
        relation = batch.found.relation
        return retyped(batch.changes, relation) or bool(relation.key and batch.found.counts.get("T"))

    def _rounds(self, batch: Batch, demands: Demands, bad: Bad | None) -> Bad | None:
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
        batch: Batch,
        good: ChangeTable,
        guess: Bad | None,
        demands: Demands,
        rows: DataFrame,
    ) -> Bad | None:
        """The updates that are refused when those of a guess leave nothing."""
        from pyspark.sql import functions as F

        found, rules = batch.found, self.rules
        silent = None if guess is None else guess.df.select(SEQ)
        whole = completed(good, found.relation, rules, found.counts, rows, silent)
        more = effects.relation_of(found.relation, rules).columns[len(found.relation.columns) :]
        whole = whole.withColumns({c.name: F.lit(None).cast(c.type) for c in more})
        why = F.coalesce(*data_errors.nulls(demands), *data_errors.refusals(demands))
        refused = whole.select(SEQ, F.lit(UPDATE).alias(OPER), why.alias(WHY))
        return Bad.of(refused.where(col(WHY).isNotNull()))

    def _rows(self, batch: Batch) -> DataFrame:
        """The target's rows under the keys of the updates, old and new, as they were before the batch."""
        relation = batch.found.relation
        layout = effects.relation_of(relation, self.rules)
        keys = batch.changes.df.select(*map(col, relation.key))
        return self.target.rows_there(layout, keys, reached=self.reached)


def twice(work: Callable[[bool], _T]) -> _T:
    """Does work that may meet a NULL in a key; when it has, once more, and is told so.

    Nothing is written by then: all keys of a batch are read before the target's one commit. And if something
    were, work that begins anew finds it.
    """
    try:
        return work(False)
    except Exception as error:
        if not met_null_key(error):
            raise
        return work(True)


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
