"""Rows of the key log made by tasks side by side, each a part of the table: what `keylog_spark` gives, where
no change has codes of another key log. Arrow renders texts at a fraction of an expression's cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.columns import AT, DETAIL, MASK, OPER, SEQ, letters, typed
from ..engine.decide import NAMES
from ..engine.log_rows import Lines, Sheet, written
from ..engine.rules import Rules
from ..formats.sqdr import text as sqdr_text
from ..formats.sqdr import writing as sqdr_writing
from ..formats.sqdr.tables import KEYLOG_TABLE, SqdrOptions
from ..lake import delta as lake
from ..model.change import NATIVE, ChangeTable
from ..model.types import arrow_type
from .fold import col
from .keylog_spark import running
from .outcomes import OLD, SITUATION, WHY
from .targets.delta_local import result, run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from .keylog import KeyLog, Standing, Stretch

_RUNNING = "header__running"
_OLD_KEY = "header__old_key_{}"
_OPTIONS = SqdrOptions.model_validate({})


def plain(changes: ChangeTable) -> bool:
    """Whether no change has codes of a key log that it was read from."""
    return not any(sqdr_writing.has(changes, NATIVE + c.name) for c in KEYLOG_TABLE.columns)


def beside(changes: ChangeTable) -> dict[str, Column]:
    """The columns that a task gets beside the images, see `engine.columns`."""
    made = {}
    if sqdr_writing.has(changes, "column_mask"):
        made[MASK] = col(changes.header("column_mask"))
    if sqdr_writing.has(changes, "timestamp"):
        made[AT] = col(changes.header("timestamp")).cast("timestamp")
    if any(sqdr_writing.has(changes, h) for h in ("user_name", "recid")):
        made[DETAIL] = sqdr_writing.detail(changes)
    return made


def sheet_of(changes: ChangeTable, log: KeyLog, one: Stretch, at: Standing) -> Sheet:
    """What the rows of a stretch have in common, the columns as the changes have them."""
    fields = tuple(sqdr_writing.fields_of(changes, _OPTIONS))
    ordinals = tuple(changes.ordinal(f.name) for f in fields)
    return Sheet(
        log.run_of(one.subscription), log.group_id, one.subscription, one.after, at.flagged, at.sort,
        fields, ordinals, tuple(changes.key), sqdr_text.dest(one.subscription),
    )  # fmt: skip


def write(known: DataFrame, task: LogTask, changes: ChangeTable, one: Stretch) -> list[lake.AddedFile]:
    """Writes changes with their outcomes (from `outcomes`) as parts, not committed."""
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    extra = beside(changes) | {SITUATION: col(SITUATION)}
    if one.flagged:
        extra[_RUNNING] = running(seq, oper)
    if WHY in known.columns:
        extra[WHY] = col(WHY)
    if OLD in known.columns:
        extra |= {_OLD_KEY.format(k): F.col(OLD).getField(f"k{i}") for i, k in enumerate(_keys(task.sheet))}
    made = known.select(
        seq.alias(SEQ), oper.alias(OPER), *[v.alias(n) for n, v in extra.items()], *map(col, changes.columns)
    )
    if task.flagged_only:  # counted before
        made = made.where(col(SITUATION).isin(*_flagged(task.rules)))
    found = run(made, task)
    return [lake.AddedFile.from_json(r["file"]) for r in found if r["file"]]


@dataclass(frozen=True)
class LogTask:
    """Writes the rows of one task to a part of the key log's folder; the driver commits it.

    `images`: whether rows have `after_image`; `flagged_only`: of changes that are flagged alone.
    """

    path: str
    schema: pa.Schema
    sheet: Sheet
    rules: Rules
    images: bool
    flagged_only: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part, now = lake.Part(self.path, self.schema), datetime.now(timezone.utc)
        for batch in batches:
            if batch.num_rows:
                lines = _lines(batch, self.sheet)
                part.write(written(lines, self.rules, self.sheet, self.schema, now, images=self.images))
        added = part.close()
        yield result(file=added.to_json() if added else None)


def _flagged(rules: Rules) -> list[str]:
    return [n for n in NAMES if rules.outcome(n).flagged]


def _keys(sheet: Sheet) -> list[str]:
    """The key's columns as a layout has them."""
    return [f.name for f in sheet.fields if f.name in sheet.key]


def _lines(batch: pa.RecordBatch, sheet: Sheet) -> Lines:
    rows = pa.Table.from_batches([_typed(batch, sheet)])
    have, many = set(batch.schema.names), batch.num_rows
    oper = letters(batch[OPER])
    names = pa.array(NAMES)
    situation = pc.index_in(batch[SITUATION], names).to_numpy().astype(np.int64)
    count = batch[_RUNNING].to_numpy() if _RUNNING in have else np.zeros(many, np.int64)
    moved, old = np.zeros(many, np.bool_), rows.slice(0, 0)
    olds = [_OLD_KEY.format(k) for k in _keys(sheet)]
    if olds and olds[0] in have:  # a key has no NULL
        valid = batch[olds[0]].is_valid()
        moved = valid.to_numpy(zero_copy_only=False)
        old = pa.table({k: batch[n].filter(valid) for k, n in zip(_keys(sheet), olds, strict=True)})
    return Lines(rows, oper, situation, count, moved, old, batch[WHY] if WHY in have else None)


def _typed(batch: pa.RecordBatch, sheet: Sheet) -> pa.RecordBatch:
    """The columns that rows are rendered from, in their lake types."""
    kinds = {SEQ: pa.string(), MASK: pa.binary(), AT: pa.timestamp("us", "UTC"), DETAIL: pa.string()}
    fields = [pa.field(n, t) for n, t in kinds.items() if n in batch.schema.names]
    return typed(batch, pa.schema([*fields, *[pa.field(f.name, arrow_type(f.type)) for f in sheet.fields]]))
