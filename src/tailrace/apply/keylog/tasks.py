"""Rows of the key log, and exceptions, made by tasks side by side, each a part of the table. Arrow renders
texts at a fraction of an expression's cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...engine.columns import (
    AT,
    DETAIL,
    MASK,
    MOVED,
    NATIVE_OF,
    OPER,
    SEQ,
    SITUATION,
    WHY,
    letters,
    typed,
)  # fmt: skip
from ...engine.decide import NAMES, plain
from ...engine.log_rows import KeyLogHeader, LoggedChanges, written
from ...engine.rules import Rules
from ...formats.sqdr import text as sqdr_text
from ...formats.sqdr import writer as sqdr_writer
from ...formats.sqdr.tables import KEPT, KEYLOG_TABLE, SqdrOptions
from ...lake import delta as lake
from ...model.change import BEFORE, NATIVE, ChangeTable
from ...model.types import arrow_type
from ...wire.keylog_values import KeyLogField
from ..expect import Expected, among
from ..images import col, masked, ordinals
from ..shards import small
from ..tasks import result, run
from .change_range import ChangeRange

if TYPE_CHECKING:
    from pyspark.sql import Column

    from .exceptions import Exceptions

_RUNNING = "header__running"
_OLD_KEY = "header__old_key_{}"
_OPTIONS = SqdrOptions.model_validate({})
_TOLD = (
    "run_id", "group_id", "subscription_id", "action_taken", "result_row_count", "result_error",
    "flagged_count", "before_key", "after_key", "keylog_sort", "keylog_ts", "insert_ts",
)  # fmt: skip
_NATIVE = {c.name: arrow_type(c.type) for c in KEYLOG_TABLE.columns if c.name in KEPT and c.name not in _TOLD}
"""Columns of which changes that were read from a key log keep what that had."""


def extras(changes: ChangeTable) -> dict[str, Column]:
    """The columns that a task gets in addition to the images, see `engine.columns`."""
    made = masked(changes)
    if sqdr_writer.has(changes, "timestamp"):
        made[AT] = col(changes.header("timestamp")).cast("timestamp")
    if any(sqdr_writer.has(changes, h) for h in ("user_name", "recid")):
        made[DETAIL] = sqdr_writer.detail(changes)
    for name in _NATIVE:  # a key log of somebody else's has finer codes
        if sqdr_writer.has(changes, NATIVE + name):
            made[NATIVE_OF.format(name)] = col(changes.header(NATIVE + name))
    return made


def fields_of(changes: ChangeTable) -> list[KeyLogField]:
    """The columns as the changes have them."""
    return list(sqdr_writer.fields_of(changes, _OPTIONS))


def header_of(
    fields: Sequence[KeyLogField],
    names: Sequence[str],
    key: Sequence[str],
    one: ChangeRange,
) -> KeyLogHeader:
    """What the rows of a range of changes have in common; `names`: all columns of the change table. They are
    of no run, and no row is before them, as with exceptions; `KeyLog.header` gives it for a key log."""
    return KeyLogHeader(
        run_id="",
        group_id="",
        subscription=one.subscription,
        after=one.after,
        flagged=0,
        sort=0,
        fields=tuple(fields),
        ordinals=ordinals(names, [f.name for f in fields]),
        key=tuple(key),
        dest=sqdr_text.dest(one.subscription),
    )


def write(changes: ChangeTable, expected: Expected, task: LogTask, *, counts: bool) -> list[lake.AddedFile]:
    """Writes changes with the outcome of each as parts, not committed; `counts`: flagged changes are counted
    up to each."""
    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    extra = extras(changes)
    rows = changes.df.where(oper != BEFORE).drop(WHY)
    made = rows.select(
        seq.alias(SEQ), oper.alias(OPER), *[v.alias(n) for n, v in extra.items()], *map(col, changes.columns)
    )
    keys = [f.name for f in _keys(task.header)]
    if expected.unusual is not None:
        have = set(expected.unusual.columns)
        old = [col(k).alias(_OLD_KEY.format(i)) for i, k in enumerate(keys) if k in have]
        unusual = expected.unusual.select(SEQ, OPER, SITUATION, WHY, MOVED, *old)
        made = made.join(small(unusual, expected.many), [SEQ, OPER], "left")
        if counts:
            made = made.withColumn(_RUNNING, _running(task.rules))
        made = made.where(task.wanted)
    elif task.flagged_only or task.exceptions is not None:
        return []
    found = run(made, task)
    return [lake.AddedFile.from_json(r["file"]) for r in found if r["file"]]


def _running(rules: Rules) -> Column:
    """Flagged changes up to each. All rows go through one task: only batches that have flagged ones do."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.orderBy(SEQ, OPER).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    flagged = F.coalesce(among(rules, lambda o: o.flagged), F.lit(False))
    return F.sum(flagged.cast("bigint")).over(window)


@dataclass(frozen=True)
class LogTask:
    """Writes the rows of one task to a part of the key log, or of the exceptions; the driver commits it.

    `images`: whether rows have `after_image`; `flagged_only`: only changes that are flagged; `exceptions`:
    only those that are skipped besides, as exceptions.
    """

    path: str
    schema: pa.Schema
    header: KeyLogHeader
    rules: Rules
    images: bool = True
    flagged_only: bool = False
    exceptions: Exceptions | None = None

    @property
    def wanted(self) -> Column:
        """Which changes are written."""
        from pyspark.sql import functions as F

        if self.exceptions is not None:
            return among(self.rules, lambda o: o.flagged and not o.effective)
        return among(self.rules, lambda o: o.flagged) if self.flagged_only else F.lit(True)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        into = self.exceptions
        part = lake.Part(self.path, self.schema if into is None else into.schema)
        now = datetime.now(timezone.utc)
        for batch in batches:
            if batch.num_rows:
                lines = _lines(batch, self.header)
                rows = written(lines, self.rules, self.header, self.schema, now, images=self.images)
                part.write(rows if into is None else into.made(rows, self.header.subscription))
        added = part.close()
        yield result(file=added.to_json() if added else None)


def _keys(header: KeyLogHeader) -> list[KeyLogField]:
    """The key's columns as a layout has them."""
    return [f for f in header.fields if f.name in header.key]


def _lines(batch: pa.RecordBatch, header: KeyLogHeader) -> LoggedChanges:
    rows = pa.Table.from_batches([_typed(batch, header)])
    have, many = set(batch.schema.names), batch.num_rows
    oper = letters(batch[OPER])
    situation, moved, old = plain(oper), np.zeros(many, np.bool_), rows.slice(0, 0)
    if SITUATION in have:
        unusual = pc.index_in(batch[SITUATION], pa.array(NAMES)).fill_null(-1).to_numpy().astype(np.int64)
        situation = np.where(unusual >= 0, unusual, situation)
        moved = batch[MOVED].fill_null(False).to_numpy(zero_copy_only=False)
        # Old keys have the types of the target, which may be others than those of the changes.
        keys = {
            f.name: batch[_OLD_KEY.format(i)].filter(pa.array(moved)).cast(arrow_type(f.type))
            for i, f in enumerate(_keys(header))
            if _OLD_KEY.format(i) in have
        }
        old = pa.table(keys)
    count = batch[_RUNNING].to_numpy() if _RUNNING in have else np.zeros(many, np.int64)
    return LoggedChanges(rows, oper, situation, count, moved, old, batch[WHY] if WHY in have else None)


def _typed(batch: pa.RecordBatch, header: KeyLogHeader) -> pa.RecordBatch:
    """The columns that rows are rendered from, in their lake types."""
    kinds = {SEQ: pa.string(), MASK: pa.binary(), AT: pa.timestamp("us", "UTC"), DETAIL: pa.string()}
    kinds |= {NATIVE_OF.format(n): t for n, t in _NATIVE.items()}
    fields = [pa.field(n, t) for n, t in kinds.items() if n in batch.schema.names]
    return typed(batch, pa.schema([*fields, *[pa.field(f.name, arrow_type(f.type)) for f in header.fields]]))
