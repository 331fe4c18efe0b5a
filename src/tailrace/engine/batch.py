"""A batch of changes, or one shard of it: the outcome of each change, and the resulting rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE
from ..model.sequence import number_of
from .columns import OPER, SEQ, carried, letters, one
from .decide import NAMES, Decided, decide, decide_bag, tally
from .events import Bools, Events, Ints, epochs
from .missing_values import find_origins
from .null_keys import null_keys
from .rules import Rules
from .source import RowsOf, Source, whole


def add_marks(
    source: Source, events: Events, decided: Decided, carried: Bools | None
) -> tuple[Source, Bools | None]:
    """Returns the changes with their marks, and which columns each image has then (None: all).

    `carried` is which of the columns except the mark each image has; None for all.
    """
    assert source.mark is not None  # noqa: S101 - called for soft delete only
    marks = decided.effective & ((events.oper == DELETE) | (events.oper == BEFORE))
    if not marks.any() and carried is None:
        return source, None
    place = source.schema.names.index(source.mark)
    mark = pc.if_else(pa.array(marks), one(source.rows[SEQ]), pa.scalar(None, pa.string()))
    rows = source.rows.set_column(source.rows.schema.names.index(source.mark), source.mark, mark)
    there = np.ones((len(events), len(source.schema)), np.bool_)
    if carried is not None:
        there[:, np.arange(there.shape[1]) != place] = carried
    rest = [n not in (*source.key, source.mark) for n in source.schema.names]
    there[np.ix_(marks, rest)] = False
    return replace(source, rows=rows), there


@dataclass(frozen=True)
class Changes:
    """The change rows of a batch before their outcomes are decided.

    Attributes:
        rows: the rows.
        events: the rows as arrays.
        why: the error in each row's values (NULL: none); None if no row has one.
    """

    rows: pa.Table
    events: Events
    why: pa.StringArray | None = None

    @staticmethod
    def of(source: Source, truncates: Sequence[str] | None = None) -> Changes:
        """Numbers the changes, and marks those whose key is NULL.

        Args:
            source: the changes.
            truncates: the `change_seq` of all truncates; None if the truncates are among the rows.
        """
        seq = one(source.rows[SEQ])
        change = np.zeros(len(seq), np.int64)
        change[1:] = np.cumsum(pc.not_equal(seq[1:], seq[:-1]).to_numpy(zero_copy_only=False))
        oper = letters(one(source.rows[OPER]))
        if truncates is None:
            truncates = seq.filter(pa.array(oper == TRUNCATE)).to_pylist()
        epoch, many = epochs(seq, truncates) if truncates else None, len(truncates)
        events = Events(oper, change, source.keys.place, epoch=epoch, truncates=many)
        keys = [(name, one(source.rows[name])) for name in source.key]
        if (bad := null_keys(keys, oper, change)) is None:
            return Changes(source.rows, events)
        return Changes(source.rows, replace(events, bad=bad.rows), bad.why)

    def spoiled(self, why: pa.StringArray) -> Changes:
        """Adds errors in the values of changes, one per row (NULL: none). An error of a B row is its update's
        error."""
        said = why if self.why is None else pc.coalesce(why, self.why)
        if said.null_count == len(said):
            return self
        updates = np.flatnonzero((self.events.oper == UPDATE) & (self.events.before >= 0))
        other = np.arange(len(said))
        other[updates], other[self.events.before[updates]] = self.events.before[updates], updates
        said = pc.coalesce(said, said.take(pa.array(other)))
        bad = said.is_valid().to_numpy(zero_copy_only=False)
        return replace(self, events=replace(self.events, bad=bad), why=said)

    def unclear(self, ordinals: tuple[int, ...]) -> tuple[str, str] | None:
        """Returns the first change (`change_seq`) of a keyless table that does not identify its row, and why;
        None if all do.

        Args:
            ordinals: the bits of the columns in the column mask.
        """
        events, there = self.events, carried(self.rows, ordinals)
        paired = np.zeros(int(events.change.max(initial=-1)) + 1, np.bool_)
        paired[events.change[(events.oper == UPDATE) & (events.before >= 0)]] = True
        wrong = {
            "an update has no before image": (events.oper == UPDATE) & (events.before < 0),
            "a before image has no update": (events.oper == BEFORE) & ~paired[events.change],
        }
        if there is not None:
            images = np.isin(events.oper, [UPDATE, BEFORE, DELETE])
            wrong["an image leaves columns out"] = images & ~there.all(axis=1)
        found = [(int(np.argmax(rows)), what) for what, rows in wrong.items() if rows.any()]
        return min((str(self.rows[SEQ][row]), what) for row, what in found) if found else None

    @property
    def first_bad(self) -> str | None:
        """The `change_seq` of the first change with an error in its values, or None."""
        if self.events.bad is None:
            return None
        return str(self.rows[SEQ][int(np.argmax(self.events.bad))])

    def met(self, exists: Bools, rules: Rules, counted: Mapping[str, int] | None = None) -> Batch:
        """Decides the changes; see `decide`."""
        decided = decide(self.events, exists, rules, counted)
        return Batch(self.rows, self.events, decided, rules, self.why)

    def met_copies(self, copies: Ints, rules: Rules, counted: Mapping[str, int] | None = None) -> Batch:
        """Decides the changes of a keyless table; see `decide_bag`."""
        decided = decide_bag(self.events, copies, rules, counted)
        return Batch(self.rows, self.events, decided, rules, self.why)


@dataclass(frozen=True)
class Batch:
    """The change rows of a batch in order, and the outcome of each.

    Attributes:
        why: the error in each row's values (NULL: none); None if no row has one.
    """

    rows: pa.Table
    events: Events
    decided: Decided
    rules: Rules
    why: pa.StringArray | None = None

    @property
    def changes(self) -> Ints:
        """The indexes of changes: all rows before the end except B rows."""
        return np.flatnonzero(self.events.oper[: self.decided.upto] != BEFORE)

    def flagged(self, rows: Ints) -> Bools:
        """Returns which of these rows are flagged."""
        return np.array([self.rules.outcome(n).flagged for n in NAMES])[self.decided.situation[rows]]

    def aside(self) -> Ints:
        """Returns the changes that were flagged and skipped."""
        rows = self.changes
        return rows[self.flagged(rows) & ~self.decided.effective[rows]]

    def upto(self, most: int) -> int:
        """Returns the last change number of the batch.

        Args:
            most: the number to return if the batch does not end early.

        Returns:
            -1 if the batch ends before its first change.
        """
        if self.decided.ends is None:
            return most
        end = self.decided.upto
        return max((number_of(s) for s in self.rows[SEQ][max(end - 1, 0) : end].to_pylist()), default=-1)

    @property
    def counts(self) -> dict[str, int]:
        """Changes by operation."""
        found = Counter(self.events.oper[self.changes].tolist())
        return {k: found[k] for k in "IUDT"}

    @property
    def odd(self) -> dict[str, tuple[int, str]]:
        """The number of changes and the first `change_seq` per situation, without those that have no
        conflict."""
        found = tally(self.events, self.decided)
        return {name: (many, str(self.rows[SEQ][row])) for name, (many, row) in found.items()}

    @property
    def missing(self) -> int:
        """The number of changes after the last truncate whose row does not exist."""
        lasting = self.decided.situation[self.events.behind(self.truncates)]
        return int(np.isin(lasting, [NAMES.index("U0"), NAMES.index("D0")]).sum())

    @property
    def ends(self) -> tuple[str, str, str] | None:
        """`change_seq`, conflict and policy of the change before which the batch ends, or None."""
        if (row := self.decided.ends) is None:
            return None
        kind = self.rules.outcome(NAMES[self.decided.situation[row]]).conflict
        assert kind is not None  # noqa: S101 - only conflicts end a batch
        return str(self.rows[SEQ][row]), kind, self.decided.policy

    @property
    def why_it_ends(self) -> str | None:
        """The error in that change's values, or None."""
        row = self.decided.ends
        return None if row is None or self.why is None else self.why[row].as_py()

    @property
    def truncates(self) -> int:
        """The number of truncates before the end. If there is one, earlier rows do not remain."""
        end, epoch = self.decided.ends, self.events.epoch
        return self.events.truncates if end is None or epoch is None else int(epoch[end])

    def last(self, source: Source) -> Ints:
        """Returns for each key number the last effective change after the last truncate; -1 if it has
        none."""
        effective = self.decided.effective & self.events.behind(self.truncates)
        return replace(self.decided, effective=effective).last(source.keys.place, len(source.last))

    def net(self, source: Source) -> Ints:
        """Returns the net number of copies per row of a keyless table; see `Source.net`."""
        effective = self.decided.effective & self.events.behind(self.truncates)
        counts = (np.isin(self.events.oper, [INSERT, UPDATE]) * 2 - 1) * effective
        return np.bincount(source.keys.place, counts, len(source.last)).astype(np.int64)

    def left(self, source: Source, ordinals: tuple[int, ...], rows_of: RowsOf) -> Source:
        """Returns the resulting images after the last truncate, one per key; for a keyless table, `net`
        copies.

        Args:
            source: the changes.
            ordinals: the bits of the columns in the column mask.
            rows_of: reads the target's rows of some keys.
        """
        if not source.key:
            return replace(source, net=self.net(source), deletes=np.ones(len(source.deletes), np.bool_))
        events, decided = self.events, self.decided
        decided = replace(decided, effective=decided.effective & events.behind(self.truncates))
        there, marks = carried(self.rows, ordinals), source.mark is not None
        if marks:
            source, there = add_marks(source, events, decided, there)
        return _left(source, events, decided, there, rows_of)


def taken_and_added(source: Source, events: Events) -> tuple[Ints, Ints]:
    """Returns per row of a keyless table the number of copies to remove, if they exist, and then to add.

    All changes are applied leniently: each adds a copy, or removes one if it exists. Whatever the target has,
    a sequence of such steps equals two: remove as many copies as the steps were ever below their start, then
    add the difference to their end.
    """
    place, steps = source.keys.place, np.isin(events.oper, [INSERT, UPDATE]) * 2 - 1
    order = np.argsort(place, kind="stable")
    steps, first = steps[order], np.searchsorted(place[order], np.arange(len(source.last)))
    sums = np.cumsum(steps)
    start = sums[first] - steps[first]
    take = np.maximum(start - np.minimum.reduceat(sums, first), 0)
    return take, sums[np.append(first[1:], len(sums)) - 1] - start + take


def split(net: Ints) -> tuple[Ints, Ints]:
    """Returns the copies to remove and to add; the copies to remove must exist."""
    return np.maximum(-net, 0), np.maximum(net, 0)


def folded(source: Source, events: Events, there: Bools | None, rows_of: RowsOf) -> Source:
    """Returns the resulting image per key of changes that are all applied leniently.

    This requires keys that are unique after every single change. Keys that are only checked at the end of a
    transaction may not be used (PostgreSQL's deferrable primary keys under REPLICA IDENTITY FULL).

    Args:
        source: the changes.
        events: the changes as arrays.
        there: which columns each image has; None for all.
        rows_of: reads the target's rows of some keys.
    """
    before, updated = events.oper == BEFORE, np.zeros(len(events) + 1, np.bool_)
    updated[events.change[events.oper == UPDATE]] = True
    effective = ~before | ~updated[events.change]
    effective[events.old[events.moves]] = True
    decided = Decided(np.zeros(len(events), np.int64), effective, len(events), None)
    return _left(source, events, decided, there, rows_of)


def _left(source: Source, events: Events, decided: Decided, there: Bools | None, rows_of: RowsOf) -> Source:
    """Returns one image per key; under soft delete (`mark`), images of deleted rows are rows that stay."""
    imaged, marks = decided.effective, source.mark is not None
    if not marks:
        imaged = imaged & ~np.isin(events.oper, [DELETE, BEFORE])
    if there is None or there[imaged].all():
        deletes = np.zeros_like(source.deletes) if marks else source.deletes
        return replace(source, last=decided.last(source.keys.place, len(source.last)), deletes=deletes)
    return whole(source, find_origins(events, decided, there, marks=marks), rows_of)
