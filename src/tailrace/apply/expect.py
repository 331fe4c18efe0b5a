"""What the changes of a batch met, found by the engine in shards (`shards`): the changes that did not meet
what they expect are kept (*odd*), and those that change their key. They are few, and joined back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..engine.batch import Batch, Changes
from ..engine.columns import OPER, SEQ, one
from ..engine.decide import NAMES
from ..engine.rules import ENDING, PLAIN, Rules
from ..engine.source import Source
from ..model.change import TRUNCATE, UPDATE, ChangeTable, Relation
from ..model.types import schema_of
from .fold import col, images
from .outcomes import OLD, SITUATION, WHY, small
from .shards import parts, sharded, theirs
from .targets.delta_local import mapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HAVE, _MOVED = "header__have", "header__moved"


@dataclass(frozen=True)
class Expected:
    """What the changes of a batch met.

    Attributes:
        odd: the changes that did not meet what they expect: `SEQ`, `OPER`, `SITUATION`, and `WHY`, what is
            wrong with their values (strings); None when there is none.
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

    def why(self, seq: str) -> str | None:
        """What is wrong with the values of the change of a sequence; None: nothing."""
        if self.odd is None or WHY not in self.odd.columns:
            return None
        row = self.odd.where(col(SEQ) == seq).select(WHY).first()
        return None if row is None else row[0]

    def ends(self, rules: Rules) -> tuple[str, str, str] | None:
        """The change before which the batch ends: `change_seq`, conflict, policy; None when it does not."""
        found = [
            (seq, kind, rules.on[kind])
            for s, (_, seq) in self.tally.items()
            if (kind := rules.outcome(s).conflict) and rules.on[kind] in ENDING
        ]
        return min(found) if found else None

    def before(self, seq: str) -> Expected:
        """Of the changes before a `change_seq` alone."""
        odd = None if self.odd is None else self.odd.where(col(SEQ) < seq)
        moves = None if self.moves is None else self.moves.where(col(SEQ) < seq)
        return replace(self, odd=odd, moves=moves, tally={}).counted()

    def also(self, bad: DataFrame) -> Expected:
        """With changes besides whose values the target cannot hold (see `data_errors.Bad`)."""
        odd = bad if self.odd is None else self.odd.unionByName(bad, allowMissingColumns=True)
        return replace(self, odd=odd, tally={}).counted()

    def counted(self) -> Expected:
        """The same with its odd rows counted."""
        from pyspark.sql import functions as F

        if self.odd is None:
            return self
        rows = self.odd.groupBy(SITUATION).agg(F.count(F.lit(1)), F.min(SEQ)).collect()
        tally = {r[0]: (int(r[1]), str(r[2])) for r in rows}
        return replace(self, odd=self.odd if tally else None, tally=tally)


def expect(
    changes: ChangeTable,
    relation: Relation,
    rules: Rules,
    counts: Mapping[str, int],
    there: DataFrame | None,
) -> Expected:
    """Looks what changes meet, in one job.

    Args:
        changes: the changes of a batch, none that the target has already; (`change_seq`, `change_oper`) is
            their key, as everywhere.
        relation: their layout.
        rules: how they are applied.
        counts: as in `TableBatch.counts`.
        there: the keys that have a row in the target before the batch (columns: the key), of a table without
            key all rows; None: none.
    """
    from pyspark.sql import functions as F

    bag = not relation.key
    if bag and not (counts.get("U") or counts.get("D")):
        return Expected()  # nothing is looked for
    wanted = relation if bag else relation.with_columns([c for c in relation.columns if c.key])
    key = [c.name for c in wanted.columns]
    rows, truncates = _rows(changes, wanted, counts), truncates_of(changes, counts)
    if there is not None:
        found = _copies(rows, there, key) if bag else _keys(rows, there, key, sum(counts.values()))
        rows = rows.unionByName(found, allowMissingColumns=True)
    links = bool(counts.get("U") if bag else counts.get("key_changes"))
    # As the key log names columns: of a bag in the order of the change table.
    old = [n for n in changes.columns if n in key] if bag else key
    task = DecideTask(schema_of(wanted.columns), rules, truncates, tuple(old), bag)
    kinds = ", ".join(f"k{i} {wanted.column(n).type}" for i, n in enumerate(old))
    made = mapped(sharded(rows, key, counts, links=links), task, f"{_RESULT}, {kinds}")
    olds = F.struct(*[f"k{i}" for i in range(len(old))])
    made = made.select(
        col("seq").alias(SEQ), col("oper").alias(OPER), col("situation").alias(SITUATION),
        col("why").alias(WHY), col("moved").alias(_MOVED), F.when(col("moved"), olds).alias(OLD),
    )  # fmt: skip
    # Not eager: the job that counts them fills the checkpoint.
    return _expected(made.localCheckpoint(eager=False))


def _expected(found: DataFrame) -> Expected:
    from pyspark.sql import functions as F

    by = found.groupBy(SITUATION).agg(F.count(F.lit(1)), F.min(SEQ), F.count_if(_MOVED)).collect()
    tally = {r[0]: (int(r[1]), str(r[2])) for r in by if r[0] not in PLAIN}
    moved = sum(int(r[3]) for r in by)
    odd = found.where(~col(SITUATION).isin(*PLAIN)).select(SEQ, OPER, SITUATION, WHY)
    moves = found.where(_MOVED).select(SEQ, OLD) if moved else None
    return Expected(odd if tally else None, tally, moves, moved)


def _rows(changes: ChangeTable, wanted: Relation, counts: Mapping[str, int]) -> DataFrame:
    """`SEQ`, `OPER` and the wanted columns of every image but truncates."""
    if counts.get("T"):
        changes = changes.with_df(changes.df.where(col(changes.header("change_oper")) != TRUNCATE))
    return images(changes, wanted, {}, null_keys=True).df


def truncates_of(changes: ChangeTable, counts: Mapping[str, int]) -> tuple[str, ...]:
    """The `change_seq` of every truncate."""
    if not counts.get("T"):
        return ()
    rows = changes.df.where(col(changes.header("change_oper")) == TRUNCATE)
    return tuple(sorted({str(r[0]) for r in rows.select(col(changes.header("change_seq"))).collect()}))


def _keys(rows: DataFrame, there: DataFrame, key: Sequence[str], many: int) -> DataFrame:
    """The keys of the target that changes name. Its side is the large one: it is read once, and never
    shuffled for a batch that is small."""
    mine = small(rows.select(*map(col, key)), many)
    return theirs(there.join(mine, list(key), "left_semi").select(*map(col, key)))


def _copies(rows: DataFrame, there: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows of the target that changes name, and how often each is there."""
    from pyspark.sql import functions as F

    named = rows.select(*[col(n).alias(f"header__c{i}") for i, n in enumerate(columns)]).distinct()
    same = reduce(and_, [col(n).eqNullSafe(col(f"header__c{i}")) for i, n in enumerate(columns)])
    mine = there.join(named, same, "left_semi").groupBy(*map(col, columns))
    return theirs(mine.agg(F.count(F.lit(1)).alias(_HAVE)))


_RESULT = "seq string, oper string, situation string, why string, moved boolean"
"""What `DecideTask` gives of a change, and `k0`, `k1`, ...: the old key, if that is another one."""


@dataclass(frozen=True)
class DecideTask:
    """Decides a shard: gives the changes that did not meet what they expect, or change their key.

    `schema`: the key columns, of a `bag` all; `truncates`: `change_seq` of all; `old`: columns of old keys.
    """

    schema: pa.Schema
    rules: Rules
    truncates: tuple[str, ...]
    old: tuple[str, ...]
    bag: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if (found := parts(batches, self.schema, {_HAVE: pa.int64()})) is not None:
            yield self._told(self._met(*found))

    def _met(self, rows: pa.Table, there: pa.Table) -> Batch:
        source = Source.of(rows, tuple(self.schema.names), self.schema, partial=False)
        number = source.keys.find([one(there[n]) for n in self.schema.names])
        if self.bag:
            copies = np.zeros(len(source.last), np.int64)
            if there.num_rows:
                copies[number] = there[_HAVE].to_numpy()
            return Changes.of(replace(source, key=()), self.truncates).met_copies(copies, self.rules)
        exists = np.zeros(len(source.last), np.bool_)
        exists[number[number >= 0]] = True
        return Changes.of(source, self.truncates).met(exists, self.rules)

    def _told(self, batch: Batch) -> pa.RecordBatch:
        events, changes = batch.events, batch.changes
        odd = ~np.isin(np.array(NAMES)[batch.decided.situation[changes]], PLAIN)
        before = events.before if self.bag else events.old
        old = np.where(events.oper == UPDATE, before, -1)[changes]
        rows, old = changes[odd | (old >= 0)], old[odd | (old >= 0)]
        at = pa.array(old, mask=old < 0)
        made = {
            "seq": one(batch.rows[SEQ]).take(pa.array(rows)),
            "oper": pa.array(events.oper[rows], pa.string()),
            "situation": pa.array(np.array(NAMES)[batch.decided.situation[rows]], pa.string()),
            "why": pa.nulls(len(rows), pa.string()) if batch.why is None else batch.why.take(pa.array(rows)),
            "moved": pa.array(old >= 0),
        }
        made |= {f"k{i}": one(batch.rows[n]).take(at) for i, n in enumerate(self.old)}
        return pa.record_batch(made)
