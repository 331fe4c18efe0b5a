"""One attempt of an audited merge into a PostgreSQL table, in its transaction: the keys go to the database
first, and what it has of them comes back."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....engine.columns import KEPT, OP, one
from ....engine.keys import Places
from ....engine.source import Source
from ....errors import ApplyError
from ....lake.failpoints import reach
from ....model.change import Column, Relation
from ....sources.postgresql.connect import Session, quoted
from ...mapping import shared_rows as shared
from ..audit import Audit
from ..auditor import NONE_THERE, BatchAuditor
from ..outcome import ApplyOutcome
from .copies import Copies
from .copying import Sending
from .notes import Notes
from .place import WORK_MEM, Place
from .progress import Progress, Reached
from .repairs import Repairs
from .shared import empty
from .stage import EXTRA_SQL, Staged
from .types import casts, varied
from .values import batch, cells
from .write import StagedWriter

_KEYS, _ROWS = "pg_temp.tailrace_keys", "pg_temp.tailrace_rows"
_NUMBER = Column("header__number", 0, "bigint", "int8", "bigint")


@dataclass(frozen=True)
class MergeOrder:
    """What is to be merged where.

    Attributes:
        place, task, repairs, at: what its progress is made of, see `PostgresTarget`.
        reached: what the table had reached when the batch was cut.
        upto: the change number that the batch reaches.
        relation: the target's layout.
        audit: how the changes are judged.
    """

    place: Place
    task: str
    repairs: bool
    at: shared.TargetPlace
    reached: Reached
    upto: int
    relation: Relation
    audit: Audit

    @property
    def progress(self) -> Progress:
        """The table's progress."""
        kind = Repairs if self.repairs else Progress
        return kind(self.place, self.task, lambda _: self.at)

    @property
    def target(self) -> str:
        """The table's target, as quoted SQL."""
        return self.progress.target(self.audit.table)

    @property
    def where(self) -> str:
        """The table, for people."""
        return f"{self.place.label}, {self.audit.table}"


@dataclass
class Merge:
    """One attempt, in its transaction; `added`: rows, all that is written then, whatever the table has."""

    on: Session
    order: MergeOrder
    source: Source
    auditor: BatchAuditor
    added: pa.Table | None
    pool: Executor

    @property
    def _sent(self) -> Sending:
        return Sending(self.on, self.order.audit.table)

    def run(self) -> ApplyOutcome:
        """Does it; gives an outcome without counts when the table has the batch already."""
        order, on, table = self.order, self.on, self.order.audit.table
        on.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        # First: if a task that shares the target widened a column after the snapshot, that would see no rows.
        on.execute(f"LOCK TABLE {order.target} IN ROW EXCLUSIVE MODE".encode())
        on.execute(f"SET LOCAL work_mem = '{WORK_MEM}'".encode())
        progress = order.progress
        now = progress.read(on, table, lock=True)
        if now is not None and now.upto >= order.upto:
            return ApplyOutcome(version=now.version)
        if now != order.reached:
            raise ApplyError(
                "another process applied to this table meanwhile; nothing of this batch was written",
                where=order.where,
                hint="run a task once only; a pooler before the target must keep session locks",
            )
        if self.added is not None:
            self.auditor.judge(NONE_THERE)
            self.auditor.log(self.pool)
            inserted, updated, deleted = self._append(self.added), 0, 0
        else:
            there = np.zeros(len(self.source.last), np.int64) if self.auditor.blind else self._there()
            made = self.auditor.decide(self.source, there, self._rows_of)
            self.auditor.log(self.pool)
            emptied = empty(on, progress, table) if self.auditor.empties else 0
            inserted, updated, deleted = self._write(made, emptied)
        self.auditor.finish()
        upto = self.auditor.upto
        if upto < 0:
            return ApplyOutcome(version=order.reached.version)
        if (note := self.auditor.note()) is not None:
            Notes(order.place, order.task).leave(on, table, upto, *note)
        version = progress.advance(on, table, upto)
        reach("postgresql.audited")
        return ApplyOutcome(inserted, updated, deleted, version, "upsert")

    def _there(self) -> Places:
        """Of each key's number how many rows the table has that are not marked."""
        source = self.source
        if not source.key:
            return self._copies.there()
        found = np.zeros(len(source.last), np.int64)
        if not len(found):
            return found
        numbers = pa.array(np.arange(len(found)))
        self._sent.copy(_KEYS, "n bigint", [numbers, *self._keys().columns], self._key)
        self._join_equal()
        mark = f" WHERE t.{quoted(source.mark)} IS NULL" if source.mark else ""
        query = f"SELECT s.n FROM {self._numbered} JOIN {self.order.target} t ON {self._same}{mark}"
        found[self._sent.numbers(query, "n")["n"].astype(np.int64)] = 1
        return found

    def _join_equal(self) -> None:
        """Makes one key of those that the database holds to be equal though their texts differ, as 1.0 and
        1.00: what counts of them is one row."""
        if not varied(self._casts):
            return
        cells = ", ".join(f"c{i}" for i in range(len(self._key)))
        query = (
            f"SELECT unnest(array_agg(n)) AS n, min(n) AS first FROM {self._numbered}"
            f" GROUP BY {cells} HAVING count(*) > 1"
        )
        equal = self._sent.numbers(query, "n", "first")
        if len(equal):
            first = np.arange(len(self.source.last))
            first[equal["n"].astype(np.int64)] = equal["first"]
            self.source = self.source.joined(first)
            self.auditor.take(self.source)

    @property
    def _copies(self) -> Copies:
        return Copies(self.on, self.order.place, self.order.target, self.order.relation, self.source)

    def _rows_of(self, wanted: Places) -> tuple[Places, pa.Table]:
        """See `engine.source.RowsOf`."""
        relation = self.order.relation
        which = ",".join(map(str, wanted.tolist()))
        query = (
            f"SELECT s.n, {cells(relation.columns)} FROM {self._numbered}"
            f" JOIN {self.order.target} t ON {self._same}"
        )
        query += f" WHERE s.n = ANY ('{{{which}}}'::bigint[])"
        data = self._sent.answer(query, "csv")
        rows = batch([_NUMBER, *relation.columns], data, self.order.where)
        table = pa.Table.from_batches([rows.select(self.source.schema.names)])
        return np.asarray(rows.column(0).to_numpy(), np.int64), table.cast(self.source.schema)

    def _write(self, made: Source, emptied: int) -> tuple[int, int, int]:
        """Brings what counts of the changes into the table: rows inserted, updated, deleted."""
        if made.net is not None:
            inserted, deleted = self._copies.write(made.net)
            return inserted, 0, emptied + deleted
        last = np.where(made.deletes[made.last], -1, made.last) if self.auditor.empties else made.last
        places = last[last >= 0]
        if not len(places):
            return 0, 0, emptied
        gone = made.deletes[places]
        rows, extra = made.rows.take(pa.array(places)), [OP, *([KEPT] if made.partial else [])]
        kept = [_kept(rows[KEPT].combine_chunks(), gone)] if made.partial else []
        marks = pa.repeat(pa.scalar(1, pa.int64()), len(places))
        ops = pa.array(np.where(gone, "D", "U"))
        columns = ", ".join(["mark bigint", *(f"{quoted(n)} {EXTRA_SQL[n]}" for n in extra)])
        keys = self._keys().take(pa.array(np.flatnonzero(last >= 0)))
        # Images of deletes need have no key.
        own = {n: pc.if_else(pa.array(gone), one(keys[n]), one(rows[n])) for n in made.key}
        data = [own[n] if n in own else rows[n] for n in made.schema.names]
        wanted = self.order.relation.columns
        self._sent.copy(_ROWS, columns, [marks, ops, *kept, *data], wanted)
        into = casts(self.on, self.order.target, wanted)
        staged = Staged(_ROWS, (1,), len(places), tuple(extra), len(wanted), into)
        to = StagedWriter(self.on, self.order.target, self.order.relation, staged)
        # Deletes first: what others made unique here may pass from an old row to a new one.
        deleted = to.delete() if gone.any() else 0
        partly = to.update_partly() if made.partial else 0
        inserted, updated = to.upsert(partial=made.partial)
        return inserted, partly + updated, emptied + deleted

    def _append(self, rows: pa.Table) -> int:
        relation = self.order.relation
        wanted = relation.with_columns([relation.column(n) for n in rows.schema.names])
        into = casts(self.on, self.order.target, wanted.columns)
        if not into:
            names = ", ".join(map(quoted, rows.schema.names))
            self._sent.send(f"{self.order.target} ({names})", rows.columns)
            return int(rows.num_rows)
        marks = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
        self._sent.copy(_ROWS, "mark bigint", [marks, *rows.columns], wanted.columns)
        staged = Staged(_ROWS, (1,), rows.num_rows, (), len(wanted.columns), into)
        return StagedWriter(self.on, self.order.target, wanted, staged).append()

    def _keys(self) -> pa.Table:
        """The keys in the order of their numbers."""
        place = self.source.keys.place
        row = np.zeros(len(self.source.last), np.int64)
        row[place] = np.arange(len(place))
        return self.source.rows.select(list(self.source.key)).take(pa.array(row))

    @property
    def _numbered(self) -> str:
        """FROM item of the numbered keys, in the types of the target, alias s."""
        into = self._casts
        found = [f"c{i}" + (f"::{into[i]} AS c{i}" if i in into else "") for i in range(len(self._key))]
        return f"(SELECT {', '.join(['n', *found])} FROM {_KEYS}) s"

    @cached_property
    def _casts(self) -> dict[int, str]:
        return casts(self.on, self.order.target, self._key)

    @property
    def _key(self) -> list[Column]:
        return [c for c in self.order.relation.columns if c.key]

    @property
    def _same(self) -> str:
        return " AND ".join(f"t.{quoted(c.name)} = s.c{i}" for i, c in enumerate(self._key))


def _kept(kept: pa.StringArray, gone: npt.NDArray[np.bool_]) -> pa.StringArray:
    """`KEPT` of rows of which something stays; NULL for the others."""
    some = pc.and_(pc.match_substring(kept, "1"), pa.array(~gone))
    return pc.if_else(some, kept, pa.scalar(None, pa.string()))
