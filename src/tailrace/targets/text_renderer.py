"""The key log's texts of a batch: they hang on nothing that is in the table, so there is time for them while
images still come, and while others look for their rows."""

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

_BEGUN = 2 << 20
"""So many bytes of images are worth a thread."""
_ROWS = 1 << 16
"""So many are rendered at once."""


class Rendering:
    """The texts of a batch's changes, if a key log wants those of all.

    As a context, threads of its own render while images come; they end with it. A batch of few bytes is
    rendered in place.

    Attributes:
        parts: the texts, in the order of the changes, once `finish` has been called; none: which changes are
            wanted is not known before they are decided.
        pool: who renders, and has time for more.
    """

    def __init__(self, audit: Audit, threads: int) -> None:
        log = audit.keylog
        self._log = None if log is None or log.mode == "errors" else log
        self._letter = LETTER if audit.archives else OPER
        self._threads = thread_pool("key log", threads)
        self._came: list[pa.RecordBatch] = []
        self._bytes = 0
        self.pool: Executor = InlineExecutor()
        self.parts: list[Future[ChangeTexts]] = []

    def __enter__(self) -> Rendering:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    def seen(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same images, whose texts are begun meanwhile."""
        for batch in batches:
            self._came.append(batch)
            self._bytes += batch.nbytes
            if self._bytes >= _BEGUN:
                self.pool = self._threads
                self._begin()
            yield batch

    def finish(self, rows: pa.Table, places: Places | None) -> None:
        """Has the rest rendered of the images that came, which are `rows`; `places`: their numbers in the
        order of changes, None when they came in it."""
        self._begin()
        if places is None or self._log is None:
            return
        changes = letters(one(rows[self._letter])) != BEFORE
        numbers = np.cumsum(changes) - 1
        self.parts = [self.pool.submit(_sorted, self.parts, numbers[places][changes[places]])]

    def _begin(self) -> None:
        came, self._came, self._bytes = self._came, [], 0
        if self._log is None or not came:
            return
        rows = raw_values(pa.Table.from_batches(came))
        if self._letter != OPER:
            rows = rows.set_column(rows.schema.names.index(OPER), OPER, rows[self._letter])
        for begin in range(0, rows.num_rows, _ROWS):
            some, log = rows.slice(begin, _ROWS), self._log
            self.parts.append(self.pool.submit(ChangeTexts.of_changes, some, log.header, images=log.images))


def _sorted(parts: list[Future[ChangeTexts]], numbers: Places) -> ChangeTexts:
    """The texts of all parts, by their numbers."""
    texts, at = ChangeTexts.joined([part.result() for part in parts]), pa.array(numbers)
    return ChangeTexts(texts.keys.take(at), None if texts.images is None else texts.images.take(at))
