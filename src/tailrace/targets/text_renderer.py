"""Renders the key log's texts of a batch in threads, while images are still read and the target is scanned.

The texts do not depend on the rows of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from types import TracebackType

import numpy as np
import pyarrow as pa

from ..engine.columns import LETTER, OPER, letters, one, raw_values
from ..engine.keys import Places
from ..engine.log_rows import ChangeTexts
from ..execution import InlineExecutor, thread_pool
from ..model.change import BEFORE
from .audit import Audit

_MIN_BYTES = 2 << 20
"""Images of fewer bytes are rendered in the calling thread."""
_ROWS = 1 << 16
"""The maximum number of images that are rendered together."""


class TextRenderer:
    """Renders the texts of a batch's changes, if the key log has a row for every change.

    Use it as a context manager: its threads end with the block. A batch of few bytes is rendered in the
    calling thread.

    Attributes:
        parts: the texts in the order of the changes, after `finish`. Empty if the key log has rows for
            flagged changes only, because these are not known yet.
        pool: the threads, which may run other work, too.
    """

    def __init__(self, audit: Audit, threads: int) -> None:
        log = audit.keylog
        self._log = None if log is None or log.mode == "errors" else log
        self._letter = LETTER if audit.archives else OPER
        self._threads = thread_pool("key log", threads)
        self._images: list[pa.RecordBatch] = []
        self._bytes = 0
        self.pool: Executor = InlineExecutor()
        self.parts: list[Future[ChangeTexts]] = []

    def __enter__(self) -> TextRenderer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    def pass_through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the given images, and renders their texts at the same time."""
        for batch in batches:
            self._images.append(batch)
            self._bytes += batch.nbytes
            if self._bytes >= _MIN_BYTES:
                self.pool = self._threads
                self._render()
            yield batch

    def finish(self, rows: pa.Table, indices: Places | None) -> None:
        """Renders the rest of the images and sorts the texts.

        Args:
            rows: all images, as they were read.
            indices: the indices of the images in the order of the changes; None if they were read in it.
        """
        self._render()
        if indices is None or self._log is None:
            return
        changes = letters(one(rows[self._letter])) != BEFORE
        numbers = np.cumsum(changes) - 1
        self.parts = [self.pool.submit(_sorted, self.parts, numbers[indices][changes[indices]])]

    def _render(self) -> None:
        images, self._images, self._bytes = self._images, [], 0
        if self._log is None or not images:
            return
        rows = raw_values(pa.Table.from_batches(images))
        if self._letter != OPER:
            rows = rows.set_column(rows.schema.names.index(OPER), OPER, rows[self._letter])
        for start in range(0, rows.num_rows, _ROWS):
            part, log = rows.slice(start, _ROWS), self._log
            self.parts.append(self.pool.submit(ChangeTexts.of_changes, part, log.header, images=log.images))


def _sorted(parts: list[Future[ChangeTexts]], numbers: Places) -> ChangeTexts:
    """Returns the texts of the changes with these numbers, in their order."""
    texts, indices = ChangeTexts.joined([part.result() for part in parts]), pa.array(numbers)
    images = None if texts.images is None else texts.images.take(indices)
    return ChangeTexts(texts.keys.take(indices), images)
