"""Rows of a table at a position: base rows with the changes since then applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..engine.change_arrays import ChangeArrays, T
from ..engine.columns import one
from ..engine.keyless_changes import KeylessState
from ..engine.keys import Keys
from ..engine.state_at import complete_state
from .result import Result

Batches = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class OverlaidRows:
    """Streamed base rows with changes applied. Rows whose keys are not in the changes pass through unchanged.

    Attributes:
        base: returns the base rows.
        schema: the columns of the base rows and of the table.
        changes: the changes after the base.
        where: the location for error messages.
    """

    base: Batches
    schema: pa.Schema
    changes: ChangeArrays
    where: str

    def result(self) -> Result:
        """Returns the rows; changed rows are last."""
        if not len(self.changes):
            return Result(self.schema, self.base, self.changes.aside)
        rows = self._rows if self.changes.key else self._bag
        return Result(self.schema, rows, self.changes.aside)

    def _bag(self) -> Iterator[pa.RecordBatch]:
        state = KeylessState(self.changes)
        for batch in self.base():
            yield state.left(batch)
        yield from state.more().select(self.schema.names).cast(self.schema).to_batches()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        met: list[pa.RecordBatch] = []
        for mine, others in split_by_keys(self.changes, self.base()):
            met.append(mine)
            if not len(self.changes.truncates):
                yield others
        after = complete_state(self.changes, pa.Table.from_batches(met, self.schema), self.where)
        yield from after.select(self.schema.names).cast(self.schema).to_batches()


def split_by_keys(
    changes: ChangeArrays, rows: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Splits each batch of rows into those whose keys are in the changes, and the others."""
    own = changes.rows.filter(pa.array(changes.oper != T))
    keys: Keys | None = None
    for batch in rows:
        if own.num_rows and keys is None:
            keys = Keys([one(own[n]).cast(batch.schema.field(n).type) for n in changes.key])
        found = np.full(batch.num_rows, -1) if keys is None else keys.find([batch[n] for n in changes.key])
        yield batch.filter(pa.array(found >= 0)), batch.filter(pa.array(found < 0))
