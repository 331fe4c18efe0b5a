"""Writes change tables as a key log. Source: spec/sqdr.md §2-§5.

A row that was read from a key log keeps values that only that log has (`header__native_*`). Other rows only
get values that follow from the change: no action and no row count, because their outcome at a destination is
unknown.

Rows are written in order by several tasks, by ranges that are found in a separate query (`Ranges`). If Spark
found the ranges, it would compute everything before them again within the same query, so that rows which are
counted while they are read (`report.counted`) would be counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from ...execution import over_rows
from ...model.change import BEFORE, DELETE, NATIVE, UPDATE, ChangeTable
from ...model.quoting import quoted
from ...wire.keylog_values import KeyLogField
from ..base import WHY
from ..option_names import columns_in
from ..shape import few_rows, is_sequence, neighbours
from ..spark_functions import F, Window
from . import text as sqdr_text
from .images import CARRIED, IMAGE, KEY, OLD_KEY, OPER, SEQ, ImageTexts
from .reader import TIME_SHAPED
from .tables import CHANGES, COLUMNS, COLUMNS_TABLE, DEST, KEYLOG, KEYLOG_TABLE, SqdrOptions
from .text import written

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TASK_ROWS = 100_000
"""The minimum number of rows of a task."""
_OF = 50
"""One in this number of rows is sampled to find ranges: thousands if there are several tasks."""
_RANGE, _SEEN = "_range", "_seen"


@dataclass(frozen=True)
class Ranges:
    """Ranges of rows that are ordered by two numbers.

    Attributes:
        number: 0 if ranges are of the first number; 1 if all rows have the same first number.
        bounds: the start of each range except the first.
    """

    number: int
    bounds: tuple[float, ...]

    @classmethod
    def of(cls, numbers: Sequence[DataFrame]) -> Ranges:
        """Returns ranges with about the same number of rows; `numbers`: tables with the two numbers of each
        row."""
        most = int(numbers[0].sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        if most == 1:
            return cls(0, ())
        rows = reduce(lambda a, b: a.unionAll(b), numbers)
        shares = [n / most for n in range(most)]
        first, second = (F.col(c).cast("double") for c in rows.columns)
        seen = F.col(_SEEN)  # at random, not by its numbers, which may be few
        rows = rows.withColumn(_SEEN, F.rand(0) * _OF < 1)
        row = rows.agg(
            F.count(F.lit(1)).alias("rows"),
            (F.min(first) == F.max(first)).alias("same"),
            F.percentile_approx(F.when(seen, first), shares).alias("first"),
            F.percentile_approx(F.when(seen, second), shares).alias("second"),
        ).first()
        if row is None or row["same"] is None:
            return cls(0, ())
        tasks = min(most, 1 + row["rows"] // _TASK_ROWS)
        found = row["second"] if row["same"] else row["first"]
        return cls(int(row["same"]), tuple(sorted({found[n * most // tasks] for n in range(1, tasks)})))

    def ordered(self, df: DataFrame, numbers: Sequence[Column], *by: str) -> DataFrame:
        """Returns the rows with each range in one task, ordered by columns, and the ranges in order."""
        number = numbers[self.number].cast("double")
        over = [F.when(number >= bound, 1).otherwise(0) for bound in self.bounds]
        ranged = df.withColumn(_RANGE, reduce(lambda a, b: a + b, over, F.lit(0)))
        ranged = ranged.repartitionById(len(self.bounds) + 1, F.col(_RANGE))
        return ranged.drop(_RANGE).sortWithinPartitions(*by)


_ORDER = ("resync_state", "change_row_counter")
_READ = ("timestamp", "user_name", "recid")
"""Headers that are used in addition to the native ones."""


def write(changes: Mapping[str, ChangeTable], options: SqdrOptions) -> dict[str, DataFrame]:
    """Returns one key log of all change tables, and `tailrace_columns` with the names and types of their
    columns.

    Rows are numbered (`keylog_sort`) by their change sequence, over all tables, unless each has its number.
    """
    if not changes:
        return {}
    changes = {name: replace(ct, name=ct.name or name) for name, ct in changes.items()}
    fields = {name: fields_of(ct, options) for name, ct in changes.items()}
    numbered = all(has(ct, NATIVE + "keylog_sort") for ct in changes.values())
    # The rows of one table are ordered before their text is created: the same order brings B and U together.
    # Texts of several tables must exist before they are combined.
    ranges = None if numbered else Ranges.of([_places(ct) for ct in changes.values()])
    early = ranges if len(changes) == 1 else None
    logs = [_log(ct, fields[name], early) for name, ct in changes.items()]
    log = reduce(lambda a, b: a.unionByName(b), logs)
    if ranges:
        if not early:
            log = ranges.ordered(log, [F.col(n) for n in _ORDER], *_ORDER)
        number = F.monotonically_increasing_id() + 1
        log = log.withColumn("keylog_sort", F.coalesce(F.col("keylog_sort"), number))
    names = [c.name for c in COLUMNS_TABLE.columns]
    rows = [
        dict(zip(names, (ct.name, place, f.name, f.type, f.name in ct.key, f.octet), strict=True))
        for name, ct in changes.items()
        for place, f in enumerate(fields[name], 1)
    ]
    spark = next(iter(changes.values())).df.sparkSession
    return {KEYLOG: log, COLUMNS: few_rows(spark, {c.name: c.type for c in COLUMNS_TABLE.columns}, rows)}


def fields_of(ct: ChangeTable, options: SqdrOptions) -> list[KeyLogField]:
    """Returns a change table's columns in a key log's form."""
    octets = columns_in(options.octet)
    types = {f.name: f.dataType.simpleString() for f in ct.df.schema}
    return [sqdr_text.field_of(c, types[c], octet=c in octets) for c in ct.columns]


def has(ct: ChangeTable, header: str) -> bool:
    """Whether a change table has a header."""
    return ct.header(header) in ct.df.columns


def came(ct: ChangeTable) -> Column:
    """Whether a row was read from a key log."""
    header = NATIVE + "change_row_type"
    return F.col(ct.header(header)).isNotNull() if has(ct, header) else F.lit(False)


def fits(ct: ChangeTable) -> Column:
    """Whether a row's change sequence can be represented by `resync_state` and `change_row_counter`."""
    seq = F.col(ct.header("change_seq"))
    time, number = F.substring(seq, 1, 16), F.substring(seq, 17, 19)
    timed = (time >= str(TIME_SHAPED)) | (time == "0" * 16)
    return came(ct) | F.coalesce(is_sequence(seq) & timed & (number <= str(2**63 - 1)), F.lit(False))


def key_places(ct: ChangeTable) -> list[int]:
    """Returns indexes of the key's columns; without a key, of all columns: then all of them identify a
    row."""
    return [i for i, c in enumerate(ct.columns) if c in ct.key] or list(range(len(ct.columns)))


def stays(ct: ChangeTable) -> Column:
    """Whether a before image can be derived from an update's keys: the key changed, or is the whole row.
    Needs the change's other row (a window)."""
    if not ct.key:
        return F.lit(True)
    key = F.struct(*[F.col(quoted(k)) for k in ct.key])
    after = F.when(F.col(ct.header("change_oper")) == UPDATE, key)
    pair = Window.partitionBy(ct.header("change_seq"))
    return ~key.eqNullSafe(F.first(after, ignorenulls=True).over(pair))


def unnamed(ct: ChangeTable) -> Column:
    """Whether a row is an update that does not identify the changed row: its table has no key, and it has no
    before image. Needs the change's other row (a window)."""
    if ct.key:
        return F.lit(False)
    oper = F.col(ct.header("change_oper"))
    good = F.col(WHY).isNull() if WHY in ct.df.columns else F.lit(True)  # bad rows are not written
    before = F.when(good, oper == BEFORE)
    pair = Window.partitionBy(ct.header("change_seq"))
    return (oper == UPDATE) & ~came(ct) & ~F.coalesce(F.max(before).over(pair), F.lit(False))


def _places(ct: ChangeTable) -> DataFrame:
    """Returns the two numbers that order a table's rows; NULL in some that are not written."""
    result = _numbers(ct.header("change_seq"))
    return ct.df.select(*(_native(ct, n, result[n]).cast("bigint").alias(n) for n in _ORDER))


def _log(ct: ChangeTable, fields: list[KeyLogField], ranges: Ranges | None) -> DataFrame:
    df = _with_texts(ct, fields, ranges)
    oper, key, old = F.col(OPER), F.col(KEY), F.col(OLD_KEY)
    # Without a key, an update's new values are not those of the row that it searched for.
    own = key if ct.key else F.when(oper == DELETE, key)
    image = F.col(IMAGE)
    if has(ct, NATIVE + DEST):
        image = F.concat(F.coalesce(_native(ct, DEST, F.lit(_dest(ct))), F.lit("")), image)
    result = {
        **_change(ct),
        "change_row_type": oper,
        "subscription_id": F.lit(ct.name),
        "change_row_log_detail": detail(ct),
        "flagged_count": F.lit(0),
        "before_key": F.when(oper.isin(UPDATE, DELETE), F.coalesce(old, own)),
        "after_key": F.when((oper == UPDATE) & (old != key), key),
    }
    columns = []
    for c in KEYLOG_TABLE.columns:
        value = result.get(c.name, F.lit(None))
        if c.name == "after_image":
            value = image
        elif c.name != "change_row_timestamp":
            value = _native(ct, c.name, value)
        columns.append(value.cast(c.type).alias(c.name))
    return df.select(*columns)


def _with_texts(ct: ChangeTable, fields: list[KeyLogField], ranges: Ranges | None) -> DataFrame:
    """Returns the changes to write, with the texts of their keys and images instead of their values."""
    df, masked = ct.df.filter(fits(ct)), has(ct, "column_mask")
    heads = [ct.header(h) for h in ct.headers if h in _READ or h.startswith(NATIVE)]
    work = ImageTexts(
        tuple(fields), tuple(key_places(ct)),
        tuple(map(ct.ordinal, ct.columns)) if masked else (),
        ((SEQ, "string"), (OPER, "string"), *((h, ct.df.schema[h].dataType.simpleString()) for h in heads)),
        "" if has(ct, NATIVE + DEST) else _dest(ct),
    )  # fmt: skip
    taken = {SEQ: "change_seq", OPER: "change_oper", **({CARRIED: "column_mask"} if masked else {})}
    named = [F.col(ct.header(h)).alias(n) for n, h in taken.items()]
    whole, keys = F.col(ct.header("change_oper")) != BEFORE, key_places(ct)

    def value(place: int, name: str) -> Column:
        mine = F.col(quoted(name))
        return mine if place in keys else F.when(whole, mine)  # only the key of a B row is written

    values = [value(i, c).alias(f"_c{i}") for i, c in enumerate(ct.columns)]
    df = df.select(*named, *(F.col(quoted(h)) for h in heads), *values).filter(F.col(OPER).isin(*CHANGES))
    if ranges:
        df = ranges.ordered(df, list(_numbers(SEQ).values()), SEQ, OPER)
    elif not has(ct, NATIVE + "before_key"):
        df = neighbours(df, SEQ, OPER)
    return over_rows(df, work, work.schema())


def _dest(ct: ChangeTable) -> str:
    """Returns the `<Dest>` of an image."""
    return sqdr_text.dest(ct.name)


def _native(ct: ChangeTable, name: str, other: Column) -> Column:
    """Returns the value from the key log from which a row was read; `other` for other rows."""
    if not has(ct, NATIVE + name):
        return other
    return F.when(came(ct), F.col(ct.header(NATIVE + name))).otherwise(other)


def _numbers(seq: str) -> dict[str, Column]:
    """Returns the two parts of a change sequence."""
    parts = F.substring(seq, 1, 16), F.substring(seq, 17, 19)
    return {n: part.try_cast("bigint") for n, part in zip(_ORDER, parts, strict=True)}


def _change(ct: ChangeTable) -> dict[str, Column]:
    """Returns order and time of a change: the two parts of its sequence, whole seconds and the rest."""
    result = _numbers(SEQ)
    if has(ct, "timestamp"):
        at = F.col(ct.header("timestamp"))
        result["change_row_timestamp"] = F.date_trunc("second", at)
        result["change_row_nanosecond"] = F.pmod(F.unix_micros(at), F.lit(1_000_000)) * 1000
    return result


def detail(ct: ChangeTable) -> Column:
    """Returns `change_row_log_detail` from headers of other formats about a change's user and row."""
    user, rrn = (quoted(ct.header(h)) if has(ct, h) else None for h in ("user_name", "recid"))
    return written(user, rrn)
