"""The merge of a chunk of changes in the transaction of its batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from ...engine.batch import Batch, split
from ...engine.columns import ADD, KEPT, OP, TAKE, one
from ...engine.keys import Places
from ...engine.source import Source
from ...model.change import BEFORE, DELETE, Column, Relation
from ...sources.postgresql.connect import Session, quoted
from ..audit import Audit
from ..auditor import NO_ROWS, BatchAuditor
from .chunks import ChangeChunk
from .connection import is_refusal
from .multi_source import count_partition, empty_partition
from .progress import ProgressTable
from .staging import NUMBER, CopySession, StagingTable
from .statements import MergeStatements
from .types import TargetTypes, ambiguous_texts
from .values import read_csv, select_cells, unsupported, without_unsupported

_KEYS, _ROWS = "tailrace_keys", "tailrace_rows"
_NUMBER = Column(NUMBER, 0, "bigint", "int8", "bigint")


@dataclass(frozen=True)
class RowCounts:
    """Rows of the target that were inserted, updated and deleted, net of the chunk; the plan."""

    inserted: int
    updated: int
    deleted: int
    plan: str


@dataclass
class ChunkMerge:
    """The merge of a chunk.

    Attributes:
        on: the connection, in the batch's transaction.
        progress: of the task.
        relation: the target's layout.
        audit: how the changes are judged.
        chunk: the changes.
    """

    session: Session
    progress: ProgressTable
    relation: Relation
    audit: Audit
    chunk: ChangeChunk
    source: Source = field(init=False)
    living: Places = field(init=False)
    """By key number, the number of rows of the target that are not marked as deleted."""
    present: npt.NDArray[np.bool_] = field(init=False)
    """By key number, whether the target has a row, including rows marked as deleted."""

    def __post_init__(self) -> None:
        self.source = self.chunk.source
        many = len(self.source.last)
        self.living, self.present = np.zeros(many, np.int64), np.zeros(many, np.bool_)
        self._refused_keys: dict[int, str] = {}

    @property
    def target(self) -> str:
        """The target as quoted SQL."""
        return self.progress.target(self.relation.table)

    @property
    def staging(self) -> CopySession:
        """Copies rows to and from the database."""
        return CopySession(self.session, self.relation.table)

    @cached_property
    def _types(self) -> TargetTypes:
        return TargetTypes.of(self.session, self.target, self.relation.columns)

    def auditor(self) -> BatchAuditor:
        """Returns a new auditor of the changes, with data errors for values that the target cannot hold."""
        auditor = BatchAuditor(self.audit, self.chunk.end, self.source, self.chunk.texts)
        found: list[pa.StringArray | None] = [self._unsupported]
        if self._refused_keys:
            key_numbers = self.chunk.source.keys.place.tolist()
            found.append(pa.array([self._refused_keys.get(key) for key in key_numbers], pa.string()))
        for why in found:
            if why is not None and why.null_count < len(why):
                auditor.add_data_errors(why)
        return auditor

    def read_rows(self, auditor: BatchAuditor) -> bool:
        """Reads the target's rows with the keys of the changes. Returns whether the database refuses some of
        these keys, or treats some as equal."""
        if not (self.chunk.adds or auditor.ignores_rows or not len(self.living)):
            if self.source.key:
                self._read_castable_keys()
            else:
                self.living = self._copies()
        return self.source is not self.chunk.source or bool(self._refused_keys)

    def _read_castable_keys(self) -> None:
        if not self._key_casts:
            self._read_keys()
            return
        try:
            with self.session.transaction():
                self._read_keys()
        except psycopg.Error as error:  # a text is not a valid value of the key's type
            if not is_refusal(error):
                raise
            self._find_refused_keys(np.arange(len(self.living)))
            self._read_keys()

    def _read_keys(self) -> None:
        self._stage_keys()
        mark = f"(t.{quoted(self.source.mark)} IS NULL)::int::bigint" if self.source.mark else "1::bigint"
        both = f"{self._keys.source()} JOIN {self.target} t ON {self._same}"
        query = f"SELECT s.{quoted(NUMBER)}, {mark} FROM {both}"
        found = self.staging.numbers(query, "number", "living")
        numbers = found["number"].astype(np.int64)
        self.living[numbers], self.present[numbers] = found["living"], True

    def _find_refused_keys(self, numbers: Places) -> None:
        """Finds the keys that the database refuses, among those with these numbers."""
        try:
            with self.session.transaction():
                self._stage(numbers)
                self.session.execute(f"SELECT count(k) FROM {self._keys.source('k')}".encode())
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            if len(numbers) == 1:
                self._refused_keys[int(numbers[0])] = error.diag.message_primary or str(error).strip()
                return
            for half in np.array_split(numbers, 2):
                self._find_refused_keys(half)

    def merge(self, auditor: BatchAuditor) -> RowCounts:
        """Decides the changes, and writes the resulting rows."""
        if self.chunk.adds:
            remaining, decided = self.source, auditor.decide(NO_ROWS)
        else:
            remaining = auditor.remaining(self.source, self.living, self._rows_of)
            decided = auditor.batch
        auditor.start_log(self.chunk.pool)
        emptied = (
            empty_partition(self.session, self.progress, self.relation.table) if self._empties(decided) else 0
        )
        if self.chunk.adds:
            self._append(remaining.rows.filter(pa.array(decided.decided.effective)))
        elif remaining.net is not None:
            self._write_copies(remaining.net)
        else:
            self._write(remaining, emptied=self._empties(decided))
        return self.counts(decided, emptied)

    def counts(self, decided: Batch, emptied: int) -> RowCounts:
        """Returns the net numbers of rows: a key that is inserted and deleted is not counted."""
        if self.chunk.adds:
            return RowCounts(int(decided.decided.effective.sum()), 0, 0, "append")
        plan = "replace_all" if self._empties(decided) else "upsert" if self.source.key else "keyless"
        if not self.source.key:
            take, add = split(decided.net(self.source))
            return RowCounts(int(add.sum()), 0, emptied + int(take.sum()), plan)
        last = decided.last(self.source)
        written, stays = last >= 0, self.source.mark is not None
        goes = np.isin(decided.events.oper[last], [DELETE, BEFORE]) & (not stays)
        present = self.present & (not self._empties(decided))
        inserted, updated = (int((written & ~goes & found).sum()) for found in (~present, present))
        return RowCounts(inserted, updated, emptied + int((written & goes & present).sum()), plan)

    def count_rows(self) -> int:
        """Returns the number of the source's rows in the target."""
        return count_partition(self.session, self.progress, self.relation.table)

    def _empties(self, decided: Batch) -> bool:
        return bool(decided.truncates) and not self.audit.archives

    @cached_property
    def _unsupported(self) -> pa.StringArray | None:
        """By change row, why PostgreSQL cannot hold its values; None if it can hold all."""
        return unsupported(self.source.rows, self.relation)

    def stage(self, name: str, extra: dict[str, pa.Array], rows: pa.Table) -> StagingTable:
        """Copies rows to a temporary table."""
        return self.staging.stage(name, extra, self._data(rows), self.relation.columns, self._types.casts)

    def _data(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        """Returns the columns of the target, with NULL for values that PostgreSQL cannot hold."""
        rows = rows.select([c.name for c in self.relation.columns])
        return list((rows if self._unsupported is None else without_unsupported(rows)).columns)

    def _stage_keys(self) -> None:
        """Copies the keys and their numbers to a temporary table. Keys that the database treats as equal
        although their texts differ, such as 1.0 and 1.00, become one key."""
        self._stage(np.setdiff1d(np.arange(len(self.living)), list(self._refused_keys)))
        if not ambiguous_texts(self._key_casts):
            return
        names = ", ".join(f"c{i}" for i in range(len(self._key)))
        number = quoted(NUMBER)
        equal = self.staging.numbers(
            f"SELECT unnest(array_agg({number})) AS n, min({number}) AS first FROM {self._keys.source()}"
            f" GROUP BY {names} HAVING count(*) > 1",
            "n", "first",
        )  # fmt: skip
        if len(equal):
            first = np.arange(len(self.living))
            first[equal["n"].astype(np.int64)] = equal["first"]
            self.source = self.source.joined(first)

    def _stage(self, numbers: Places) -> None:
        """Copies the keys with these numbers, except those that PostgreSQL cannot hold."""
        if self._unsupported is not None:
            supported = self.chunk.source.keys.place[
                self._unsupported.is_null().to_numpy(zero_copy_only=False)
            ]
            numbers = numbers[np.isin(numbers, supported)]
        data, extra = self._key_rows().take(pa.array(numbers)), {NUMBER: pa.array(numbers)}
        self._keys = self.staging.stage(_KEYS, extra, data.columns, self._key, self._key_casts)

    def _rows_of(self, wanted: Places) -> tuple[Places, pa.Table]:
        """See `engine.source.RowsOf`."""
        if not len(wanted):
            return wanted, self.source.schema.empty_table()
        which = ",".join(map(str, wanted.tolist()))
        query = (
            f"SELECT s.{quoted(NUMBER)}, {select_cells(self.relation.columns)} FROM {self._keys.source()}"
            f" JOIN {self.target} t ON {self._same} WHERE s.{quoted(NUMBER)} = ANY ('{{{which}}}'::bigint[])"
        )
        data = self.staging.answer(query, "csv")
        rows = read_csv([_NUMBER, *self.relation.columns], data, self.relation.table)
        table = pa.Table.from_batches([rows.select(self.source.schema.names)])
        return np.asarray(rows.column(0).to_numpy(), np.int64), table.cast(self.source.schema)

    def _write(self, source: Source, *, emptied: bool) -> None:
        last = np.where(source.deletes[source.last], -1, source.last) if emptied else source.last
        indices = last[last >= 0]
        if not len(indices):
            return
        deletes, rows = source.deletes[indices], source.rows.take(pa.array(indices))
        extra = {OP: pa.array(np.where(deletes, "D", "U"))}
        if source.partial:
            extra[KEPT] = _kept(one(rows[KEPT]), deletes)
        # Images of deletes may have no key.
        keys = self._key_rows().take(pa.array(np.flatnonzero(last >= 0)))
        for name in source.key:
            column = pc.if_else(pa.array(deletes), one(keys[name]), one(rows[name]))
            rows = rows.set_column(rows.schema.names.index(name), name, column)
        to = MergeStatements(self.session, self.target, self.relation, self.stage(_ROWS, extra, rows))
        # Deletes first: a unique value may pass from an old row to a new one.
        if deletes.any():
            to.delete()
        if source.partial:
            to.update_partly()
        to.upsert(partial=source.partial)

    def _append(self, rows: pa.Table) -> None:
        if not self._types.exact:
            MergeStatements(self.session, self.target, self.relation, self.stage(_ROWS, {}, rows)).append()
            return
        names = ", ".join(quoted(c.name) for c in self.relation.columns)
        self.staging.copy(f"{self.target} ({names})", self._data(rows))

    def _copies(self) -> Places:
        """Returns by number of the different rows of a keyless table, how many copies the target has."""
        last = self.source.last
        extra = {NUMBER: pa.array(np.arange(len(last)))}
        staged = self.stage("tailrace_named", extra, self.source.rows.take(pa.array(last)))
        same, number = (
            MergeStatements(self.session, self.target, self.relation, staged).same_row,
            f"s.{quoted(NUMBER)}",
        )
        query = f"SELECT {number}, count(*) FROM {staged.texts} JOIN {self.target} t ON {same} GROUP BY 1"
        rows, found = self.staging.numbers(query, "number", "copies"), np.zeros(len(last), np.int64)
        found[rows["number"].astype(np.int64)] = rows["copies"]
        return found

    def _write_copies(self, net: Places) -> None:
        """Adds or deletes copies of rows; `net`: the change of the number of copies of each different row."""
        changed = np.flatnonzero(net)
        if not len(changed):
            return
        take, add = split(net[changed])
        rows = self.source.rows.take(pa.array(self.source.last[changed]))
        staged = self.stage(_ROWS, {TAKE: pa.array(take), ADD: pa.array(add)}, rows)
        to = MergeStatements(self.session, self.target, self.relation, staged)
        to.take_copies()
        to.add_copies()

    def _key_rows(self) -> pa.Table:
        """Returns the keys in the order of their numbers."""
        key_numbers = self.source.keys.place
        row = np.zeros(len(self.source.last), np.int64)
        row[key_numbers] = np.arange(len(key_numbers))
        return self.source.rows.select(list(self.source.key)).take(pa.array(row))

    @cached_property
    def _key_casts(self) -> dict[int, str]:
        indices = [i for i, c in enumerate(self.relation.columns) if c.key]
        return {k: self._types.casts[i] for k, i in enumerate(indices) if i in self._types.casts}

    @cached_property
    def _key(self) -> list[Column]:
        return [c for c in self.relation.columns if c.key]

    @property
    def _same(self) -> str:
        return " AND ".join(f"t.{quoted(c.name)} = s.c{i}" for i, c in enumerate(self._key))


def _kept(kept: pa.StringArray, deletes: npt.NDArray[np.bool_]) -> pa.StringArray:
    """Returns `KEPT` of rows that keep columns; NULL for the others."""
    keeps = pc.and_(pc.match_substring(kept, "1"), pa.array(~deletes))
    return pc.if_else(keeps, kept, pa.scalar(None, pa.string()))
