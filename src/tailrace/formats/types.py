"""Converts values to the types of a layout, and to text; no value changes silently.

Arrays are written as OpenEdge writes them: elements joined by `;`, escaped by `~`, the unknown value as `?`
(spec/openedge.md §7). An escape is written only before `;` and `~`; in text that is read, it escapes any
character. An element with the text `?` is written `~?`; an array without elements, which OpenEdge does not
have, is a single `~`. `wire.array_text` does the same for Arrow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..model.types import element_type
from .spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_TIMES = ("date", "timestamp", "timestamp_ntz")
YEARS = ("0001-01-01", "9999-12-31 23:59:59.999999")
"""The first and the last timestamp that the lake can hold."""
_DAY, _CLOCK = r"\d{4,6}-\d{1,2}-\d{1,2}", r"\d{1,2}:\d{1,2}(:\d{1,2}(\.\d*)?)?"
_ZONE = r"\s*(Z|[A-Za-z][\w/+:-]*|[+-]\d{1,2}(:?\d{2}(:?\d{2})?)?)"
_FORMS = {
    "date": rf"^{_DAY}([ T]0{{1,2}}:00(:00(\.0*)?)?)?$",
    "timestamp": rf"^{_DAY}([ T]{_CLOCK}({_ZONE})?)?$",
    "timestamp_ntz": rf"^{_DAY}([ T]{_CLOCK})?$",
}
"""Patterns of text of these types. Spark accepts more: it adds today's date to a time of day, and truncates
text after a date."""
_MOST_POWER = 9999
_DECIMAL = re.compile(r"decimal\(\d+,(\d+)\)")


SEPARATOR, ESCAPE, UNKNOWN = ";", "~", "?"
_ELEMENT = r"(?s);((?:[^;~]|~.|~\z)*)"
"""Arrays as text: elements between `;`, escapes with `~`, the unknown value as `?`."""


def as_type(value: Column, type: str, source_type: str = "string", *, base64: bool = False) -> Column:
    """Converts a value of the Spark SQL type `source_type` to another type; NULL if it is invalid there, or
    has more digits than the type holds. Text of binary types is hex, two digits per byte, or base64."""
    text = source_type == "string"
    if text and (element := element_type(type)):
        return _as_array(value, element)
    if text and type == "binary":
        if base64:
            return F.try_to_binary(value, F.lit("base64"))
        # Spark accepts an odd number of digits, as if the first byte had only one.
        return F.when(F.length(value) % 2 == 0, F.unhex(value))
    if text and type != "string":
        value = F.trim(value)
    return exactly(value, type, source_type)


def bytes_as_text(value: Column, *, base64: bool = False) -> Column:
    """Returns bytes as text that `as_type` reads again: hex, or base64."""
    return F.base64(value) if base64 else F.hex(value)


def exactly(value: Column, type: str, source_type: str) -> Column:
    """Converts a value of the Spark SQL type `source_type` to another type; NULL if it would change. Bytes
    that become text are UTF-8."""
    if source_type == type:
        return value
    result = value.try_cast(type)
    if (source_type, type) == ("binary", "string"):  # Spark accepts any bytes
        return F.when(F.is_valid_utf8(result), result)
    changes = _changes(value, result, type, source_type)
    return result if changes is None else F.when(~F.coalesce(changes, F.lit(False)), result)


def _changes(value: Column, converted: Column, type: str, source_type: str) -> Column | None:
    """Whether a value would become another number in a type, except for the rounding of floating-point
    numbers, or is outside the lake's years; None if that is impossible."""
    if type in _TIMES and source_type == "string":
        years = converted.between(*[F.lit(text).cast(type) for text in YEARS])
        return ~(years & value.rlike(_FORMS[type]))
    if type in ("float", "double"):
        return (
            _beyond(value, converted, source_type)
            if source_type in ("string", "double") and type != source_type
            else None
        )
    scale = _DECIMAL.fullmatch(type)
    if scale and source_type == "string":
        return _finer(value, int(scale[1]))
    if (scale or type in _WHOLE) and (_DECIMAL.fullmatch(source_type) or source_type in ("float", "double")):
        return converted.try_cast(source_type) != value
    return None


def _finer(value: Column, scale: int) -> Column:
    """Whether a number's text has digits, other than zeros, beyond a scale, or an exponent with which Spark's
    cast takes minutes, or fails. The text decides: as a floating-point number the value would be another
    one."""
    small = F.lower(value)
    number, dot = F.substring_index(small, "e", 1), F.instr(value, ".")
    power = F.when(small.contains("e"), F.substring_index(small, "e", -1).try_cast("bigint")).otherwise(0)
    last = F.length(F.rtrim(number, F.lit("0. \t\r\n")))  # the position of the last significant digit
    behind = last - F.when((dot > 0) & (last < dot), dot - 1).when(dot > 0, dot).otherwise(F.length(number))
    zero = number.rlike(r"^\s*[+-]?[0.]*\s*$")
    return ((behind - power > scale) & ~zero) | ~power.between(-_MOST_POWER, _MOST_POWER)


def _beyond(value: Column, converted: Column, source_type: str) -> Column:
    """Whether a number became infinite, or NULL, in a floating-point type."""
    infinite, none = F.abs(converted) == float("inf"), converted == 0
    if source_type == "string":
        letter = value.rlike("[0-9.][fFdD]$")  # Java's suffix of a number
        return (infinite & value.rlike("[0-9]")) | (none & value.rlike("^[^eE]*[1-9]")) | letter
    return (infinite & (F.abs(value) != float("inf"))) | (none & (value != 0))


def _as_array(text: Column, element: str) -> Column:
    """Returns the array that a text represents; NULL if an element is not of its type."""
    texts = split_array(text)
    result = F.transform(texts, lambda e: as_type(e, element))
    none = [F.size(F.filter(one, lambda e: e.isNull())) for one in (result, texts)]
    return F.when(none[0] == none[1], result)


def split_array(text: Column) -> Column:
    """Returns the elements of an array's text (array<string>; NULL for `?`); the empty text is one empty
    element."""
    # With a leading separator: after an empty match, Java's matcher would skip the next one.
    parts = F.regexp_extract_all(F.concat(F.lit(SEPARATOR), text), F.lit(_ELEMENT), F.lit(1))
    found = F.transform(parts, lambda p: F.when(p != UNKNOWN, F.regexp_replace(p, "(?s)~(.)", "$1")))
    return F.when(text == ESCAPE, F.array().cast("array<string>")).otherwise(found)


def join_array(elements: Column) -> Column:
    """Returns the text of an array; the inverse of `split_array`. NULL for NULL."""

    def escaped(e: Column) -> Column:
        safe = F.regexp_replace(e, "([;~])", "~$1")
        return F.coalesce(F.when(e == UNKNOWN, F.lit(ESCAPE + UNKNOWN)).otherwise(safe), F.lit(UNKNOWN))

    texts = F.transform(elements.cast("array<string>"), escaped)
    return F.when(F.size(texts) == 0, ESCAPE).otherwise(F.array_join(texts, SEPARATOR))
