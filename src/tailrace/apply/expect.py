"""What the changes of a batch met, and what is left of them: decided by the engine in shards, in one pass.

The changes that did not meet what they expect, or change their key, are few, and joined back where the key
log tells of all. What is left of the changes is what any plan of a target writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from ..engine.columns import ADD, HAVE, KEPT, MOVED, OP, OPER, SEQ, SITUATION, TAKE, WHY
from ..engine.rules import ENDING, PLAIN, SITUATIONS, Outcome, Rules
from ..model import mask
from ..model.change import BEFORE, DELETE, TRUNCATE, UPDATE, ChangeTable, Relation
from .images import col, images, masked, ordinals
from .plan import SPECIAL, Folded
from .shards import ShardTask, small, theirs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Ends = tuple[str, str, str]
"""The change before which a batch ends: `change_seq`, conflict, policy."""


@dataclass(frozen=True)
class Expected:
    """What the changes of a batch met.

    Attributes:
        unusual: the changes that did not meet what they expect, or change their key: `SEQ`, `OPER`,
            `SITUATION`, `WHY` (strings: what is wrong with their values), `MOVED`, in the key's
            columns the old key, of a table without key the old row; None when there is none. `many`: how many
            they are.
        tally: situation -> (how many, the first `change_seq`), of those that did not meet what they expect.
        folded: what is left of the changes; None: nobody asked, or all of them are just added.
        counts: of its rows, as `TableBatch.folded` says.
    """

    unusual: DataFrame | None = None
    many: int = 0
    tally: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    folded: Folded | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def flagged(self, rules: Rules) -> int:
        """How many are flagged."""
        return sum(n for s, (n, _) in self.tally.items() if rules.outcome(s).flagged)

    def why(self, seq: str) -> str | None:
        """What is wrong with the values of the change of a sequence; None: nothing."""
        row = None if self.unusual is None else self.unusual.where(col(SEQ) == seq).select(WHY).first()
        return None if row is None else row[0]

    def logged(self, rules: Rules) -> dict[str, int]:
        """How many changes are logged as a conflict, by kind, of the kinds that have a limit."""
        found = dict.fromkeys(rules.limits, 0)
        for situation, (many, _) in self.tally.items():
            kind = rules.outcome(situation).conflict
            if kind in found:
                found[kind] += many
        return found

    def counted(self, rules: Rules, before: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Kind -> conflicts logged before the batch, and with it, of the kinds that have a limit."""
        return {k: (before.get(k, 0), before.get(k, 0) + n) for k, n in self.logged(rules).items()}

    def ends(self, rules: Rules, counted: Mapping[str, int]) -> Ends | None:
        """The change before which the batch ends by its policies, or because a limit is passed; None: it does
        not.

        The conflicts of a table count from its baseline, and anew after a limit was reached. `counted`: how
        many of each kind were logged before the batch.
        """
        found = [
            (seq, kind, rules.on[kind])
            for s, (_, seq) in self.tally.items()
            if (kind := rules.outcome(s).conflict) and rules.on[kind] in ENDING
        ]
        for kind, many in self.logged(rules).items():
            limit, then = rules.limits[kind]
            if many > (left := max(limit - counted.get(kind, 0), 0)) and self.unusual is not None:
                row = (
                    self.unusual.where(_of(kind, rules))
                    .orderBy(SEQ, OPER)
                    .select(SEQ)
                    .offset(left)
                    .limit(1)
                    .first()
                )
                assert row is not None  # noqa: S101 - they were counted
                found.append((str(row[0]), kind, then))
        return min(found) if found else None


def among(rules: Rules, which: Callable[[Outcome], bool]) -> Column:
    """Whether the outcome of a change (by its `SITUATION`) is of some kind."""
    return col(SITUATION).isin(*[s for s in SITUATIONS if which(rules.outcome(s))])


def _of(kind: str, rules: Rules) -> Column:
    """Whether a change is a conflict of a kind."""
    return among(rules, lambda outcome: outcome.conflict == kind)


def expect(
    changes: ChangeTable,
    layout: Relation,
    rules: Rules,
    counts: Mapping[str, int],
    there: DataFrame | None,
    *,
    folds: bool = True,
    memory: int | None = None,
) -> Expected:
    """Decides the changes of a batch, in one job.

    Args:
        changes: the changes, none that the target has already; (`change_seq`, `change_oper`) is their key, as
            everywhere. A column `WHY` says what is wrong with the values of each.
        layout: the target's, with the columns that the mode adds.
        rules: how they are applied.
        counts: as in `TableBatch.counts`.
        there: the keys that have a (living) row in the target before the batch (columns: the key), and, when
            images that lack columns may change their key, the rows; of a table without key all rows. None:
            none.
        folds: whether what is left of the changes is wanted.
        memory: see `sharded`.
    """
    bag, judged = not layout.key, WHY in changes.df.columns
    if bag and not judged and not (counts.get("U") or counts.get("D")):
        return Expected()  # nothing is looked for
    needed = layout if bag or folds else layout.with_columns([c for c in layout.columns if c.key])
    data = [c.name for c in needed.columns if rules.mode != "soft_delete" or c.name != rules.soft_column]
    rows, truncates = _rows(changes, needed, counts, sparse=folds and not bag), truncates_of(changes, counts)
    if there is not None:
        found = _copies(rows, there, data) if bag else under(rows, there, needed, sum(counts.values()))
        rows = rows.unionByName(found, allowMissingColumns=True)
    task = ShardTask(needed, ordinals(changes.df.columns, data), rules, truncates, folds)
    links = bool(counts.get("U") if bag else counts.get("key_changes"))
    # Not eager: the job that counts them fills the checkpoint.
    made = task.over(rows, counts, links=links, memory=memory).localCheckpoint(eager=False)
    return _counted(made, needed, truncates=bool(truncates), folds=folds)


def added(changes: ChangeTable, key: Sequence[str] | None) -> Expected:
    """Of changes that meet nothing, as an archive's: those whose values are wrong (`WHY`), and those with
    another `key` than before (empty: the whole row is it; None: nobody asks)."""
    bad = _refused(changes) if WHY in changes.df.columns else None
    moved = None if key is None else _moved(changes, key or changes.columns)
    if bad is not None and moved is not None:
        bad = bad.join(moved.select(SEQ, OPER), [SEQ, OPER], "left_anti")
    found = [one for one in (bad, moved) if one is not None]
    if not found:
        return Expected()
    unusual = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), found)
    return _counted(unusual.localCheckpoint(eager=False), None, truncates=False, folds=False)


def _refused(changes: ChangeTable) -> DataFrame:
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    bad = changes.df.where(col(WHY).isNotNull() & (oper != BEFORE))
    situation, moved = F.concat(oper, F.lit("!")), F.lit(False)
    return bad.select(
        seq.alias(SEQ), oper.alias(OPER), situation.alias(SITUATION), col(WHY), moved.alias(MOVED)
    )


def _moved(changes: ChangeTable, key: Sequence[str]) -> DataFrame:
    """The updates whose B row has another key, with that one."""
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    why = col(WHY) if WHY in changes.df.columns else F.lit(None).cast("string")
    new = {f"header__new{i}": col(k) for i, k in enumerate(key)}
    own = [v.alias(n) for n, v in new.items()]
    updates = changes.df.where(oper == UPDATE).select(seq.alias(SEQ), why.alias(WHY), *own)
    before = changes.df.where(oper == BEFORE).select(seq.alias(SEQ), *map(col, key))
    same = mask.balanced([col(k).eqNullSafe(col(n)) for n, k in zip(new, key, strict=True)], and_)
    situation = F.when(col(WHY).isNull(), F.lit("U1")).otherwise(F.lit("U!"))
    told = [F.lit(UPDATE).alias(OPER), situation.alias(SITUATION), col(WHY), F.lit(True).alias(MOVED)]
    return updates.join(before, SEQ).where(~same).select(SEQ, *told, *map(col, key))


def truncates_of(changes: ChangeTable, counts: Mapping[str, int]) -> tuple[str, ...]:
    """The `change_seq` of every truncate."""
    if not counts.get("T"):
        return ()
    rows = changes.df.where(col(changes.header("change_oper")) == TRUNCATE)
    return tuple(sorted({str(r[0]) for r in rows.select(col(changes.header("change_seq"))).collect()}))


def under(rows: DataFrame, there: DataFrame, layout: Relation, many: int) -> DataFrame:
    """The rows of the target that changes name, or as much as was read of them. Its side is the large one:
    it is read once, and never shuffled for a batch that is small."""
    mine = small(rows.select(*map(col, layout.key)), many)
    have = [col(c.name) for c in layout.columns if c.name in there.columns]
    return theirs(there.join(mine, layout.key, "left_semi").select(*have))


def _counted(made: DataFrame, relation: Relation | None, *, truncates: bool, folds: bool) -> Expected:
    from pyspark.sql import functions as F

    by, kept = [col(SITUATION), F.lit("").alias(OP)], F.count_if(F.lit(False))
    if folds and relation is not None:
        op = col(OP) if relation.key else F.when(col(ADD) > 0, "U").when(col(TAKE) > 0, DELETE)
        by[1], kept = op.alias(OP), F.count(KEPT) if relation.key else kept
    found = made.groupBy(*by).agg(F.count(F.lit(1)), F.min(SEQ), F.count_if(MOVED), kept).collect()
    unusual = [r for r in found if r[0] is not None]
    tally = {r[0]: (int(r[2]), str(r[3])) for r in unusual if r[0] not in PLAIN}
    many = sum(int(r[2]) for r in unusual)
    odd = made.where(col(SITUATION).isNotNull()).drop(OP, KEPT, TAKE, ADD) if many else None
    expected = Expected(odd, many, tally)
    if not folds or relation is None:
        return expected
    left = {r[1]: r for r in found if r[0] is None}
    rows = {op: int(r[2]) for op, r in left.items()}
    absent = sum(int(r[5]) for r in left.values())
    counts = dict.fromkeys(SPECIAL, 0) | {
        "I": rows.get("U", 0), "D": rows.get(DELETE, 0), "T": int(truncates), "absent": absent
    }  # fmt: skip
    extra = ((OP, KEPT) if absent else (OP,)) if relation.key else (TAKE, ADD)
    df = made.where(col(SITUATION).isNull()).select(*extra, *[col(c.name) for c in relation.columns])
    keys = df.select(*map(col, relation.key)) if relation.key else None
    return replace(expected, folded=Folded(df, extra, truncates, keys), counts=counts)


def _rows(changes: ChangeTable, wanted: Relation, counts: Mapping[str, int], *, sparse: bool) -> DataFrame:
    """Every image but truncates."""
    extras = masked(changes) if sparse and counts.get("absent") else {}
    if WHY in changes.df.columns:
        extras[WHY] = col(WHY)
    if counts.get("T"):
        changes = changes.with_df(changes.df.where(col(changes.header("change_oper")) != TRUNCATE))
    return images(changes, wanted, extras=extras)


def _copies(rows: DataFrame, there: DataFrame, columns: list[str]) -> DataFrame:
    """The rows of the target that changes name, and how often each is there."""
    from pyspark.sql import functions as F

    named = rows.select(*[col(n).alias(f"header__c{i}") for i, n in enumerate(columns)]).distinct()
    same = mask.balanced([col(n).eqNullSafe(col(f"header__c{i}")) for i, n in enumerate(columns)], and_)
    mine = there.join(named, same, "left_semi").groupBy(*map(col, columns))
    return theirs(mine.agg(F.count(F.lit(1)).alias(HAVE)))
