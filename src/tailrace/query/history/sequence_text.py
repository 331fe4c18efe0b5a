"""Multi-part sequences as one text that sorts like the parts, one after the other.

Numbers have all digits. Negative ones start with a minus and count from the smallest. Times are microseconds
since 1970. NULL sorts first, as in Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_NULL, _END = "!", "\x01"
_TIMES = ("timestamp", "timestamp_ntz")


def ordered_text(column: Column, kind: DataType) -> Column:
    """Returns a struct as text; NULL stays NULL.

    Raises:
        UnsupportedError: a part has no order, or none that a text can keep (floating point).
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    assert isinstance(kind, StructType)  # noqa: S101 - callers check this
    parts = []
    for field in kind.fields:
        part = column.getField(field.name)
        text = _part(part, field.dataType, field.name)
        parts.append(F.when(part.isNull(), F.lit(_NULL)).otherwise(text))
    return F.when(column.isNotNull(), F.concat_ws(" ", *parts))


def _part(part: Column, kind: DataType, name: str) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import DecimalType, IntegralType, StructType

    simple = kind.simpleString()
    if isinstance(kind, StructType):
        return ordered_text(part, kind)
    if simple == "string":
        return F.concat(F.lit("'"), part, F.lit(_END))
    if simple == "boolean":
        return part.cast("string")
    width, whole = 19, part
    if isinstance(kind, DecimalType):
        width, whole = kind.precision, F.regexp_replace(part.cast("string"), r"\.", "")
    elif simple in _TIMES:
        whole = _micros(part, simple)
    elif simple == "date":
        whole = F.unix_date(part)
    if whole is not part or isinstance(kind, IntegralType):
        return _digits(whole.cast("decimal(38,0)"), width)
    raise UnsupportedError(
        f"part {name} of the sequence is {simple}, which cannot be ordered together with other parts",
        hint="order by whole numbers, decimals, times, dates or text",
    )


def _micros(part: Column, kind: str) -> Column:
    """Returns microseconds since 1970. Times without a zone count as UTC, whatever the session's zone."""
    from pyspark.sql import functions as F

    if kind == "timestamp":
        return F.unix_micros(part)
    days, minutes = F.unix_date(part.cast("date")).cast("bigint"), F.hour(part) * 60 + F.minute(part)
    micros = (F.extract(F.lit("SECOND"), part) * F.lit(1_000_000)).cast("bigint")
    return (days * 1440 + minutes) * F.lit(60_000_000).cast("bigint") + micros


def _digits(number: Column, width: int) -> Column:
    """Returns a whole number as text of `width` digits; a negative one counts up from the smallest."""
    from pyspark.sql import functions as F

    up = F.lit("9" * width).cast("decimal(38,0)") + number
    negative = F.concat(F.lit("-"), F.lpad(up.cast("string"), width, "0"))
    return F.when(number < 0, negative).otherwise(F.lpad(number.cast("string"), width, "0"))
