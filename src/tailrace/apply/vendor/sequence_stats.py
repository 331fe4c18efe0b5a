"""Statistics of the change sequences of a change table, and the numbers that a target's progress uses.

Changes are ordered by all 35 digits of their sequence, but progress is one number. If numbers increase with
the sequences, it is the vendor's change number. If they restart, with each load or at each time, every change
gets a combined number that increases: `NUMBER_LIMIT` times the hundredths of a second since 1970, plus the
vendor's number, which has to be below `NUMBER_LIMIT`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...formats import checks
from ...formats.base import FILE, FINER, WHY
from ...model.change import BEFORE, ChangeTable
from ...model.sequence import NUMBER_DIGITS, TIME_DIGITS, WIDTH
from ...targets.plans import SPECIAL
from .change_stats import ChangeStats, counted_kinds, relation_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

NUMBER_LIMIT = 1 << 24
COMBINED_START = 1 << 52
"""Combined numbers of all times after June 1970 are above this one."""
_NO_TIME = "0" * TIME_DIGITS
_HASH_BITS = (1 << 32) - 1
"""The bits of a change's hash that are summed, so that no sum overflows."""
_SEPARATE = "apply the new files from a separate folder, with another `--name`"


@dataclass(frozen=True)
class FileChanges:
    """Changes of one table in one file: their number, and the sum of the hashes that identify them."""

    changes: int
    checksum: int


Files = Mapping[str, FileChanges]


@dataclass(frozen=True)
class SequenceStats:
    """Statistics of the change sequences of a change table.

    Attributes:
        increasing: each number is greater than all numbers of earlier times.
        combinable: every change has a combined number.
        files: the changes of each file, rows of a full load included.
        passed: those of them with numbers up to the one that `scan` was given.
        most: the greatest number; -1 if there is no change.
        most_combined: the greatest combined number.
        first_numbers: the least number in each file, and the least combined one.
        rows: statistics of the same rows; None for a keyless table, and if some rows are bad or have
            fractions finer than microseconds: they are counted while they are merged.
    """

    increasing: bool
    combinable: bool
    files: Files = field(default_factory=dict)
    passed: Files = field(default_factory=dict)
    most: int = -1
    most_combined: int = -1
    first_numbers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rows: ChangeStats | None = None

    @property
    def ambiguous(self) -> bool:
        """Whether neither numbers nor combined numbers increase."""
        return not self.increasing and not self.combinable

    def by_number(self, reached: int) -> bool:
        """Whether the progress of a target that has `reached` a number is the vendor's number."""
        return self.ambiguous or (self.increasing and not (reached >= COMBINED_START and self.combinable))

    def end(self, reached: int) -> int:
        """The progress that a target has after all changes, if it has `reached` a number before."""
        return self.most if self.by_number(reached) else self.most_combined

    def first(self, reached: int) -> dict[str, int]:
        """The least number in each file, of the kind that a target's progress has."""
        part = 0 if self.by_number(reached) else 1
        return {file: numbers[part] for file, numbers in self.first_numbers.items()}


def scan(changes: ChangeTable, end: int = -1) -> SequenceStats:
    """Scans the headers of a change table, in one small job.

    Invalid sequences are skipped. Rows of a full load have no time, and the number 0.

    Args:
        changes: the change table.
        end: a target's progress; `SequenceStats.passed` has the changes up to there.

    Raises:
        FormatError: a sequence whose number does not fit into a target's progress.
    """
    sums = ("change", "passed", *(["passed_combined"] if end >= COMBINED_START else []))
    rows = _by_file(_by_time(changes, end, sums), sums).collect()  # one row for each file
    if beyond := next((r["beyond"] for r in rows if r["beyond"]), None):
        raise FormatError(
            f"the change sequence {beyond} is beyond the 63 bits that a target's progress has",
            where=changes.name,
            hint="such changes cannot be applied; `convert` takes them all",
        )
    most, most_combined = (
        max((r[name] for r in rows if r[name] is not None), default=-1) for name in ("most", "most_combined")
    )
    combinable = most < NUMBER_LIMIT and not any(r["uncombined"] for r in rows)
    return SequenceStats(
        increasing=not any(r["decreases"] for r in rows),
        combinable=combinable,
        files=_files(rows, "change"),
        passed=_files(rows, "passed_combined" if combinable and end >= COMBINED_START else "passed"),
        most=most,
        most_combined=most_combined,
        first_numbers={r["file"]: (r["first"], r["first_combined"]) for r in rows if r["change_count"]},
        rows=_row_stats(changes, rows),
    )


def _row_stats(changes: ChangeTable, rows: Sequence[Row]) -> ChangeStats | None:
    """The statistics of the rows of all files; None if some are bad, or the table is keyless."""
    if not changes.key or any(r["bad"] for r in rows):
        return None
    end = max((r["last"] for r in rows if r["last"] is not None), default=-1)
    return ChangeStats(relation_of(changes), end, {kind: sum(r[kind] for r in rows) for kind in SPECIAL})


def _files(rows: Iterable[Row], which: str) -> Files:
    """The changes of each file that a sum of `scan` counted; files without any are left out."""
    return {
        r["file"]: FileChanges(count, r[f"{which}_checksum"]) for r in rows if (count := r[f"{which}_count"])
    }


def _by_time(changes: ChangeTable, end: int, sums: Sequence[str]) -> DataFrame:
    """Aggregates the changes of each time in each file; the time is NULL for full loads and bad rows."""
    from pyspark.sql import functions as F

    seq, oper = (F.col(changes.header(h)) for h in ("change_seq", "change_oper"))
    good, copy = F.lit(True), F.lit(False)
    if WHY in changes.df.columns:
        good, copy = F.col(WHY).isNull(), checks.is_copy()
    loaded, ordered = is_loaded(seq), _is_ordered(seq)
    valid = good & (ordered | loaded)
    file = F.col(FILE) if FILE in changes.df.columns else F.lit("")
    finer = F.coalesce(F.col(FINER), F.lit(False)) if FINER in changes.df.columns else F.lit(False)
    # Rows of a full load have other sequences each time they are read.
    started = [F.col(changes.header("timestamp"))] if "timestamp" in changes.headers else []
    identity = F.when(loaded, F.xxhash64(oper, *started)).otherwise(F.xxhash64(seq, oper))
    time, number = F.substring(seq, 1, TIME_DIGITS), _number(seq)
    # A file is the same whether or not another file has copies of its rows.
    change = (good | copy) & (ordered | loaded) & (oper != BEFORE)
    beyond = seq.rlike("^[0-9]+$") & (number.isNull() | (time.startswith("0") & (time != _NO_TIME)))
    summed = [
        column.alias(f"{which}_{name}")
        for which in sums
        for name, column in (
            ("count", F.count_if(which)),
            ("checksum", F.sum(F.when(F.col(which), F.col("hash")))),
        )
    ]
    return (
        changes.df
        .select(F.when(valid & ~loaded, time).alias("time"), F.coalesce(file, F.lit("")).alias("file"),
                F.when(valid, number).alias("number"), F.when(change, number).alias("changed"),
                F.when(change, _combined_or_own(seq)).alias("combined"), change.alias("change"),
                ((number <= end) & change).alias("passed"),
                ((_combined_or_own(seq) <= end) & change).alias("passed_combined"),
                F.when(valid & ~loaded & beyond, seq).alias("beyond"),
                identity.bitwiseAND(_HASH_BITS).alias("hash"),
                (~valid | number.isNull() | finer).alias("bad"),
                *(counts.alias(kind) for kind, counts in counted_kinds(changes).items()))
        .groupBy("time", "file")
        .agg(F.min("number").alias("least"), F.max("number").alias("most"),
             F.min("changed").alias("first"), F.min("combined").alias("first_combined"),
             F.max("beyond").alias("beyond"), F.max("bad").alias("bad"), *summed,
             *(F.count_if(kind).alias(kind) for kind in SPECIAL))
    )  # fmt: skip


def _by_file(times: DataFrame, sums: Sequence[str]) -> DataFrame:
    """Aggregates the changes of each file from those of each of its times."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    load, most = F.col("time").isNull(), F.col("most")
    combined = _combined(F.col("time"), most)
    # The 16 digits of a time as a number, which has their order; NULL if they are not digits.
    order = F.when(load, F.lit(0)).otherwise(F.col("time").try_cast("bigint"))
    earlier = Window.partitionBy(load).orderBy("order").rangeBetween(Window.unboundedPreceding, -1)
    decreases = F.col("order").isNull() | F.coalesce(
        F.col("least") <= F.max("most").over(earlier), F.lit(False)
    )
    return (
        times.withColumn("order", order)
        .withColumn("decreases", decreases)
        .groupBy("file")
        .agg(
            F.max("decreases").alias("decreases"),
            F.max(F.when(~load, most)).alias("most"),
            F.max(F.when(~load, combined)).alias("most_combined"),
            F.max("beyond").alias("beyond"),
            (F.count_if(combined.isNull() & ~load) > 0).alias("uncombined"),
            F.max("bad").alias("bad"),
            F.max("most").alias("last"),
            F.min("first").alias("first"),
            F.min("first_combined").alias("first_combined"),
            *(F.sum(kind).alias(kind) for kind in SPECIAL),
            *(F.sum(f"{which}_{n}").alias(f"{which}_{n}") for which in sums for n in ("count", "checksum")),
        )
    )


def numbered(changes: ChangeTable, stats: SequenceStats, reached: int) -> ChangeTable:
    """Returns the change table with numbers that a target's progress can use.

    Args:
        changes: the change table.
        stats: its statistics.
        reached: the target's progress; -1 if nothing was applied.

    Raises:
        FormatError: the numbers restart, and the progress of the target is one of them.
    """
    uncombined = stats.increasing and not stats.combinable
    if uncombined and reached >= COMBINED_START > stats.most and stats.most_combined > reached:
        raise FormatError(
            f"change numbers from {NUMBER_LIMIT:,} on cannot be combined with their times, but the progress "
            "of the target needs that",
            where=changes.name,
            hint=_SEPARATE,
        )
    if stats.by_number(reached):
        return changes
    if 0 < reached < COMBINED_START:  # 0 is the number of all rows of a full load
        raise FormatError(
            f"change numbers restart; the target has changes up to number {reached}, whatever their time",
            where=changes.name,
            hint=_SEPARATE,
        )
    return _with_combined(changes)


def _with_combined(changes: ChangeTable) -> ChangeTable:
    """The change table with combined numbers in its sequences."""
    from pyspark.sql import functions as F

    name = changes.header("change_seq")
    seq = F.col(name)
    number = F.lpad(_combined_or_own(seq).cast("string"), NUMBER_DIGITS, "0")
    whole = F.concat(F.substring(seq, 1, TIME_DIGITS), number)
    return changes.with_df(changes.df.withColumn(name, F.when(_is_ordered(seq), whole).otherwise(seq)))


def is_loaded(seq: Column) -> Column:
    """Whether a sequence is that of a row of a full load: a time before all times, and the number 0."""
    from pyspark.sql import functions as F

    zeros = seq.startswith("0") & seq.endswith("0" * NUMBER_DIGITS)
    return F.coalesce((F.length(seq) == WIDTH) & zeros, F.lit(False))


def _is_ordered(seq: Column) -> Column:
    """Whether a sequence is that of a change; it begins with zeros if the vendor has no times."""
    from pyspark.sql import functions as F

    return F.coalesce((F.length(seq) == WIDTH) & ~is_loaded(seq), F.lit(False))


def _number(seq: Column) -> Column:
    """The number in a change sequence; NULL if it is not one."""
    from pyspark.sql import functions as F

    return F.substring(seq, TIME_DIGITS + 1, NUMBER_DIGITS).try_cast("bigint")


def _combined_or_own(seq: Column) -> Column:
    """The combined number of a change sequence; its number if it has no time."""
    from pyspark.sql import functions as F

    return F.coalesce(_combined(F.substring(seq, 1, TIME_DIGITS), _number(seq)), _number(seq))


def _combined(time: Column, number: Column) -> Column:
    """The combined number of a time and a number; NULL if the digits are not a time, or above 63 bits: for a
    number of `NUMBER_LIMIT` or more, or a time after 2144."""
    from pyspark.sql import functions as F

    at = F.try_to_timestamp(F.substring(time, 1, 14), F.lit("yyyyMMddHHmmss"))
    hundredths = F.unix_seconds(at) * 100 + F.substring(time, 15, 2).try_cast("bigint")
    return F.try_add(F.try_multiply(hundredths, F.lit(NUMBER_LIMIT)), number)
