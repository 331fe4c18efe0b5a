"""What each change met: whether its row existed just before it, exact although the apply is set-based.

Per key, all changes in their order after the row that the target had: a change leaves its key with a row (I),
without one (D), or as it was (an update that is passed over). What the last change that says anything left is
what the next one meets. So one window over (`change_seq`, `change_oper`) and one look at the keys of the
target tell it, and only changes that did not meet what they expect are kept (*odd*): few, and joined back.

A change of key leaves two keys, and under a policy that passes changes over each may hang on the other. Then
the outcomes of key changes are guessed (all met what they expect) and the windows of the keys they touch run
again until nothing changes. A pass settles at least the earliest wrong guess, so there are at most as many as
key changes, and one more; when there is no conflict among them, one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..engine.columns import OPER, SEQ
from ..engine.rules import ENDING, PLAIN, Rules
from ..model.change import BEFORE, TRUNCATE, UPDATE, ChangeTable, Relation
from .fold import col, images
from .outcomes import EXISTED, OLD, SILENT, SITUATION, bare, silenced, small, with_outcome

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EPOCH = "header__epoch"
_AFTER, _KIND, _OLD_MET, _NEW_MET = (f"header__{n}" for n in ("after", "kind", "old_met", "new_met"))
_MOVED_IN, _MOVED_OUT = "M", "X"


@dataclass(frozen=True)
class Expected:
    """What the changes of a batch met.

    Attributes:
        odd: the changes that did not meet what they expect: `SEQ`, `OPER` (string), `SITUATION`, and the
            columns of `outcomes`; None when there is none.
        tally: situation -> (how many, the first `change_seq`), of the odd ones.
        moves: changes of a key: `SEQ` and `OLD`, a struct of the old key (k0, k1, ...); None: none.
        moved: how many.
    """

    odd: DataFrame | None = None
    tally: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    moves: DataFrame | None = None
    moved: int = 0

    @property
    def many(self) -> int:
        """How many changes are odd."""
        return sum(n for n, _ in self.tally.values())

    def flagged(self, rules: Rules) -> int:
        """How many are flagged."""
        return sum(n for s, (n, _) in self.tally.items() if rules.outcome(s).flagged)

    def ends(self, rules: Rules) -> tuple[str, str, str] | None:
        """The change before which the batch ends: `change_seq`, conflict, policy; None when it does not."""
        found = [
            (seq, kind, rules.on[kind])
            for s, (_, seq) in self.tally.items()
            if (kind := rules.outcome(s).conflict) and rules.on[kind] in ENDING
        ]
        return min(found) if found else None

    def before(self, seq: str, rules: Rules) -> Expected:
        """Of the changes before a `change_seq` alone."""
        odd = None if self.odd is None else bare(self.odd.where(col(SEQ) < seq))
        moves = None if self.moves is None else self.moves.where(col(SEQ) < seq)
        return replace(self, odd=odd, moves=moves, tally={}).counted(rules)

    def also(self, bad: DataFrame, rules: Rules) -> Expected:
        """With changes besides whose values the target cannot hold (see `data_errors.Bad`)."""
        odd = bad if self.odd is None else bare(self.odd).unionByName(bad, allowMissingColumns=True)
        return replace(self, odd=odd, tally={}).counted(rules)

    def counted(self, rules: Rules) -> Expected:
        """The same with its odd rows counted, and their outcomes beside them."""
        from pyspark.sql import functions as F

        if self.odd is None:
            return self
        rows = self.odd.groupBy(SITUATION).agg(F.count(F.lit(1)), F.min(SEQ)).collect()
        tally = {r[0]: (int(r[1]), str(r[2])) for r in rows}
        return replace(self, odd=with_outcome(self.odd, rules) if tally else None, tally=tally)


def expect(
    changes: ChangeTable,
    relation: Relation,
    rules: Rules,
    counts: Mapping[str, int],
    there: DataFrame | None,
    silent: DataFrame | None = None,
) -> Expected:
    """Looks what changes meet; runs two small jobs, more when keys change, as the module says.

    Args:
        changes: the changes of a batch, none that the target has already; (`change_seq`, `change_oper`) is
            their key, as everywhere.
        relation: their layout, with a key.
        rules: how they are applied.
        counts: as in `TableBatch.counts`.
        there: the keys that have a row in the target before the batch (columns: the key); None: none.
        silent: the `SEQ` of updates that are only looked at; None: none is.
    """
    base = _events(changes, relation, counts)
    base = base if silent is None else silenced(base, silent)
    moves = _moves(base, relation.key) if counts.get("key_changes") else None
    moved = moves.count() if moves is not None else 0
    moves = moves if moved else None
    events = _kinds(base, moves, moved)
    if counts.get("T"):
        events = epochs(events, changes)
    if moves is not None:
        settled = _settled(events, moves, there, relation.key, rules, moved)
        events = events.join(small(settled, moved), SEQ, "left")
    met = _met(events, there, relation.key, rules, many=sum(counts.values()))
    found = met.where(col(_KIND) != _MOVED_OUT).withColumn(SITUATION, _situation(moves is not None))
    odd = found.where(~col(SITUATION).isin(*PLAIN)).select(SEQ, OPER, SITUATION)
    # Not eager: the job that counts them fills the checkpoint.
    return Expected(odd.localCheckpoint(eager=False), {}, moves, moved).counted(rules)


def _events(changes: ChangeTable, relation: Relation, counts: Mapping[str, int]) -> DataFrame:
    """`SEQ`, `OPER` and the key of every image but truncates; a NULL key fails (see `fold.refused`)."""
    keyed = relation.with_columns([c for c in relation.columns if c.key])
    if counts.get("T"):
        changes = changes.with_df(changes.df.where(col(changes.header("change_oper")) != TRUNCATE))
    return images(changes, keyed, {}).df


def _moves(base: DataFrame, key: list[str]) -> DataFrame:
    """Changes of a key: `SEQ`, `OLD`; B rows whose U has the same key are none."""
    from pyspark.sql import functions as F

    at = F.struct(*[col(k).alias(f"k{i}") for i, k in enumerate(key)])
    both = base.where(col(OPER).isin(BEFORE, UPDATE)).groupBy(SEQ)
    found = both.agg(
        F.max(F.when(col(OPER) == BEFORE, at)).alias(OLD), F.max(F.when(col(OPER) == UPDATE, at)).alias("new")
    )
    return found.where(col(OLD) != col("new")).select(SEQ, OLD).localCheckpoint(eager=True)


def _kinds(base: DataFrame, moves: DataFrame | None, moved: int) -> DataFrame:
    """`_KIND` beside the events: the operation, or what a key change does to each of its keys."""
    from pyspark.sql import functions as F

    if moves is None:
        return base.where(col(OPER) != BEFORE).withColumn(_KIND, col(OPER))
    marked = base.join(small(moves.select(SEQ, F.lit(True).alias("moved")), moved), SEQ, "left")
    both = col("moved") & col(OPER).isin(BEFORE, UPDATE)
    kind = F.when(both, F.when(col(OPER) == BEFORE, _MOVED_OUT).otherwise(_MOVED_IN)).otherwise(col(OPER))
    return marked.withColumn(_KIND, kind).where(col(_KIND) != BEFORE).drop("moved")


def epochs(events: DataFrame, changes: ChangeTable) -> DataFrame:
    """`EPOCH`: how many truncates lie before a change. What a key had before the last does not count."""
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    truncates = changes.df.where(oper == TRUNCATE).agg(F.collect_set(seq).alias("truncates"))
    epoch = F.size(F.filter("truncates", lambda t: t < col(SEQ))).alias(EPOCH)
    return events.crossJoin(F.broadcast(truncates)).select("*", epoch).drop("truncates")


def _settled(
    events: DataFrame,
    moves: DataFrame,
    there: DataFrame | None,
    key: list[str],
    rules: Rules,
    moved: int,
) -> DataFrame:
    """What each key change met at its old key and at its new one: `SEQ`, `_OLD_MET`, `_NEW_MET` (boolean)."""
    from pyspark.sql import functions as F

    moving = col(_KIND).isin(_MOVED_IN, _MOVED_OUT)
    touched = events.where(moving).select(*map(col, key)).distinct()
    mine = events.join(touched, key, "left_semi").localCheckpoint(eager=False)
    guess = moves.select(SEQ, F.lit(True).alias(_OLD_MET), F.lit(False).alias(_NEW_MET))
    for _ in range(moved + 1):
        met = _met(mine.join(small(guess, moved), SEQ, "left"), there, key, rules, many=0)
        old = F.max(F.when(col(_KIND) == _MOVED_OUT, col(EXISTED)))
        new = F.max(F.when(col(_KIND) == _MOVED_IN, col(EXISTED)))
        wrong = (old != F.max(_OLD_MET)) | (new != F.max(_NEW_MET))
        found = met.where(moving).groupBy(SEQ)
        made = found.agg(old.alias(_OLD_MET), new.alias(_NEW_MET), wrong.alias("wrong"))
        made = made.localCheckpoint(eager=not rules.overwrites)
        guess = made.drop("wrong")
        # Where changes of keys are made whatever they meet, nothing hangs on the guess.
        if rules.overwrites or not made.where("wrong").count():
            break
    return guess


def _met(events: DataFrame, there: DataFrame | None, key: list[str], rules: Rules, *, many: int) -> DataFrame:
    """Events with `EXISTED`: whether their key had a row just before them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    epochs = EPOCH in events.columns
    told = events.withColumn(_AFTER, _after(events.columns, rules))
    if there is not None:
        keys = events.select(*map(col, key))
        # The target's side is the large one: it is read once, and never shuffled for a batch that is small.
        found = there.join(small(keys, many), key, "left_semi")
        empty = [F.lit(None).cast(f.dataType).alias(f.name) for f in told.schema if f.name not in key]
        first = found.select(*map(col, key), *empty).withColumns(
            {SEQ: F.lit(""), OPER: F.lit(""), _AFTER: F.lit(1)} | ({EPOCH: F.lit(0)} if epochs else {})
        )
        told = told.unionByName(first)
    window = Window.partitionBy(*map(col, key), *([col(EPOCH)] if epochs else []))
    before = window.orderBy(SEQ, OPER).rowsBetween(Window.unboundedPreceding, -1)
    existed = F.coalesce(F.last(_AFTER, ignorenulls=True).over(before), F.lit(0)) == 1
    return told.withColumn(EXISTED, existed).where(col(SEQ) != "")


def _after(columns: Collection[str], rules: Rules) -> Column:
    """Whether a key has a row after an event (1, 0), as far as the event says: NULL when it leaves it as it
    was. An insert leaves one whether it was made or met one; a delete none."""
    from pyspark.sql import functions as F

    kind = col(_KIND)
    inserts, writes = rules.on["update_missing"] == "apply", rules.on["insert_exists"] == "apply"
    said = F.when(kind == "I", 1).when(kind == "D", 0)
    if inserts:
        said = said.when(kind.isin("U", _MOVED_IN), 1)
    if _OLD_MET in columns:
        said = said.when((kind == _MOVED_OUT) & (F.lit(writes) | ~col(_NEW_MET)), 0)
        said = said.when((kind == _MOVED_IN) & col(_OLD_MET), 1)
    return F.when(~col(SILENT), said) if SILENT in columns else said


def _situation(moves: bool) -> Column:
    """The name of a situation, see `rules`."""
    from pyspark.sql import functions as F

    digit = F.when(col(EXISTED), "1").otherwise("0")
    known = F.when(col(_KIND).isin("I", "U", "D"), F.concat(col(_KIND), digit)).otherwise("?")
    if not moves:
        return known
    digits = [F.when(col(n), "1").otherwise("0") for n in (_OLD_MET, _NEW_MET)]
    return F.when(col(_KIND) == _MOVED_IN, F.concat(F.lit("K"), *digits)).otherwise(known)
