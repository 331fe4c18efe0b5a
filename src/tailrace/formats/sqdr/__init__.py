"""Declares StarQuest SQDR key logs (`ir_keylog`): every change with its outcome; images and keys are text.

Source: spec/sqdr.md §2-§5 (vendor page "SQDR ir_keylog Table", SQDR 4.64 or later).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model import mask
from ...model.change import BEFORE, NATIVE, ChangeTable
from ...model.quoting import quoted
from ..base import OWN, Format, Gap, value_gap
from ..spark_functions import F
from . import control
from .reader import is_keylog, read
from .tables import (
    CHANGES,
    COLUMNS_TABLE,
    DEST,
    KEPT,
    KEYLOG_TABLE,
    SIGNALS,
    SqdrOptions,
)
from .writer import came, fits, has, key_places, stays, unnamed, write

if TYPE_CHECKING:
    from pyspark.sql import Column

_STAYS = OWN + "stays"


def _keys_mask(ct: ChangeTable) -> bytes | None:
    """Returns the column mask of an image with only the key; None if the key has every column."""
    places = key_places(ct)
    return None if len(places) == len(ct.columns) else mask.encode(ct.ordinal(ct.columns[i]) for i in places)


def _before_lost(ct: ChangeTable) -> Column:
    keys = F.lit(_keys_mask(ct)).cast("binary")
    known = F.col(ct.header("column_mask")) if has(ct, "column_mask") else F.lit(None).cast("binary")
    before = (F.col(ct.header("change_oper")) == BEFORE) & ~came(ct)
    return before & (~known.eqNullSafe(keys) | ~stays(ct))


def _before_erased(ct: ChangeTable) -> ChangeTable:
    """Returns before images reduced to their key, without those of updates that did not change the key."""
    keys = key_places(ct)
    before = (F.col(ct.header("change_oper")) == BEFORE) & ~came(ct)
    names = ct.df.columns
    df = ct.df.withColumn(_STAYS, ~before | stays(ct)).filter(_STAYS).select(*map(quoted, names))
    rest = [c for i, c in enumerate(ct.columns) if i not in keys]
    df = df.withColumns({c: F.when(~before, F.col(quoted(c))) for c in rest})
    if has(ct, "column_mask") and (whole := _keys_mask(ct)) is not None:
        old = F.col(ct.header("column_mask"))
        ordinals = [ct.ordinal(ct.columns[i]) for i in keys]
        some = F.coalesce(mask.move(old, {n: n for n in ordinals}), F.lit(whole))
        df = df.withColumn(ct.header("column_mask"), F.when(before, some).otherwise(old))
    return ct.with_df(df)


GAPS = (
    Gap(
        "before_image",
        "an update's row has the key before it, and the column values after it; if the key did not "
        "change, the row does not show whether there was a before image",
        _before_lost,
        _before_erased,
    ),
    Gap(
        "before_key",
        "an update of a table without key, without its before image, does not identify the changed row: "
        "its row has no key before it (set the table's key, if it has one, with the option `key`)",
        unnamed,
        lambda ct: ct,
    ),
    value_gap(
        "transaction_id",
        "transactions are numbered in their order (`resync_state`); there is no column for a source's "
        "own number",
        "transaction_id",
        lambda ct, value: F.when(came(ct), value),
    ),
    Gap(
        "change_seq",
        "changes are ordered by two numbers: a change sequence that is not 35 digits, a time of 1000 or "
        "later (or none) and a number below 2^63, cannot be represented by them; its row is not written",
        lambda ct: ~fits(ct),
        lambda ct: ct.with_df(ct.df.filter(fits(ct))),
    ),
)


def knows(columns: Sequence[str]) -> float:
    """Recognises a key log by two columns that no other format has."""
    have = {c.lower() for c in columns}
    if is_keylog(columns) or {c.name for c in COLUMNS_TABLE.columns} <= have:
        return 1.0
    return 0.0


FORMAT = Format(
    name="sqdr",
    title="StarQuest SQDR key log",
    source="spec/sqdr.md §2-§5; SQV00DR031 (SQDR 4.64 or later)",
    tables=(KEYLOG_TABLE, COLUMNS_TABLE, *control.TABLES.values()),
    operations={**CHANGES, **SIGNALS},
    order=("resync_state", "change_row_counter"),
    row_key="the columns in `before_key`: those of the WHERE clause at the destination",
    images="after images of inserts and updates; deletes with their before image if there is one, otherwise "
    "with their key; of an update's before image only the key; columns may be left out (large "
    "objects)",
    masks="none; a column that is not in the text is missing",
    types={
        "number, decimal, float": "as declared; string otherwise",
        "character, Unicode": "string",
        "character, octets": "string (option `octet`)",
        "binary": "binary",
        "bit": "boolean, as 1 and 0",
        "timestamp": "timestamp, to microseconds",
        "date": "date",
        "time": "string",
    },
    files=("delta", "parquet", "json", "csv"),
    holds=frozenset(
        {"change_seq", "column_mask", "timestamp", "transaction_id", "user_name", "recid", NATIVE + DEST}
        | {NATIVE + n for n in KEPT}
    ),
    cannot=GAPS,
    options=SqdrOptions,
    read=read,
    write=write,
    knows=knows,
    control_table=control.control_table,
    ids_option="subscriptions",
)
