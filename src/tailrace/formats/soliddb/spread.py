"""How a log's records come to the tasks that work on them: each transaction whole in one, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...execution import over_rows
from ..arrow_functions import AnyColumn, AnyRows, Functions
from ..base import RAW, WHY
from .log import CAPTURE_OFF, START
from .order import MADE, MARK, MOVES, ordered
from .others import CHANGE, WAITS, OtherRecords
from .pairs import Pairs
from .rules import OfLog, OfTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OFF, _WHOLE = "_off", "_whole"
_STAY = {"RECID", "TRXID", "STMTTRXID", "RELID", "FLAGS", "LOGADDR", CHANGE, MADE, MARK, MOVES, WHY}


class Log(Protocol):
    """A log whose records are worked on."""

    @property
    def length(self) -> int:
        """Bytes of a LOGADDR."""

    def changes(self, rule: OfTable, work: Pairs) -> DataFrame:
        """A table's changes, with `FILE` and `ROW`."""

    def others(self, rule: OfLog, work: OtherRecords) -> tuple[DataFrame, DataFrame]:
        """The records that are no changes, with `FILE`, `ROW`, and (bad ones) `RAW`; and those that wait."""


@dataclass(frozen=True)
class Shuffled:
    """A log that Spark reads and brings together (`order.ordered`).

    Attributes:
        rows: its conformed rows.
        length: bytes of a LOGADDR.
    """

    rows: DataFrame
    length: int

    def changes(self, rule: OfTable, work: Pairs) -> DataFrame:
        """A table's changes."""
        from pyspark.sql import functions as F

        rows = ordered(rule(F, self.rows))
        return over_rows(rows, work, work.schema(_kinds(rows)))

    def others(self, rule: OfLog, work: OtherRecords) -> tuple[DataFrame, DataFrame]:
        """The records that are no changes, and those that wait."""
        from pyspark.sql import functions as F

        log = rule(F, self.rows)
        log = log.withColumn(RAW, F.when(F.col(WHY).isNotNull(), F.col(RAW)))
        records = _others(_shuffled_light(log, whole=_off(log, work.capture_off)), work)
        return records.filter(~F.col(WAITS)), _waiting(log.filter(F.col(WHY).isNull()), work)


def light(f: Functions, log: AnyRows, condition: AnyColumn) -> AnyRows:
    """Records, some with no more than what tells their place: they are only looked at, and bringing them
    there is to be cheap."""
    stay = {*_STAY, _OFF, _WHOLE}
    return log.withColumns({c: f.when(~condition, f.col(c)) for c in log.columns if c not in stay})


def _kinds(df: DataFrame) -> Mapping[str, str]:
    return {field.name: field.dataType.simpleString() for field in df.schema}


def _others(log: DataFrame, work: OtherRecords) -> DataFrame:
    rows = ordered(log, statements=work.by_statement)
    return over_rows(rows, work, work.schema(_kinds(rows)))


def _off(log: DataFrame, policy: str) -> DataFrame | None:
    """The transactions with CAPTURE_OFF, mostly none: changes of them may be kept. None: it means nothing."""
    from pyspark.sql import functions as F

    if policy == "keep":
        return None
    off = (F.col("RECID") == START) & (F.col("FLAGS").bitwiseAND(CAPTURE_OFF) != 0) & F.col(WHY).isNull()
    return log.filter(off).select(F.col("TRXID").alias(_OFF)).distinct().withColumn(_WHOLE, F.lit(True))


def _shuffled_light(log: DataFrame, *, whole: DataFrame | None = None) -> DataFrame:
    """Records, changes only with what tells their place, but for those of the transactions `whole`."""
    from pyspark.sql import functions as F

    condition = F.col(CHANGE)
    if whole is not None:
        log = log.join(F.broadcast(whole), F.col("TRXID").eqNullSafe(F.col(_OFF)), "left")
        condition &= F.col(_WHOLE).isNull()
    return light(F, log, condition).drop(_OFF, _WHOLE)


def _waiting(good: DataFrame, work: OtherRecords) -> DataFrame:
    """The good records whose transactions are not over. They are found by their places; then those of their
    transactions, mostly none, are looked at whole."""
    from pyspark.sql import functions as F

    found = _others(_shuffled_light(good), work).filter(WAITS)
    mine = F.broadcast(found.select(F.col("TRXID").alias("_open")).distinct())
    some = good.join(mine, F.col("TRXID").eqNullSafe(F.col("_open")), "left_semi")
    return _others(some, work).filter(WAITS)
