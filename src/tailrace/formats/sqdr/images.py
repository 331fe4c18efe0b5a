"""Creates the texts of a key log's rows from a table's changes in arrays, in Spark's tasks.

Source: spec/sqdr.md §4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...model import mask
from ...model.change import BEFORE, DELETE, INSERT, UPDATE
from ...model.quoting import quoted
from ...model.types import arrow_type
from ...wire import keylog_render
from ...wire.keylog_values import KeyLogField
from ...wire.soliddb_rows import Bools

SEQ, OPER, CARRIED = "_seq", "_oper", "_carried"
"""Columns of changes: change sequence, operation, column mask."""
KEY, OLD_KEY, IMAGE = "_key", "_old_key", "_image"
_TEXTS = (KEY, OLD_KEY, IMAGE)
_IMAGED = (INSERT, UPDATE, DELETE)


@dataclass(frozen=True)
class ImageTexts:
    """Returns a table's changes (B directly before its U) without B rows and without the values `_c0`, `_c1`,
    ..., but with the texts `KEY`, `OLD_KEY` (of updates with a B) and `IMAGE` (of rows with more than a key).

    Attributes:
        fields: the table's columns.
        keys: indexes of the key's columns.
        ordinals: the columns' bits in `CARRIED`; empty: every row has every column.
        others: columns that stay, with their types.
        dest: the text before each image.
    """

    fields: tuple[KeyLogField, ...]
    keys: tuple[int, ...]
    ordinals: tuple[int, ...]
    others: tuple[tuple[str, str], ...]
    dest: str = ""

    def schema(self) -> str:
        """Returns the Spark schema of the result."""
        return ", ".join([*(f"{quoted(n)} {t}" for n, t in self.others), *(f"{t} string" for t in _TEXTS)])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a task; the last B of a batch is used in the next batch."""
        before: tuple[str | None, str | None] = (None, None)
        for batch in batches:
            if batch.num_rows:
                result, before = self._with_texts(batch, before)
                yield result

    def _with_texts(
        self, rows: pa.RecordBatch, before: tuple[str | None, str | None]
    ) -> tuple[pa.RecordBatch, tuple[str | None, str | None]]:
        """Returns the rows, and sequence and key of the last one if it is a B."""
        n = rows.num_rows
        present = mask.unpack(rows[CARRIED], self.ordinals) if self.ordinals else None
        key = self._text(rows, self.keys, present)
        old = pc.equal(rows[OPER], BEFORE).to_numpy(zero_copy_only=False)
        keys = pa.concat_arrays([pa.array([before[1]], pa.string()), key.slice(0, n - 1)])
        seqs = pa.concat_arrays([pa.array([before[0]], pa.string()), rows[SEQ].slice(0, n - 1)])
        behind = np.append(before[0] is not None, old[:-1])
        same = pc.fill_null(pc.equal(seqs, rows[SEQ]), False).to_numpy(zero_copy_only=False)
        old_key = pc.if_else(pa.array(behind & same), keys, pa.scalar(None, pa.string()))
        stays = pa.array(~old)
        imaged = self._imaged(rows, present) & ~old
        some = rows.filter(pa.array(imaged))
        texts = self._text(some, range(len(self.fields)), _some(present, imaged), row=True)
        columns = pa.array(np.cumsum(imaged) - 1, mask=~imaged)
        image = texts.take(columns) if len(texts) else pa.nulls(n, pa.string())
        arrays = [*(rows[name] for name, _ in self.others), key, old_key, image]
        result = pa.RecordBatch.from_arrays(arrays, names=[*(name for name, _ in self.others), *_TEXTS])
        last = (rows[SEQ][n - 1].as_py(), key[n - 1].as_py()) if old[-1] else (None, None)
        return result.filter(stays), last

    def _imaged(self, rows: pa.RecordBatch, present: Bools | None) -> Bools:
        """Returns which rows have an image: inserts, updates, and deletes with more than their key."""
        oper = rows[OPER]
        known = pc.is_in(oper, pa.array(_IMAGED)).to_numpy(zero_copy_only=False)
        rest = [i for i in range(len(self.fields)) if i not in self.keys]
        deletes = pc.equal(oper, DELETE).to_numpy(zero_copy_only=False)
        more = np.full(rows.num_rows, bool(rest)) if present is None else present[:, rest].any(axis=1)
        found: Bools = known & (~deletes | more)
        return found

    def _text(
        self, rows: pa.RecordBatch, columns: Sequence[int], present: Bools | None, *, row: bool = False
    ) -> pa.StringArray:
        ends = (f"{self.dest}<row>", "</row>") if row else ("", "")
        if not columns:  # only that rows changed is known, not their values
            return pa.array(["".join(ends)] * rows.num_rows, pa.string())
        cells = [
            keylog_render.Item(
                self.fields[i],
                rows[f"_c{i}"].cast(arrow_type(self.fields[i].type)),
                None if present is None else present[:, i],
            )
            for i in columns
        ]
        return keylog_render.items(cells, *ends)


def _some(present: Bools | None, rows: Bools) -> Bools | None:
    return None if present is None else present[rows]
