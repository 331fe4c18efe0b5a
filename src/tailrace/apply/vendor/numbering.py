"""Change sequences whose numbers begin anew: order is all 35 digits, but a target's progress is one number.

A target remembers the number of the last change it has. Where numbers rise with the sequences, that is the
vendor's own. Where they do not (they begin anew with each load, or only times tell changes apart), each
change gets a number made of both its parts, which rises with them: `PARTS` times the hundredths of seconds
since 1970, and the vendor's number, which must be below `PARTS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...formats.base import FILE, FINER, WHY
from ...model.change import BEFORE, ChangeTable
from ...model.sequence import NUMBER_DIGITS, TIME_DIGITS, WIDTH
from ...targets.plans import SPECIAL
from .applied_files import FilePart, Files
from .full_loads import FullLoad
from .incoming import Incoming, kinds, relation_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

PARTS = 1 << 24
_NONE = "0" * TIME_DIGITS
MADE = 1 << 52
"""Numbers that are made of both parts are beyond this one: of any time after June 1970."""
_HASH = (1 << 32) - 1
"""Bits of a change's hash that count, so that no sum of them is too large."""


@dataclass(frozen=True)
class Numbers:
    """How the numbers of a change table go with its sequences.

    Attributes:
        rise: each is above those of all earlier times.
        fit: they can be put together with their times.
        load: the rows of a full load among them.
        files: the changes that there are, by file; passed: those with numbers up to the one asked for.
        most: the greatest number; made: the greatest of those that are made of both parts.
        incoming: what a look at the same rows finds (`incoming.look`); None of a table without key, and where
            some of them are wrong or lose a fraction: whoever counts those has to read them all, which a
            merge that stops for want of memory does not.
    """

    rise: bool
    fit: bool
    load: FullLoad = field(default_factory=FullLoad)
    files: Files = field(default_factory=dict)
    passed: Files = field(default_factory=dict)
    most: int = -1
    made: int = -1
    incoming: Incoming | None = None

    @property
    def unclear(self) -> bool:
        """Whether no number can stand for progress."""
        return not self.rise and not self.fit

    def end_at(self, number: int) -> bool:
        """Whether none is beyond a target's progress."""
        return number >= (self.made if number >= MADE and self.fit else self.most)

    def plain(self, reached: int) -> bool:
        """Whether a target that has `reached` a number keeps its progress by the vendor's numbers."""
        return self.rise and not (reached >= MADE and self.fit)

    def end(self, reached: int) -> int:
        """The progress of a target that has `reached` a number once it has all changes."""
        return self.most if self.plain(reached) else self.made


def look(changes: ChangeTable, upto: int = -1) -> Numbers:
    """Reads the headers of a change table: one small job. Sequences that are none are skipped; rows of a
    full load, which have no time, are counted for themselves. `upto`: a target's progress, see `passed`; it
    is made of both parts if it is as great as such a number is, and these numbers could be part of one.

    Raises:
        FormatError: a sequence that progress has no number for.
    """
    # Sums of all changes, of those with numbers up to one, of those with numbers made of both parts up to it.
    sums = ("change", "passed", *(["made_passed"] if upto >= MADE else []))
    rows = _by_file(_by_time(changes, upto, sums), sums).collect()  # one a file
    if beyond := next((r["beyond"] for r in rows if r["beyond"]), None):
        raise FormatError(
            f"the change sequence {beyond} is beyond the 63 bits that a target's progress has",
            where=changes.name,
            hint="such changes cannot be applied; `convert` takes them all",
        )
    begun, most, made = (
        max((r[name] for r in rows if r[name] is not None), default=None)
        for name in ("begun", "most", "made")
    )
    began = None if begun is None else datetime.fromtimestamp(begun / 1e6, timezone.utc)
    load = FullLoad(sum(r["loaded"] for r in rows), began)
    most, made = (-1 if n is None else n for n in (most, made))
    fit = most < PARTS and not any(r["untimed"] for r in rows)
    rise = not any(r["falls"] for r in rows)
    passed = _parts(rows, "made_passed" if fit and upto >= MADE else "passed")
    return Numbers(rise, fit, load, _parts(rows, "change"), passed, most, made, _incoming(changes, rows))


def _incoming(changes: ChangeTable, rows: Sequence[Row]) -> Incoming | None:
    """What the rows of all files are together; None: some are wrong, or have to say which row they mean."""
    if not changes.key or any(r["wrong"] for r in rows):
        return None
    numbers = [r[end] for r in rows for end in ("first", "final") if r[end] is not None]
    counts = {kind: sum(r[kind] for r in rows) for kind in SPECIAL}
    return Incoming(relation_of(changes), max(numbers, default=-1), counts, min(numbers, default=-1))


def _parts(rows: Iterable[Row], which: str) -> Files:
    """The changes of files, or those among them that are passed; files that have some."""
    return {
        r["file"]: FilePart(many, r[f"{which}_sum"], r[f"{which}_last"])
        for r in rows
        if (many := r[f"{which}_many"])
    }


def _by_time(changes: ChangeTable, upto: int, sums: Sequence[str]) -> DataFrame:
    """What the changes of one time in one file are together; rows of a full load, and wrong ones, have no
    time."""
    from pyspark.sql import functions as F

    seq, oper = (F.col(changes.header(h)) for h in ("change_seq", "change_oper"))
    good = F.col(WHY).isNull() if WHY in changes.df.columns else F.lit(True)
    good &= _usual(seq) | is_loaded(seq)
    file = F.col(FILE) if FILE in changes.df.columns else F.lit("")
    loaded, begun = is_loaded(seq), F.lit(None).cast("timestamp")
    if "timestamp" in changes.headers:
        begun = F.when(good & loaded, F.col(changes.header("timestamp")).cast("timestamp"))
    time, number = F.substring(seq, 1, TIME_DIGITS), _number(seq)
    finer = F.coalesce(F.col(FINER), F.lit(False)) if FINER in changes.df.columns else F.lit(False)
    change = good & (oper != BEFORE)
    beyond = seq.rlike("^[0-9]+$") & (number.isNull() | (time.startswith("0") & (time != _NONE)))
    summed = [
        made.alias(f"{which}_{name}")
        for which in sums
        for name, made in (
            ("many", F.count_if(which)),
            ("sum", F.sum(F.when(F.col(which), F.col("hash")))),
            ("last", F.max(F.when(F.col(which), F.col("number")))),
        )
    ]
    return (
        changes.df
        .select(F.when(good & ~loaded, time).alias("time"), F.coalesce(file, F.lit("")).alias("file"),
                F.when(good, number).alias("number"), begun.alias("begun"), change.alias("change"),
                ((number <= upto) & change).alias("passed"),
                ((_made(seq) <= upto) & change).alias("made_passed"),
                F.when(good & ~loaded & beyond, seq).alias("beyond"),
                F.xxhash64(seq, oper).bitwiseAND(_HASH).alias("hash"),
                (~good | number.isNull() | finer).alias("wrong"),
                *(counts.alias(kind) for kind, counts in kinds(changes).items()))
        .groupBy("time", "file")
        .agg(F.min("number").alias("least"), F.max("number").alias("most"), F.max("begun").alias("begun"),
             F.max("beyond").alias("beyond"), F.max("wrong").alias("wrong"), *summed,
             *(F.count_if(kind).alias(kind) for kind in SPECIAL))
    )  # fmt: skip


def _by_file(times: DataFrame, sums: Sequence[str]) -> DataFrame:
    """What the changes of one file are together, given those of each of its times."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    load, most = F.col("time").isNull(), F.col("most")
    made_of = _of_both(F.col("time"), most)
    # 16 digits, in their order; where they are none, nothing tells that numbers rise.
    place = F.when(load, F.lit(0)).otherwise(F.col("time").try_cast("bigint"))
    earlier = Window.partitionBy(load).orderBy("place").rangeBetween(Window.unboundedPreceding, -1)
    falls = F.col("place").isNull() | F.coalesce(F.col("least") <= F.max("most").over(earlier), F.lit(False))
    summed = []
    for which in sums:
        many, checksum, last = (F.when(~load, F.col(f"{which}_{n}")) for n in ("many", "sum", "last"))
        whole = F.concat(F.col("time"), F.lpad(last.cast("string"), NUMBER_DIGITS, "0"))
        made = {"many": F.coalesce(F.sum(many), F.lit(0)), "sum": F.sum(checksum), "last": F.max(whole)}
        summed += [column.alias(f"{which}_{name}") for name, column in made.items()]
    return (
        times.withColumn("place", place)
        .withColumn("falls", falls)
        .groupBy("file")
        .agg(
            F.max("falls").alias("falls"),
            F.max(F.when(~load, most)).alias("most"),
            F.max(F.when(~load, made_of)).alias("made"),
            F.max(F.when(load, F.unix_micros("begun"))).alias("begun"),
            F.max("beyond").alias("beyond"),
            (F.count_if(made_of.isNull() & ~load) > 0).alias("untimed"),
            F.coalesce(F.sum(F.when(load, F.col("change_many"))), F.lit(0)).alias("loaded"),
            F.max("wrong").alias("wrong"),
            F.min("least").alias("first"),
            F.max("most").alias("final"),
            *(F.sum(kind).alias(kind) for kind in SPECIAL),
            *summed,
        )
    )


def followed(changes: ChangeTable, numbers: Numbers, reached: int) -> ChangeTable:
    """The change table with numbers that a target can keep its progress by, which has `reached` one.

    Raises:
        FormatError: the numbers begin anew, and the target has kept its progress by them until now.
    """
    if reached >= MADE > numbers.most and numbers.made > reached and not numbers.fit:
        raise FormatError(
            f"change numbers from {PARTS:,} on cannot be put together with their times, by which the target "
            "keeps its progress",
            where=changes.name,
            hint="apply what came since as a folder of its own, with another `--name`",
        )
    if numbers.plain(reached):
        return changes
    if 0 < reached < MADE:  # 0 is the number of a full load's rows alone
        raise FormatError(
            f"change numbers begin anew; the target has changes up to number {reached}, whatever their time",
            where=changes.name,
            hint="apply what came since as a folder of its own, with another `--name`",
        )
    return _renumbered(changes)


def _renumbered(changes: ChangeTable) -> ChangeTable:
    """The change table with numbers that are made of both parts of its sequences."""
    from pyspark.sql import functions as F

    name = changes.header("change_seq")
    seq = F.col(name)
    made = _made(seq)
    whole = F.concat(F.substring(seq, 1, TIME_DIGITS), F.lpad(made.cast("string"), NUMBER_DIGITS, "0"))
    return changes.with_df(changes.df.withColumn(name, F.when(_usual(seq), whole).otherwise(seq)))


def is_loaded(seq: Column) -> Column:
    """Whether a change sequence is that of a row of a full load: before all times, with the number 0."""
    from pyspark.sql import functions as F

    none = seq.startswith("0") & seq.endswith("0" * NUMBER_DIGITS)
    return F.coalesce((F.length(seq) == WIDTH) & none, F.lit(False))


def _usual(seq: Column) -> Column:
    """Whether a sequence is a change's; those of vendors without times begin with zeros."""
    from pyspark.sql import functions as F

    return F.coalesce((F.length(seq) == WIDTH) & ~is_loaded(seq), F.lit(False))


def _number(seq: Column) -> Column:
    from pyspark.sql import functions as F

    return F.substring(seq, TIME_DIGITS + 1, NUMBER_DIGITS).try_cast("bigint")


def _made(seq: Column) -> Column:
    """The number that is made of both parts of a change sequence; without a time its own."""
    from pyspark.sql import functions as F

    return F.coalesce(_of_both(F.substring(seq, 1, TIME_DIGITS), _number(seq)), _number(seq))


def _of_both(time: Column, number: Column) -> Column:
    """The number that is made of a time and a number; NULL when the digits are no time, or it is beyond 63
    bits: of a number that is not below `PARTS`, or a time after 2144."""
    from pyspark.sql import functions as F

    return F.try_add(F.try_multiply(_hundredths(time), F.lit(PARTS)), number)


def _hundredths(time: Column) -> Column:
    """Hundredths of seconds since 1970; NULL when the digits are no time."""
    from pyspark.sql import functions as F

    at = F.try_to_timestamp(F.substring(time, 1, 14), F.lit("yyyyMMddHHmmss"))
    return F.unix_seconds(at) * 100 + F.substring(time, 15, 2).try_cast("bigint")
