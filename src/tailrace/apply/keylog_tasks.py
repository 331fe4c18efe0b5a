"""Rows of the key log, and exceptions, made by tasks side by side, each a part of the table. Arrow renders
texts at a fraction of an expression's cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.columns import AT, DETAIL, MASK, NATIVE_OF, OPER, SEQ, letters, typed
from ..engine.decide import NAMES
from ..engine.log_rows import Lines, Sheet, written
from ..engine.rules import Rules
from ..formats.sqdr import text as sqdr_text
from ..formats.sqdr import writing as sqdr_writing
from ..formats.sqdr.tables import KEPT, KEYLOG_TABLE, SqdrOptions
from ..lake import delta as lake
from ..model.change import NATIVE, ChangeTable
from ..model.types import arrow_type
from .fold import col
from .outcomes import OLD, SITUATION, WHY, among
from .targets.delta_local import result, run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from .exceptions import Exceptions
    from .keylog import KeyLog, Standing, Stretch

_RUNNING = "header__running"
_OLD_KEY = "header__old_key_{}"
_OPTIONS = SqdrOptions.model_validate({})
_TOLD = (
    "run_id", "group_id", "subscription_id", "action_taken", "result_row_count", "result_error",
    "flagged_count", "before_key", "after_key", "keylog_sort", "keylog_ts", "insert_ts",
)  # fmt: skip
_NATIVE = {c.name: arrow_type(c.type) for c in KEYLOG_TABLE.columns if c.name in KEPT and c.name not in _TOLD}
"""Columns of which changes that were read from a key log keep what that had."""


def beside(changes: ChangeTable) -> dict[str, Column]:
    """The columns that a task gets beside the images, see `engine.columns`."""
    made = {}
    if sqdr_writing.has(changes, "column_mask"):
        made[MASK] = col(changes.header("column_mask"))
    if sqdr_writing.has(changes, "timestamp"):
        made[AT] = col(changes.header("timestamp")).cast("timestamp")
    if any(sqdr_writing.has(changes, h) for h in ("user_name", "recid")):
        made[DETAIL] = sqdr_writing.detail(changes)
    for name in _NATIVE:  # a key log of somebody else's has finer codes
        if sqdr_writing.has(changes, NATIVE + name):
            made[NATIVE_OF.format(name)] = col(changes.header(NATIVE + name))
    return made


def sheet_of(changes: ChangeTable, log: KeyLog | None, one: Stretch, at: Standing | None) -> Sheet:
    """What the rows of a stretch have in common, the columns as the changes have them; without a key log, of
    exceptions."""
    fields = tuple(sqdr_writing.fields_of(changes, _OPTIONS))
    return Sheet(
        log.run_of(one.subscription) if log else "",
        log.group_id if log else "",
        one.subscription,
        one.after,
        at.flagged if at else 0,
        at.sort if at else 0,
        fields,
        tuple(changes.ordinal(f.name) for f in fields),
        tuple(changes.key),
        sqdr_text.dest(one.subscription),
    )


def write(known: DataFrame, task: LogTask, changes: ChangeTable, *, counts: bool) -> list[lake.AddedFile]:
    """Writes changes with their outcomes (from `outcomes`) as parts, not committed; `counts`: flagged changes
    are counted up to each."""
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    extra = beside(changes) | {SITUATION: col(SITUATION)}
    if counts:
        extra[_RUNNING] = _running(seq, oper, task.rules)
    if WHY in known.columns:
        extra[WHY] = col(WHY)
    if OLD in known.columns:
        extra |= {_OLD_KEY.format(k): F.col(OLD).getField(f"k{i}") for i, k in enumerate(_keys(task.sheet))}
    made = known.select(
        seq.alias(SEQ), oper.alias(OPER), *[v.alias(n) for n, v in extra.items()], *map(col, changes.columns)
    )
    found = run(made.where(task.wanted), task)
    return [lake.AddedFile.from_json(r["file"]) for r in found if r["file"]]


def _running(seq: Column, oper: Column, rules: Rules) -> Column:
    """Flagged changes up to each. All rows go through one task: only batches that have flagged ones do."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.orderBy(seq, oper).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return F.sum(among(rules, lambda o: o.flagged).cast("bigint")).over(window)


@dataclass(frozen=True)
class LogTask:
    """Writes the rows of one task to a part of the key log, or of the exceptions; the driver commits it.

    `images`: whether rows have `after_image`; `flagged_only`: only changes that are flagged; `exceptions`:
    only those that are passed over besides, as exceptions.
    """

    path: str
    schema: pa.Schema
    sheet: Sheet
    rules: Rules
    images: bool = True
    flagged_only: bool = False
    exceptions: Exceptions | None = None

    @property
    def wanted(self) -> Column:
        """Which changes are written."""
        if self.exceptions is not None:
            return among(self.rules, lambda o: o.flagged and not o.effective)
        return among(self.rules, lambda o: o.flagged or not self.flagged_only)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        into = self.exceptions
        part = lake.Part(self.path, self.schema if into is None else into.schema)
        now = datetime.now(timezone.utc)
        for batch in batches:
            if batch.num_rows:
                lines = _lines(batch, self.sheet)
                rows = written(lines, self.rules, self.sheet, self.schema, now, images=self.images)
                part.write(rows if into is None else into.made(rows, self.sheet.subscription))
        added = part.close()
        yield result(file=added.to_json() if added else None)


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
    kinds |= {NATIVE_OF.format(n): t for n, t in _NATIVE.items()}
    fields = [pa.field(n, t) for n, t in kinds.items() if n in batch.schema.names]
    return typed(batch, pa.schema([*fields, *[pa.field(f.name, arrow_type(f.type)) for f in sheet.fields]]))
