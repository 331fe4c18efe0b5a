"""Rows of the key log as Spark renders them, by the expressions of the format (`formats.sqdr.writing`):
exceptions, and changes that another key log had, with its codes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ..formats.shape import quoted
from ..formats.sqdr import text as sqdr_text
from ..formats.sqdr import writing as sqdr_write
from ..formats.sqdr.tables import DEST, KEYLOG, SqdrOptions
from ..model.change import DELETE, NATIVE, UPDATE, ChangeTable
from ..model.sequence import NUMBER_DIGITS, TIME_DIGITS
from .fold import col, quote
from .outcomes import ACTION, EFFECTIVE, ERROR, FLAGGED, OLD, ROWS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from .keylog import KeyLog, Standing, Stretch

_OPTIONS = SqdrOptions.model_validate({})


def rendered(changes: ChangeTable, known: DataFrame, log: KeyLog, one: Stretch, at: Standing) -> DataFrame:
    """Change rows with their outcomes (from `outcomes`) as rows of `ir_keylog`."""
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    number = F.substring(seq, TIME_DIGITS + 1, NUMBER_DIGITS).cast("bigint")
    now = F.lit(datetime.now(timezone.utc))
    before, after = _keys(changes, OLD in known.columns)
    told = {
        "run_id": F.lit(log.run_of(one.subscription)),
        "group_id": F.lit(log.group_id),
        "subscription_id": F.lit(one.subscription),
        "action_taken": col(ACTION),
        "result_row_count": col(ROWS),
        "result_error": col(ERROR),
        "flagged_count": at.flagged + (running(seq, oper) if one.flagged else F.lit(0)),
        "before_key": F.when(oper.isin(UPDATE, DELETE), before),
        "after_key": F.when(oper == UPDATE, after),
        "keylog_sort": number + F.lit(at.sort - one.after).cast("bigint"),
        "keylog_ts": now,
        "insert_ts": F.current_timestamp(),
        DEST: F.lit(sqdr_text.dest(one.subscription)),
    }
    if sqdr_write.has(changes, NATIVE + "change_row_type"):  # a key log of somebody else's has finer codes
        native = col(changes.header(NATIVE + "change_row_type"))
        told["change_row_type"] = F.coalesce(native, oper)
    else:
        told["change_row_type"] = oper
    # Headers of this name say what a key log knows: what the format writes when it has them.
    df = known.withColumns({changes.header(NATIVE + n): value for n, value in told.items()})
    name = changes.name or one.subscription
    made = sqdr_write.write({name: replace(changes, df=df, name=name)}, _OPTIONS)[KEYLOG]
    return made.withColumn("after_image", F.lit(None).cast("string")) if log.mode == "keys" else made


def _keys(changes: ChangeTable, moves: bool) -> tuple[Column, Column]:
    """`before_key` and `after_key`: the key, of a key change the old one and the new one."""
    from pyspark.sql import functions as F

    fields = sqdr_write.fields_of(changes, _OPTIONS)
    places = sqdr_write.key_places(changes)
    own = F.expr(sqdr_text.items([(fields[i], quoted(fields[i].name), None) for i in places]))
    if not moves:
        return own, F.lit(None).cast("string")
    key = [c for c in changes.columns if c in changes.key]  # as a layout has it
    named = {k: f"{quote(OLD)}.k{i}" for i, k in enumerate(key)}
    old = F.expr(sqdr_text.items([(fields[i], named[fields[i].name], None) for i in places]))
    moved = col(OLD).isNotNull()
    return F.when(moved, old).otherwise(own), F.when(moved, own)


def running(seq: Column, oper: Column) -> Column:
    """Flagged changes up to each. All rows go through one task: only batches that have flagged ones do."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    window = Window.orderBy(seq, oper).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return F.sum(col(FLAGGED).cast("bigint")).over(window)


def kept_aside(known: DataFrame) -> DataFrame:
    """The changes that were flagged and passed over: rows of `attrep_apply_exceptions`."""
    return known.where(col(FLAGGED) & ~col(EFFECTIVE))
