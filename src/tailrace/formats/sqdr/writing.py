"""Change tables written as a key log. Source: spec/sqdr.md §2-§5.

A row that was read from a key log keeps what only that log knew (`header__native_*`). Others get what follows
from the change: no action and no row count, because nothing says what became of it at a destination.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from ...model import mask, sequence
from ...model.change import BEFORE, DELETE, NATIVE, UPDATE, ChangeTable
from ...wire.keylog_values import KeyLogField
from ..shape import quoted
from . import text as sqdr_text
from .detail import written
from .reading import TIME_SHAPED
from .tables import CHANGES, COLUMNS, COLUMNS_TABLE, DEST, KEYLOG, KEYLOG_TABLE, SqdrOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEY, _OLD_KEY, _DEST = "_key", "_old_key", "_dest"


def write(changes: Mapping[str, ChangeTable], options: SqdrOptions) -> dict[str, DataFrame]:
    """One key log of all change tables, and `tailrace_columns` with the names and types of their columns.

    Rows are numbered (`keylog_sort`) by their change sequence, over all tables, unless each has its number.
    """
    from pyspark.sql import functions as F

    if not changes:
        return {}
    changes = {name: replace(ct, name=ct.name or name) for name, ct in changes.items()}
    fields = {name: fields_of(ct, options) for name, ct in changes.items()}
    numbered = all(has(ct, NATIVE + "keylog_sort") for ct in changes.values())
    # The rows of one table are ordered before their text is made: finding the ranges of an order computes
    # everything before it twice. Texts of several tables must exist before they are combined.
    early = not numbered and len(changes) == 1
    logs = [_log(ct, fields[name], ordered=early) for name, ct in changes.items()]
    log = reduce(lambda a, b: a.unionByName(b), logs)
    if not numbered:
        log = log if early else log.orderBy("resync_state", "change_row_counter")
        number = F.monotonically_increasing_id() + 1
        log = log.withColumn("keylog_sort", F.coalesce(F.col("keylog_sort"), number))
    rows = [
        (ct.name, place, f.name, f.type, f.name in ct.key, f.octet)
        for name, ct in changes.items()
        for place, f in enumerate(fields[name], 1)
    ]
    kinds = ", ".join(f"{c.name} {c.type}" for c in COLUMNS_TABLE.columns)
    spark = next(iter(changes.values())).df.sparkSession
    return {KEYLOG: log, COLUMNS: spark.createDataFrame(rows, kinds)}


def fields_of(ct: ChangeTable, options: SqdrOptions) -> list[KeyLogField]:
    """A change table's columns in a key log's form."""
    octets = [n.strip() for n in options.octet.split(",")]
    types = {f.name: f.dataType.simpleString() for f in ct.df.schema}
    return [sqdr_text.field_of(c, types[c], octet=c in octets) for c in ct.columns]


def has(ct: ChangeTable, header: str) -> bool:
    """Whether a change table has a header."""
    return ct.header(header) in ct.df.columns


def came(ct: ChangeTable) -> Column:
    """Whether a row was read from a key log."""
    from pyspark.sql import functions as F

    header = NATIVE + "change_row_type"
    return F.col(ct.header(header)).isNotNull() if has(ct, header) else F.lit(False)


def fits(ct: ChangeTable) -> Column:
    """Whether a row's change sequence can be represented by `resync_state` and `change_row_counter`."""
    from pyspark.sql import functions as F

    seq = F.col(ct.header("change_seq"))
    time, number = F.substring(seq, 1, 16), F.substring(seq, 17, 19)
    digits = (F.length(seq) == sequence.WIDTH) & (F.translate(seq, "0123456789", "") == "")
    timed = (time >= str(TIME_SHAPED)) | (time == "0" * 16)
    return came(ct) | F.coalesce(digits & timed & (number <= str(2**63 - 1)), F.lit(False))


def key_places(ct: ChangeTable) -> list[int]:
    """Places of the key's columns; without a key, of all columns: then all of them identify a row."""
    return [i for i, c in enumerate(ct.columns) if c in ct.key] or list(range(len(ct.columns)))


def stays(ct: ChangeTable) -> Column:
    """Whether a before image can be derived from an update's keys: the key changed, or is the whole row.
    Needs the change's other row (a window)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not ct.key:
        return F.lit(True)
    key = F.struct(*[F.col(quoted(k)) for k in ct.key])
    after = F.when(F.col(ct.header("change_oper")) == UPDATE, key)
    pair = Window.partitionBy(ct.header("change_seq"))
    return ~key.eqNullSafe(F.first(after, ignorenulls=True).over(pair))


def _more(ct: ChangeTable, keys: Collection[int]) -> Column:
    """Whether an image says more than its key."""
    from pyspark.sql import functions as F

    rest = [ct.ordinal(c) for i, c in enumerate(ct.columns) if i not in keys]
    if not rest or not has(ct, "column_mask"):
        return F.lit(bool(rest))
    carried = F.col(ct.header("column_mask"))
    return carried.isNull() | mask.any_set(mask.words(carried, len(ct.df.columns)), rest)


def _log(ct: ChangeTable, fields: list[KeyLogField], *, ordered: bool) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    items = [(f, F.col(quoted(f.name))) for f in fields]
    keys = key_places(ct)
    carried = F.col(ct.header("column_mask")) if has(ct, "column_mask") else None
    oper = F.col(ct.header("change_oper"))
    df = ct.df.filter(fits(ct))
    if ordered:
        df = df.orderBy(ct.header("change_seq"))
    own = [ct.ordinal(ct.columns[i]) for i in keys]
    df = df.withColumn(_KEY, sqdr_text.items([items[i] for i in keys], carried=carried, ordinals=own))
    key = F.col(_KEY)
    if has(ct, NATIVE + "before_key"):
        df = df.withColumn(_OLD_KEY, F.lit(None).cast("string"))
    else:
        pair = Window.partitionBy(ct.header("change_seq"))
        df = df.withColumn(_OLD_KEY, F.max(F.when(oper == BEFORE, key)).over(pair))
    df = df.filter(oper.isin(*CHANGES) & (oper != BEFORE))
    imaged = oper.isin("I", "U") | ((oper == DELETE) & _more(ct, keys))
    image = sqdr_text.items(items, carried=carried, ordinals=[ct.ordinal(c) for c in ct.columns], row=True)
    own_dest = F.lit(sqdr_text.dest(ct.name.partition("@")[0]))
    df = df.withColumn(_DEST, _native(ct, DEST, own_dest))
    made = {
        **_change(ct),
        "change_row_type": oper,
        "subscription_id": F.lit(ct.name),
        "change_row_log_detail": detail(ct),
        "flagged_count": F.lit(0),
        "before_key": F.when(oper.isin(UPDATE, DELETE), F.coalesce(F.col(_OLD_KEY), key)),
        "after_key": F.when((oper == UPDATE) & (F.col(_OLD_KEY) != key), key),
    }
    columns = []
    for c in KEYLOG_TABLE.columns:
        value = made.get(c.name, F.lit(None))
        if c.name == "after_image":
            value = F.when(imaged, F.concat(F.coalesce(_DEST, F.lit("")), image))
        elif c.name != "change_row_timestamp":
            value = _native(ct, c.name, value)
        columns.append(value.cast(c.type).alias(c.name))
    return df.select(*columns)


def _native(ct: ChangeTable, name: str, other: Column) -> Column:
    """The value from the key log that a row came from; `other` for rows from elsewhere."""
    from pyspark.sql import functions as F

    if not has(ct, NATIVE + name):
        return other
    return F.when(came(ct), F.col(ct.header(NATIVE + name))).otherwise(other)


def _change(ct: ChangeTable) -> dict[str, Column]:
    """Order and time of a change: the two parts of its sequence, whole seconds and the rest."""
    from pyspark.sql import functions as F

    seq = F.col(ct.header("change_seq"))
    made = {
        "resync_state": F.substring(seq, 1, 16).try_cast("bigint"),
        "change_row_counter": F.substring(seq, 17, 19).try_cast("bigint"),
    }
    if has(ct, "timestamp"):
        at = F.col(ct.header("timestamp"))
        made["change_row_timestamp"] = F.date_trunc("second", at)
        made["change_row_nanosecond"] = F.pmod(F.unix_micros(at), F.lit(1_000_000)) * 1000
    return made


def detail(ct: ChangeTable) -> Column:
    """`change_row_log_detail`: what other formats know about a change's user and row."""
    user, rrn = (quoted(ct.header(h)) if has(ct, h) else None for h in ("user_name", "recid"))
    return written(user, rrn)
