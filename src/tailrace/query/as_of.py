"""A table as it stood at a place in its history: rows of before, with the changes since laid over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..engine.bag_changes import BagState
from ..engine.change_arrays import ChangeArrays, T
from ..engine.columns import one
from ..engine.keys import Keys
from ..engine.state_at import complete
from .result import Result

Batches = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class LaidOver:
    """Rows of before, streamed, with changes laid over them: those whose keys no change names pass through.

    Attributes:
        base: gives the rows of before; schema: their columns, those of the table.
        changes: what came since.
        where: named in errors.
    """

    base: Batches
    schema: pa.Schema
    changes: ChangeArrays
    where: str

    def result(self) -> Result:
        """The rows; the changed ones come last."""
        if not len(self.changes):
            return Result(self.schema, self.base, self.changes.aside)
        rows = self._rows if self.changes.key else self._bag
        return Result(self.schema, rows, self.changes.aside)

    def _bag(self) -> Iterator[pa.RecordBatch]:
        state = BagState(self.changes)
        for batch in self.base():
            yield state.left(batch)
        yield from state.more().select(self.schema.names).cast(self.schema).to_batches()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        met: list[pa.RecordBatch] = []
        for mine, others in split(self.changes, self.base()):
            met.append(mine)
            if not len(self.changes.truncates):
                yield others
        after = complete(self.changes, pa.Table.from_batches(met, self.schema), self.where)
        yield from after.select(self.schema.names).cast(self.schema).to_batches()


def split(
    changes: ChangeArrays, rows: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Each batch of a table's rows as two: those whose keys changes name, and the others."""
    own = changes.rows.filter(pa.array(changes.oper != T))
    keys: Keys | None = None
    for batch in rows:
        if own.num_rows and keys is None:
            keys = Keys([one(own[n]).cast(batch.schema.field(n).type) for n in changes.key])
        found = np.full(batch.num_rows, -1) if keys is None else keys.find([batch[n] for n in changes.key])
        yield batch.filter(pa.array(found >= 0)), batch.filter(pa.array(found < 0))
