"""The texts of a key log's rows, made of a table's changes in arrays, inside Spark's tasks.

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
"""Columns that changes come with: change sequence, operation, column mask."""
KEY, OLD_KEY, IMAGE = "_key", "_old_key", "_image"
_TEXTS = (KEY, OLD_KEY, IMAGE)
_IMAGED = (INSERT, UPDATE, DELETE)


@dataclass(frozen=True)
class ImageTexts:
    """Gives a table's changes (B directly before its U) without their B rows and their values `_c0`, `_c1`,
    ..., but with the texts `KEY`, `OLD_KEY` (of updates with a B) and `IMAGE` (of rows with more than a key).

    Attributes:
        fields: the table's columns.
        keys: places of the key's columns.
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
        """The Spark schema of the rows that come out."""
        return ", ".join([*(f"{quoted(n)} {t}" for n, t in self.others), *(f"{t} string" for t in _TEXTS)])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a task; what the last B of a batch says is known to the next."""
        before: tuple[str | None, str | None] = (None, None)
        for batch in batches:
            if batch.num_rows:
                made, before = self._made(batch, before)
                yield made

    def _made(
        self, rows: pa.RecordBatch, before: tuple[str | None, str | None]
    ) -> tuple[pa.RecordBatch, tuple[str | None, str | None]]:
        """The rows, and sequence and key of the last one if it is a B."""
        n = rows.num_rows
        there = mask.unpack(rows[CARRIED], self.ordinals) if self.ordinals else None
        key = self._text(rows, self.keys, there)
        old = pc.equal(rows[OPER], BEFORE).to_numpy(zero_copy_only=False)
        keys = pa.concat_arrays([pa.array([before[1]], pa.string()), key.slice(0, n - 1)])
        seqs = pa.concat_arrays([pa.array([before[0]], pa.string()), rows[SEQ].slice(0, n - 1)])
        behind = np.append(before[0] is not None, old[:-1])
        same = pc.fill_null(pc.equal(seqs, rows[SEQ]), False).to_numpy(zero_copy_only=False)
        old_key = pc.if_else(pa.array(behind & same), keys, pa.scalar(None, pa.string()))
        stays = pa.array(~old)
        imaged = self._imaged(rows, there) & ~old
        some = rows.filter(pa.array(imaged))
        texts = self._text(some, range(len(self.fields)), _some(there, imaged), row=True)
        places = pa.array(np.cumsum(imaged) - 1, mask=~imaged)
        image = texts.take(places) if len(texts) else pa.nulls(n, pa.string())
        arrays = [*(rows[name] for name, _ in self.others), key, old_key, image]
        made = pa.RecordBatch.from_arrays(arrays, names=[*(name for name, _ in self.others), *_TEXTS])
        last = (rows[SEQ][n - 1].as_py(), key[n - 1].as_py()) if old[-1] else (None, None)
        return made.filter(stays), last

    def _imaged(self, rows: pa.RecordBatch, there: Bools | None) -> Bools:
        """Which rows have an image: inserts, updates, and deletes that say more than their key."""
        oper = rows[OPER]
        known = pc.is_in(oper, pa.array(_IMAGED)).to_numpy(zero_copy_only=False)
        rest = [i for i in range(len(self.fields)) if i not in self.keys]
        deletes = pc.equal(oper, DELETE).to_numpy(zero_copy_only=False)
        more = np.full(rows.num_rows, bool(rest)) if there is None else there[:, rest].any(axis=1)
        found: Bools = known & (~deletes | more)
        return found

    def _text(
        self, rows: pa.RecordBatch, places: Sequence[int], there: Bools | None, *, row: bool = False
    ) -> pa.StringArray:
        ends = (f"{self.dest}<row>", "</row>") if row else ("", "")
        if not places:  # only that rows changed is known, not their values
            return pa.array(["".join(ends)] * rows.num_rows, pa.string())
        cells = [
            keylog_render.Item(
                self.fields[i],
                rows[f"_c{i}"].cast(arrow_type(self.fields[i].type)),
                None if there is None else there[:, i],
            )
            for i in places
        ]
        return keylog_render.items(cells, *ends)


def _some(there: Bools | None, rows: Bools) -> Bools | None:
    return None if there is None else there[rows]
