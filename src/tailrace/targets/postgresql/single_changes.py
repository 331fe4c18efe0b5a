"""A chunk of changes that the database refuses, applied one change at a time in their order.

Each change is one or two statements. A change that the database refuses is undone by a savepoint, and the
engine decides again with that change as a data error: its policy says whether it is logged or ends the batch,
and later changes find what the others have left. Statements of several changes are sent together. If one of
them is refused, they are sent again in halves, until the change is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import psycopg
import pyarrow as pa

from ...engine.batch import Batch
from ...engine.columns import SEQ, carried
from ...engine.decide import NAMES
from ...errors import ConstraintError
from ...model.change import BEFORE, DELETE, TRUNCATE
from ...sources.postgresql.connect import literal, quoted
from ..auditor import NO_ROWS, BatchAuditor
from .chunk_merge import ChunkMerge, RowCounts
from .connection import hint_of, is_refusal
from .multi_source import empty_statement
from .staging import NUMBER, StagingTable
from .statements import MergeStatements

_TOGETHER = 128
"""Changes that are sent together."""


@dataclass
class SingleChanges:
    """Applies the changes of a chunk; `auditor`, afterwards: the auditor that has decided them."""

    chunk: ChunkMerge
    auditor: BatchAuditor = field(init=False)
    _decided: Batch = field(init=False)
    _why: list[str | None] = field(init=False)

    def run(self) -> RowCounts:
        """Does it. Deferred constraints wait for the last change, as at the source; if one of them then
        refuses the rows, all constraints are checked with each change."""
        session = self.chunk.session
        for immediate in (False, True):
            try:
                with session.transaction():
                    if immediate:
                        session.execute("SET CONSTRAINTS ALL IMMEDIATE")
                    counts = self._all()
                    session.execute("SET CONSTRAINTS ALL IMMEDIATE")
                    return counts
            except psycopg.Error as error:
                if immediate or not is_refusal(error):
                    raise
        raise AssertionError

    def _all(self) -> RowCounts:
        chunk = self.chunk
        self.auditor = chunk.auditor()
        self._why = [None] * chunk.source.rows.num_rows
        emptied = chunk.count_rows() if self.auditor.truncated else 0
        self._decide()
        self._stage()
        changes = np.flatnonzero(self._decided.events.oper != BEFORE).tolist()
        for begin in range(0, len(changes), _TOGETHER):
            self._apply(changes[begin : begin + _TOGETHER])
        self.auditor.start_log(chunk.chunk.pool)
        return chunk.counts(self._decided, emptied if self._decided.truncates else 0)

    def _decide(self) -> None:
        self._decided = self.auditor.decide(NO_ROWS if self.chunk.chunk.adds else self.chunk.living)

    def _stage(self) -> None:
        """Sends all rows, old images too, with their numbers."""
        rows, chunk = self.chunk.source.rows, self.chunk
        numbers = pa.array(np.arange(rows.num_rows))
        staged = chunk.stage("tailrace_changes", {NUMBER: numbers}, rows)
        chunk.session.execute(f"CREATE INDEX ON {staged.table} ({quoted(NUMBER)})".encode())
        self._statements = ChangeStatements(chunk, staged)

    def _apply(self, rows: Sequence[int]) -> None:
        """Applies changes, as far as they take part and come before the end of the batch."""
        decided = self._decided.decided
        mine = [row for row in rows if row < decided.upto]
        statements = [one for row in mine for one in self._statements.of(row, self._decided)]
        if not statements:
            return
        try:
            with self.chunk.session.transaction():
                self.chunk.session.execute("; ".join(statements).encode(), prepare=False)
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            if len(mine) == 1:
                self._refuse(mine[0], error)
                return
            half = len(mine) // 2
            self._apply(mine[:half])
            self._apply(mine[half:])

    def _refuse(self, row: int, error: psycopg.Error) -> None:
        """Takes a change as a data error; raises ConstraintError if there are no rules for it."""
        said = error.diag.message_primary or str(error).strip()
        if self.chunk.audit.plain:
            seq, table = self.chunk.source.rows[SEQ][row], self.chunk.relation.table
            raise ConstraintError(said, where=f"{table}, change_seq {seq}", hint=hint_of(error)) from error
        self._why[row] = said
        self.auditor.add_data_errors(pa.array(self._why, pa.string()))
        self._decide()


class ChangeStatements:
    """The statements of single changes, whose rows are staged with their numbers."""

    def __init__(self, chunk: ChunkMerge, staged: StagingTable) -> None:
        self._chunk, self._staged = chunk, staged
        self._to = MergeStatements(chunk.session, chunk.target, chunk.relation, staged)
        source = chunk.source
        self._mark = None if source.mark is None else source.schema.names.index(source.mark)
        # Without a key, images are whole; an archive has them as they are.
        carried_cells = carried(source.rows, chunk.audit.header.ordinals) if source.key else None
        if carried_cells is not None and self._mark is not None:
            carried_cells = np.insert(carried_cells, self._mark, True, axis=1)
        self._carried_cells = carried_cells

    def of(self, row: int, decided: Batch) -> Iterator[str]:
        """The statements of a change; none if it does not take part."""
        oper, chunk = decided.events.oper[row], self._chunk
        if oper == TRUNCATE and not chunk.audit.archives:
            yield empty_statement(chunk.progress, chunk.relation.table)
        if not decided.decided.effective[row]:
            return
        before, old = int(decided.events.before[row]), int(decided.events.old[row])
        if chunk.chunk.adds:
            yield self._insert(row)
        elif not chunk.source.key:
            yield from self._of_copy(row, oper, before, decided)
        elif oper == DELETE:
            yield self._delete(row)
        else:
            yield from self._of_image(NAMES[decided.decided.situation[row]], row, before, old)

    def _of_copy(self, row: int, oper: str, before: int, decided: Batch) -> Iterator[str]:
        """A change of a table without key: it takes a copy of a row, adds one, or both."""
        taken = row if oper == DELETE else before
        if taken >= 0 and decided.decided.effective[taken]:
            same = f"SELECT t.tableoid AS part, t.ctid AS place FROM {self._to.target} t"
            same += f" JOIN {self._staged.row(taken).texts} ON {self._to.same_row} LIMIT 1"
            where = "t.ctid = o.place AND t.tableoid = o.part"
            yield f"DELETE FROM {self._to.target} t USING ({same}) o WHERE {where}"
        if oper != DELETE:
            yield self._insert(row)

    def _of_image(self, situation: str, row: int, before: int, old: int) -> Iterator[str]:
        if situation == "U1":
            yield from self._update(row, row)
        elif situation == "U0":  # a row that is marked as deleted keeps what the image lacks
            carried = [i for i in range(len(self._to.names)) if self._carries(row, i)]
            yield f"{self._insert(row, before)} {self._to.on_conflict(carried)}"
        elif situation not in ("K10", "K11"):
            yield f"{self._insert(row, before)} {self._to.on_conflict()}"
        elif self._mark is not None:  # the old row stays
            yield self._delete(old, row)
            yield f"{self._insert(row, before, old)} {self._to.on_conflict()}"
        else:
            if situation == "K11":
                yield self._delete(row)
            yield from self._update(row, old)

    def _delete(self, row: int, change: int | None = None) -> str:
        """Deletes the row that has a staged row's key; under soft delete it gets the mark of a change."""
        where = f"FROM {self._staged.row(row).source()} WHERE {self._to.same_key}"
        if self._mark is None:
            return f"DELETE FROM {self._to.target} t USING {where.removeprefix('FROM ')}"
        seq = self._chunk.source.rows[SEQ][row if change is None else change].as_py()
        return f"UPDATE {self._to.target} t SET {self._to.names[self._mark]} = {literal(seq)} {where}"

    def _update(self, row: int, old: int) -> Iterator[str]:
        """Updates the row that has the key of the staged row `old` with what the image has."""
        columns = enumerate(self._to.names) if old != row else self._to.set
        cells = [f"{name} = n.c{i}" for i, name in columns if self._carries(row, i)]
        if cells:
            new, was = self._staged.row(row).source("n"), self._staged.row(old).source()
            rows = f"FROM {new}, {was} WHERE {self._to.same_key}"
            yield f"UPDATE {self._to.target} t SET {', '.join(cells)} {rows}"

    def _insert(self, row: int, before: int = -1, old: int = -1) -> str:
        """Inserts an image. What it lacks comes from the row with the key of the staged row `old`, without
        one from the image before, if that has it."""
        items, cells = [self._staged.row(row).source("n")], []
        for i, name in enumerate(self._to.names):
            if self._carries(row, i):
                cells.append(f"n.c{i}")
            elif old >= 0:
                cells.append(f"t.{name}")
            else:
                cells.append(f"b.c{i}" if before >= 0 and self._carries(before, i) else "NULL")
        if any(cell.startswith("b.") for cell in cells):
            items.append(self._staged.row(before).source("b"))
        where = ""
        if old >= 0:
            items += [self._staged.row(old).source(), f"{self._to.target} t"]
            where = f" WHERE {self._to.same_key}"
        return f"{self._to.into} SELECT {', '.join(cells)} FROM {', '.join(items)}{where}"

    def _carries(self, row: int, column: int) -> bool:
        return self._carried_cells is None or bool(self._carried_cells[row, column])
