"""Change sequences whose numbers begin anew: order is all 35 digits, but a target's progress is one number.

A target remembers the number of the last change it has. Where numbers rise with the sequences, that is the
vendor's own. Where they do not (they begin anew with each load, or only times tell changes apart), each
change gets a number made of both its parts, which rises with them: `PARTS` times the hundredths of seconds
since 1970, and the vendor's number, which must be below `PARTS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ..errors import FormatError
from ..formats.base import WHY
from ..model.change import BEFORE, ChangeTable
from ..model.sequence import NUMBER_DIGITS, TIME_DIGITS, WIDTH
from .full_loads import FullLoad

if TYPE_CHECKING:
    from pyspark.sql import Column

PARTS = 1 << 24
_NONE = "0" * TIME_DIGITS
MADE = 1 << 52
"""Numbers that are made of both parts are beyond this one: of any time after June 1970."""


@dataclass(frozen=True)
class Numbers:
    """How the numbers of a change table go with its sequences.

    Attributes:
        rise: each is above those of all earlier times.
        fit: they can be put together with their times.
        load: the rows of a full load among them.
        many: how many changes there are; passed: those with numbers up to the one asked for.
        most: the greatest number; made: the greatest of those that are made of both parts.
    """

    rise: bool
    fit: bool
    load: FullLoad = field(default_factory=FullLoad)
    many: int = 0
    passed: int = 0
    most: int = -1
    made: int = -1

    @property
    def unclear(self) -> bool:
        """Whether no number can stand for progress."""
        return not self.rise and not self.fit

    def end_at(self, number: int) -> bool:
        """Whether none is beyond a target's progress."""
        return number >= (self.made if number >= MADE else self.most)


def look(changes: ChangeTable, upto: int = -1) -> Numbers:
    """Reads the sequences of a change table: one small job. Sequences that are none are skipped; rows of a
    full load, which have no time, are counted for themselves. `upto`: a target's progress, see `passed`.

    Raises:
        FormatError: a sequence that progress has no number for.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    seq = F.col(changes.header("change_seq"))
    good = F.col(WHY).isNull() if WHY in changes.df.columns else F.lit(True)
    loaded, begun = is_loaded(seq), F.lit(None).cast("timestamp")
    if "timestamp" in changes.headers:
        begun = F.when(loaded, F.col(changes.header("timestamp")).cast("timestamp"))
    time, number = F.substring(seq, 1, TIME_DIGITS), _number(seq)
    change = F.col(changes.header("change_oper")) != BEFORE
    progress = _made(seq) if upto >= MADE else number
    beyond = seq.rlike("^[0-9]+$") & (number.isNull() | (time.startswith("0") & (time != _NONE)))
    times = (
        changes.df.filter(good & (_usual(seq) | loaded))
        .select(F.when(~loaded, time).alias("time"), number.alias("number"), begun.alias("begun"),
                change.alias("change"), ((progress <= upto) & change).alias("passed"),
                F.when(~loaded & beyond, seq).alias("beyond"))
        .groupBy("time")
        .agg(F.min("number").alias("least"), F.max("number").alias("most"), F.max("begun").alias("begun"),
             F.count_if("change").alias("many"), F.count_if("passed").alias("passed"),
             F.max("beyond").alias("beyond"))
    )  # fmt: skip
    load = F.col("time").isNull()
    before = Window.partitionBy(load).orderBy("time").rowsBetween(Window.unboundedPreceding, -1)
    falls = F.coalesce(F.col("least") <= F.max("most").over(before), F.lit(False))
    found = times.select(
        "*", load.alias("load"), falls.alias("falls"), _hundredths(F.col("time")).alias("at")
    ).agg(
        F.max("falls"), F.max(F.when(~F.col("load"), F.col("most"))),
        F.count_if(F.col("at").isNull() & ~F.col("load")),
        F.max(F.when(F.col("load"), F.col("many"))),
        F.max(F.when(F.col("load"), F.unix_micros("begun"))),
        *[F.sum(F.when(~F.col("load"), F.col(n))) for n in ("many", "passed")],
        F.max(F.when(~F.col("load"), F.col("at") * PARTS + F.col("most"))),
        F.max("beyond"),
    )  # fmt: skip
    row = found.first()
    assert row is not None  # noqa: S101 - an aggregate without groups has one row
    if row[8] is not None:
        raise FormatError(
            f"the change sequence {row[8]} is beyond the 63 bits that a target's progress has",
            where=changes.name,
            hint="of solidDB's log, positions from 2^31 on cannot be applied; `convert` takes them all",
        )
    began = None if row[4] is None else datetime.fromtimestamp(row[4] / 1e6, timezone.utc)
    load_rows = FullLoad(int(row[3] or 0), began)
    most, made = (-1 if n is None else int(n) for n in (row[1], row[7]))
    fit = most < PARTS and not row[2]
    return Numbers(not row[0], fit, load_rows, int(row[5] or 0), int(row[6] or 0), most, made)


def followed(changes: ChangeTable, numbers: Numbers, reached: int) -> ChangeTable:
    """The change table with numbers that a target can keep its progress by, which has `reached` one.

    Raises:
        FormatError: the numbers begin anew, and the target has kept its progress by them until now.
    """
    from pyspark.sql import functions as F

    if numbers.rise and not (reached >= MADE and numbers.fit):
        return changes
    if 0 <= reached < MADE:
        raise FormatError(
            f"change numbers begin anew; the target has changes up to number {reached}, whatever their time",
            where=changes.name,
            hint="apply what came since as a folder of its own, with another `--name`",
        )
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

    return F.coalesce(_hundredths(F.substring(seq, 1, TIME_DIGITS)) * PARTS + _number(seq), _number(seq))


def _hundredths(time: Column) -> Column:
    """Hundredths of seconds since 1970; NULL when the digits are no time."""
    from pyspark.sql import functions as F

    at = F.try_to_timestamp(F.substring(time, 1, 14), F.lit("yyyyMMddHHmmss"))
    return F.unix_seconds(at) * 100 + F.substring(time, 15, 2).try_cast("bigint")
