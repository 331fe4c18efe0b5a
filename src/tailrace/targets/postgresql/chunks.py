"""The changes of a batch in chunks that memory holds, each of whole changes and in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...config.machine import cores
from ...engine.columns import SEQ
from ...engine.log_rows import ChangeTexts
from ...engine.source import Source
from ...errors import TailraceError
from ...execution import thread_pool
from ...model.change import Relation
from ...model.sequence import number_of
from ...model.types import schema_of
from ..audit import Audit
from ..auditor import append_source, batch_columns, read_sorted, source_of
from ..text_renderer import TextRenderer


@dataclass(frozen=True)
class ChangeChunk:
    """Changes that are merged together.

    Attributes:
        source: the changes.
        adds: each change adds a row, whatever the target has.
        texts: the texts of the changes for the key log, see `Rendering.parts`.
        pool: runs work beside the merge.
        upto: the change number that they reach.
        last: no chunk follows.
    """

    source: Source
    adds: bool
    texts: Sequence[Future[ChangeTexts]]
    pool: Executor
    end: int
    last: bool


class OrderError(TailraceError):
    """Changes of a later chunk belong to an earlier one."""


class ChunkReader:
    """Cuts the change rows of a batch.

    Args:
        batches: the rows; they can be cut if their order is that of the changes.
        limit: the maximum number of bytes of a chunk; None: one chunk has all.
        upto: the change number that the batch reaches.
        relation, audit, extra: of the batch; see `BatchMerge`.
    """

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch],
        limit: int | None,
        end: int,
        relation: Relation,
        audit: Audit,
        extra: pa.Schema,
    ) -> None:
        self._rest, self._limit, self._upto = iter(batches), limit, end
        self._audit, self._schema = audit, schema_of(relation.columns)
        self._key, self._columns = tuple(relation.key), batch_columns(extra, self._schema)
        self._left: pa.RecordBatch | None = None
        self._last = ""
        self.more = True
        """Whether a chunk follows."""

    @contextmanager
    def next(self) -> Iterator[ChangeChunk]:
        """Reads the next chunk; its texts are rendered until the block ends.

        Raises:
            OrderError: the rows cannot be cut.
        """
        with TextRenderer(self._audit, cores()) as texts, thread_pool("audit") as pool:
            rows = read_sorted(self._batches(), self._columns, None, texts)
            assert rows is not None  # noqa: S101 - there is no limit here
            first, last = (rows[SEQ][at].as_py() if rows.num_rows else "" for at in (0, -1))
            if rows.num_rows and first <= self._last:
                raise OrderError("the changes are not in their order")
            end, self._last = number_of(last) if self.more else self._upto, last
            source = append_source(rows, self._key, self._schema, self._audit)
            adds = source is not None
            source = source or source_of(rows, self._key, self._schema, self._audit.rules)
            yield ChangeChunk(source, adds, texts.parts, pool, end, not self.more)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        size, left, self._left = 0, self._left, None
        if left is not None:
            size = left.nbytes
            yield left
        for batch in self._rest:
            size += batch.nbytes
            if self._limit is not None and size > self._limit and (cut := _last_change(batch)):
                self._left = batch.slice(cut)
                yield batch.slice(0, cut)
                return
            yield batch
        self.more = False


def _last_change(batch: pa.RecordBatch) -> int:
    """Where the rows of a batch's last change begin."""
    return int(pc.index(batch[SEQ], batch[SEQ][-1]).as_py()) if batch.num_rows else 0
