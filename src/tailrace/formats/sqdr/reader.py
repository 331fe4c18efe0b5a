"""Converts a key log to change tables, from after images and keys; and checks its `flagged_count`.

A row is flagged if the destination reports an error or a row count other than one. It is not flagged while
the window of a baseline is open (from `S` until the `C` that closes it), nor, under Allow UPSERT, for a
delete of a missing row. A closed window resets the count to 0. Source: spec/sqdr.md §2-§4, §6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...model import mask
from ...model.change import EXTRA_HEADERS, HEADERS, NATIVE, ChangeTable
from ...model.sequence import TIME_DIGITS
from ...wire.keylog_values import IGNORED
from ..base import ADDED_COLUMNS, FINER, OWN, WHY, Read, Tables
from ..shape import also, any_of, canonical, conform, data_start, finer_too, looked_up
from ..spark_functions import F, Window
from . import text as sqdr_text
from .columns import SqdrTable, sources_of
from .tables import (
    ACTIONS,
    CHANGES,
    COLUMNS,
    DEST,
    KEPT,
    KEYLOG,
    KEYLOG_TABLE,
    NAMES,
    SIGNALS,
    SqdrOptions,
)
from .text import part

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

IMAGE, OLD, NEW = "_image", "_old", "_new"
"""Columns with the items of `after_image`, `before_key` and `after_key`, see `text.parsed`."""


@dataclass(frozen=True)
class ColumnPlaces:
    """The positions of a source's columns in its change table."""

    source: SqdrTable
    start: int

    @property
    def keys(self) -> list[int]:
        """Returns indexes of the key's columns; without a key, of all columns: they are in the texts of keys
        then."""
        return self.key_places or list(range(len(self.source.fields)))

    @property
    def key_places(self) -> list[int]:
        """Returns indexes of the key's columns; none if there is no key."""
        return [i for i, f in enumerate(self.source.fields) if f.name in self.source.key]

    @property
    def width(self) -> int:
        """The maximum number of bits of a mask."""
        return self.start + len(self.source.fields)

    def ordinals(self, places: Sequence[int]) -> list[int]:
        """Returns the bits of these columns."""
        return [self.start + i for i in places]


def _has(side: str, bit: int) -> Column:
    """Whether a text, if it exists, has a column."""
    return F.col(f"{side}.m").isNull() | mask.is_set(F.col(f"{side}.m"), bit)


def filled(layout: ColumnPlaces, place: int) -> Column:
    """Whether a column of the key is not in the image, and has its value from `before_key`: it is unchanged
    by an update whose `after_key` does not have it. The key before an insert has no meaning."""
    bit = layout.start + place
    same = F.col("after_key").isNull() | ~_has(NEW, bit)
    keyed = F.col("before_key").isNotNull() & _has(OLD, bit) & F.col("change_row_type").isin("U", "D", "B")
    return F.coalesce(~_has(IMAGE, bit) & keyed & same, F.lit(False))


def any_filled(layout: ColumnPlaces) -> Column:
    return any_of(filled(layout, place) for place in layout.key_places)


def keyless(layout: ColumnPlaces) -> list[tuple[Column, str | Column]]:
    """Returns reasons for rows whose texts have no value of a column of the key."""
    image, kind = F.col("after_image"), F.col("change_row_type")
    there = image.isNotNull() & F.col(f"{IMAGE}.why").isNull() & F.col(f"{OLD}.why").isNull()
    there &= kind.isin("I", "U", "D", "B")
    return [
        (
            there & ~_has(IMAGE, layout.start + place) & ~filled(layout, place),
            f"neither after_image nor before_key has {layout.source.fields[place].name}, which is in the key",
        )
        for place in layout.key_places
    ]


def key_differs(layout: ColumnPlaces) -> Column:
    """Whether a key column differs between the two texts, among those that both have."""
    found = []
    for place in layout.keys:
        there = [_has(side, layout.start + place) for side in (IMAGE, OLD)]
        same = F.col(f"{IMAGE}.v.c{place}").eqNullSafe(F.col(f"{OLD}.v.c{place}"))
        found.append(there[0] & there[1] & ~same)
    return any_of(found)


EXPECTED, DIFFERS = "flagged_expected", "flagged_differs"
_FLAGGED, _EPOCH = OWN + "flagged", OWN + "epoch"
_DML = ("I", "U", "M", "D")


def unexpected() -> Column:
    """Whether a key log row's result is not the expected one (boolean, never NULL)."""
    wrong = (F.col("result_row_count") != 1) | F.col("result_error").isNotNull()
    return F.coalesce(F.col("action_taken").isin(*_DML) & wrong, F.lit(False))


def recount(log: DataFrame) -> DataFrame:
    """Returns a key log with two additional columns: `flagged_expected`, the count that follows from the
    previous rows, and `flagged_differs`, whether `flagged_count` is different.

    The rows of a subscription are sorted by `keylog_sort`. A pruned log starts with the count of its first
    row. Needs one shuffle.
    """
    mine = Window.partitionBy("subscription_id").orderBy("keylog_sort")
    so_far = mine.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    action = F.col("action_taken")
    upsert = F.max(action == "U").over(Window.partitionBy("subscription_id"))
    ignored = F.coalesce(upsert & (action == "D") & F.col("result_error").isNull(), F.lit(False))
    state = F.last(F.when(action.isin("S", "C"), action), ignorenulls=True).over(so_far)
    flagged = unexpected() & ~ignored & (F.coalesce(state, F.lit("C")) != "S")
    df = log.withColumns(
        {_FLAGGED: flagged.cast("int"), _EPOCH: F.count(F.when(action == "C", 1)).over(so_far)}
    )
    epoch = Window.partitionBy("subscription_id", _EPOCH).orderBy("keylog_sort")
    running = F.sum(_FLAGGED).over(epoch.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    first = F.first(F.col("flagged_count") - F.col(_FLAGGED)).over(so_far)
    expected = running + F.when(F.col(_EPOCH) == 0, first).otherwise(F.lit(0))
    df = df.withColumn(EXPECTED, expected).drop(_FLAGGED, _EPOCH)
    return df.withColumn(DIFFERS, F.coalesce(F.col("flagged_count") != F.col(EXPECTED), F.lit(False)))


TIME_SHAPED = 10**15
"""A `resync_state` of at least this value is the time part of a change sequence that tailrace wrote (16
digits)."""
_EXTRA = ("user_name", "recid", *(NATIVE + n for n in (*KEPT, DEST)))
_OPER = "_oper"
_NO_DEST = "its rows have no `<Dest>` with the name of its table"


def read(tables: Tables, options: SqdrOptions) -> Read:
    """Returns a change table for each subscription; rows that change no row are in `pending`.

    Names and types of columns are collected (few rows): from `tailrace_columns`, otherwise from the names in
    the texts.
    Raises FormatError if there is no key log, or its columns cannot be distinguished.
    """
    log = _log(tables, options)
    found = sources_of(log, tables, options)
    signal = F.coalesce(F.col("change_row_type").isin(*SIGNALS), F.lit(False))
    aside = [c for c in (*NAMES, *ADDED_COLUMNS) if c in log.columns]
    changes = log.filter(~signal)
    result = {}
    for source in found.sources:
        mine = changes.filter(F.col("subscription_id").eqNullSafe(F.lit(source.subscription)))
        result[source.table] = _changes(mine, source, options)
    rest = {n: df for n, df in tables.items() if n != COLUMNS and not is_keylog(df.columns)}
    signals = {code: f"{code}: {said}" for code, said in SIGNALS.items()}
    said = F.coalesce(F.col(WHY), looked_up(signals, F.col("change_row_type")))
    waits = log.filter(signal).select(*aside).withColumn(WHY, said)
    return Read(
        result, {KEYLOG: waits}, found.notes, rest, keyless=found.keyless, ids=found.ids,
        unnamed=dict.fromkeys(found.unnamed, _NO_DEST), partial=found.partial,
    )  # fmt: skip


def is_keylog(columns: Sequence[str]) -> bool:
    """Whether these are a key log's columns, in any letter case and spelling."""
    have = {c.lower().replace("_", "") for c in columns}
    return {"changerowtype", "changerowcounter", "resyncstate", "subscriptionid"} <= have


def _log(tables: Tables, options: SqdrOptions) -> DataFrame:
    """Returns the key log's rows (possibly of several files), typed, with the byte instead of the text
    `0x00`."""
    from functools import reduce

    parts = [conform(df, KEYLOG_TABLE, where=n) for n, df in tables.items() if is_keylog(df.columns)]
    if not parts:
        raise FormatError(f"there is no table {KEYLOG}", where=", ".join(tables) or "no tables")
    log = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
    action = F.when(F.col("action_taken") == "0x00", F.lit(IGNORED)).otherwise(F.col("action_taken"))
    log = log.withColumn("action_taken", action)
    if options.check_flags:
        said = F.concat(
            F.lit("flagged_count is not "), F.col(EXPECTED), F.lit(", which follows from the previous rows")
        )
        log = also(recount(log), (F.col(DIFFERS), said)).drop(EXPECTED, DIFFERS)
    return log


def _changes(rows: DataFrame, source: SqdrTable, options: SqdrOptions) -> ChangeTable:
    layout = ColumnPlaces(source, data_start([*HEADERS, *_EXTRA]))
    fields = list(source.fields)
    text = F.substring_index("after_image", sqdr_text.DEST_END, -1)
    every = layout.ordinals(range(len(fields)))
    df = rows.withColumns(
        {
            IMAGE: sqdr_text.parsed(text, fields, every, row=True),
            OLD: sqdr_text.parsed(F.col("before_key"), fields, every),
            NEW: sqdr_text.parsed(F.col("after_key"), fields, every, values=False),
        }
    )
    kind = F.col("change_row_type")
    oper = looked_up(CHANGES, kind)
    df = also(df, *_faults(options), *keyless(layout))
    # A key change has a before image: the old key. `after_key` marks it even if both are equal. Without a
    # key, the before image is the old row, and each update has one.
    differs = F.col("after_key").isNotNull() | key_differs(layout) if source.key else F.lit(True)
    moved = F.col("before_key").isNotNull() & differs
    both = (oper == "U") & F.col(WHY).isNull() & F.coalesce(moved, F.lit(False))
    df = df.withColumn(
        _OPER, F.explode(F.when(both, F.array(F.lit("B"), F.lit("U"))).otherwise(F.array(oper)))
    )
    if any(f.type.startswith("timestamp") for f in fields) or FINER in df.columns:
        cut = [F.coalesce(F.col(f"{side}.f"), F.lit(False)) for side in (OLD, IMAGE)]
        both = cut[1] | (any_filled(layout) & cut[0])
        (finer,) = finer_too(df, [F.when(_by_key(), cut[0]).otherwise(both)])
        df = df.withColumn(FINER, finer)
    headers = {**_headers(options), "column_mask": _column_mask(layout)}
    values = {f.name: _value(layout, i) for i, f in enumerate(fields)}
    return canonical(df, headers, values, key=source.key, name=source.table)


def _by_key() -> Column:
    """Whether a row is read from its `before_key`: before images, and deletes without an image."""
    return (F.col(_OPER) == "B") | ((F.col(_OPER) == "D") & F.col("after_image").isNull())


def _value(layout: ColumnPlaces, place: int) -> Column:
    old = _by_key() | filled(layout, place) if place in layout.key_places else _by_key()
    return F.when(old, F.col(f"{OLD}.v.c{place}")).otherwise(F.col(f"{IMAGE}.v.c{place}"))


def _column_mask(layout: ColumnPlaces) -> Column:
    image = F.col(f"{IMAGE}.m")
    if layout.key_places:
        whole = mask.add(image, layout.ordinals(layout.key_places), layout.width)
        image = F.when(any_filled(layout), whole).otherwise(image)
    return F.when(_by_key(), F.col(f"{OLD}.m")).when(F.col(_OPER) != "T", image)


def change_seq(counter_digits: int) -> Column:
    """Returns the change sequence of a key log's row.

    If tailrace wrote it, its two parts are in `resync_state` and `change_row_counter`. Otherwise it has no
    time, and its number consists of `resync_state` and `counter_digits` digits of `change_row_counter`.
    """
    resync, counter = F.col("resync_state"), F.col("change_row_counter")
    number = F.concat(
        F.lpad(resync.cast("string"), 19 - counter_digits, "0"),
        F.lpad(counter.cast("string"), counter_digits, "0"),
    )
    long = F.lpad(counter.cast("string"), 19, "0")
    return (
        F.when(resync >= TIME_SHAPED, F.concat(F.lpad(resync.cast("string"), 16, "0"), long))
        .when(resync == 0, F.concat(F.lit("0" * 16), long))
        .otherwise(F.concat(F.lit("0" * 16), number))
    )


def _headers(options: SqdrOptions) -> dict[str, Column]:
    resync, detail = F.col("resync_state"), F.col("change_row_log_detail")
    micros = F.unix_micros("change_row_timestamp") + F.coalesce(
        F.expr("change_row_nanosecond div 1000"), F.lit(0)
    )
    return {
        "change_seq": change_seq(options.counter_digits),
        "change_oper": F.col(_OPER),
        "transaction_id": F.when((resync > 0) & (resync < TIME_SHAPED), resync.cast("string")),
        "timestamp": F.timestamp_micros(micros),
        "user_name": part(detail, "user").cast(EXTRA_HEADERS["user_name"]),
        "recid": part(detail, "rrn").cast(EXTRA_HEADERS["recid"]),
        **{NATIVE + n: F.col(n) for n in KEPT},
        NATIVE + DEST: sqdr_text.dest_of(F.col("after_image")),
    }


def _faults(options: SqdrOptions) -> list[tuple[Column, str | Column]]:
    """Returns reasons for bad rows."""
    kind, action, image = F.col("change_row_type"), F.col("action_taken"), F.col("after_image")
    resync, counter, nanos = (
        F.col(c) for c in ("resync_state", "change_row_counter", "change_row_nanosecond")
    )
    digits = options.counter_digits
    most = min(10 ** (19 - digits), 2**63 // 10**digits)
    beyond = (resync > 0) & (resync < TIME_SHAPED) & ((counter >= 10**digits) | (resync >= most))
    beyond |= resync >= 10**TIME_DIGITS
    texts = {"after_image": IMAGE, "before_key": OLD, "after_key": NEW}
    return [
        (F.col("subscription_id").isNull(), "no subscription_id"),
        (kind.isNull(), "no change_row_type"),
        (~kind.isin(*CHANGES), F.concat(F.lit("unknown change_row_type "), kind)),
        (~action.isin(*ACTIONS), F.concat(F.lit("unknown action_taken "), action)),
        (resync.isNull() | counter.isNull(), "no resync_state or no change_row_counter"),
        ((resync < 0) | (counter < 0), "resync_state or change_row_counter below 0"),
        (beyond, "resync_state and change_row_counter do not fit into a change sequence (counter_digits)"),
        ((nanos < 0) | (nanos > 999_999_999), "change_row_nanosecond is not below one second"),
        (
            F.unix_micros("change_row_timestamp") % 1_000_000 != 0,
            "change_row_timestamp is not in whole seconds",
        ),
        (kind.isin("I", "U") & image.isNull(), "no after_image"),
        (kind.isin("D", "B") & image.isNull() & F.col("before_key").isNull(), "delete without a key"),
        *(
            (F.col(f"{c}.why").isNotNull(), F.concat(F.lit(f"{n}: "), F.col(f"{c}.why")))
            for n, c in texts.items()
        ),
    ]
