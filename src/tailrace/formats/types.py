"""Values in the types that a layout gives them (none becomes another one silently), and as text.

Arrays are text as OpenEdge writes them: elements joined by `;`, escaped by `~`, the unknown value as `?`
(spec/openedge.md §7). An escape is written before `;` and before `~`, and nowhere else; read, it takes the
next character as it is. An element that is the text `?` is written `~?`; an array without elements, which
OpenEdge does not have, is a `~` alone. `wire.array_text` is the same for Arrow.
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
"""The first and the last moment that the lake has."""
_DAY, _CLOCK = r"\d{4,6}-\d{1,2}-\d{1,2}", r"\d{1,2}:\d{1,2}(:\d{1,2}(\.\d*)?)?"
_ZONE = r"\s*(Z|[A-Za-z][\w/+:-]*|[+-]\d{1,2}(:?\d{2}(:?\d{2})?)?)"
_FORMS = {
    "date": rf"^{_DAY}([ T]0{{1,2}}:00(:00(\.0*)?)?)?$",
    "timestamp": rf"^{_DAY}([ T]{_CLOCK}({_ZONE})?)?$",
    "timestamp_ntz": rf"^{_DAY}([ T]{_CLOCK})?$",
}
"""What text of these types looks like. Spark takes more: it gives a time of day the date of today, and cuts
from a day what follows it."""
_MOST_POWER = 9999
_DECIMAL = re.compile(r"decimal\(\d+,(\d+)\)")


SEPARATOR, ESCAPE, UNKNOWN = ";", "~", "?"
_ELEMENT = r"(?s);((?:[^;~]|~.|~\z)*)"
"""Arrays as text: elements between `;`, escapes with `~`, the unknown value as `?`."""


def as_type(value: Column, type: str, came: str = "string", *, base64: bool = False) -> Column:
    """A value that came as one Spark SQL type as another; NULL if it is none of it, or has more digits than
    it holds. Text of binary types is hex, two digits a byte, or base64."""
    text = came == "string"
    if text and (element := element_type(type)):
        return _as_array(value, element)
    if text and type == "binary":
        if base64:
            return F.try_to_binary(value, F.lit("base64"))
        # Spark takes an odd number of digits for bytes of which the first has only one.
        return F.when(F.length(value) % 2 == 0, F.unhex(value))
    if text and type != "string":
        value = F.trim(value)
    return exactly(value, type, came)


def bytes_as_text(value: Column, *, base64: bool = False) -> Column:
    """Bytes as text that `as_type` reads again: hex, or base64."""
    return F.base64(value) if base64 else F.hex(value)


def exactly(value: Column, type: str, came: str) -> Column:
    """A value that came as one Spark SQL type as another; NULL if it would be another value there. Bytes as
    text are UTF-8."""
    if came == type:
        return value
    made = value.try_cast(type)
    if (came, type) == ("binary", "string"):  # Spark takes any bytes
        return F.when(F.is_valid_utf8(made), made)
    changes = _changes(value, made, type, came)
    return made if changes is None else F.when(~F.coalesce(changes, F.lit(False)), made)


def _changes(value: Column, made: Column, type: str, came: str) -> Column | None:
    """Whether a value becomes another number in a type, except for the rounding of floating-point numbers, or
    is out of the lake's years; None: it never does, or is."""
    if type in _TIMES and came == "string":
        years = made.between(*[F.lit(text).cast(type) for text in YEARS])
        return ~(years & value.rlike(_FORMS[type]))
    if type in ("float", "double"):
        return _beyond(value, made, came) if came in ("string", "double") and type != came else None
    scale = _DECIMAL.fullmatch(type)
    if scale and came == "string":
        return _finer(value, int(scale[1]))
    if (scale or type in _WHOLE) and (_DECIMAL.fullmatch(came) or came in ("float", "double")):
        return made.try_cast(came) != value
    return None


def _finer(value: Column, scale: int) -> Column:
    """Whether a number's text has digits, other than zeros, beyond a scale, or an exponent with which Spark's
    cast takes minutes, or fails. Its value is not asked for: as a floating-point number it is another one."""
    small = F.lower(value)
    number, dot = F.substring_index(small, "e", 1), F.instr(value, ".")
    power = F.when(small.contains("e"), F.substring_index(small, "e", -1).try_cast("bigint")).otherwise(0)
    last = F.length(F.rtrim(number, F.lit("0. \t\r\n")))  # the place of the last digit that counts
    behind = last - F.when((dot > 0) & (last < dot), dot - 1).when(dot > 0, dot).otherwise(F.length(number))
    zero = number.rlike(r"^\s*[+-]?[0.]*\s*$")
    return ((behind - power > scale) & ~zero) | ~power.between(-_MOST_POWER, _MOST_POWER)


def _beyond(value: Column, made: Column, came: str) -> Column:
    """Whether a number became infinite in a type of floating-point numbers, or nothing."""
    infinite, none = F.abs(made) == float("inf"), made == 0
    if came == "string":
        letter = value.rlike("[0-9.][fFdD]$")  # Java's own way to write a number
        return (infinite & value.rlike("[0-9]")) | (none & value.rlike("^[^eE]*[1-9]")) | letter
    return (infinite & (F.abs(value) != float("inf"))) | (none & (value != 0))


def _as_array(text: Column, element: str) -> Column:
    """The array that a text represents; NULL when an element is not of its type."""
    texts = split_array(text)
    made = F.transform(texts, lambda e: as_type(e, element))
    none = [F.size(F.filter(one, lambda e: e.isNull())) for one in (made, texts)]
    return F.when(none[0] == none[1], made)


def split_array(text: Column) -> Column:
    """The elements of an array's text (array<string>; NULL: `?`); the empty text is one empty element."""
    # A leading separator: after an empty match, Java's matcher would skip the next one.
    parts = F.regexp_extract_all(F.concat(F.lit(SEPARATOR), text), F.lit(_ELEMENT), F.lit(1))
    found = F.transform(parts, lambda p: F.when(p != UNKNOWN, F.regexp_replace(p, "(?s)~(.)", "$1")))
    return F.when(text == ESCAPE, F.array().cast("array<string>")).otherwise(found)


def join_array(elements: Column) -> Column:
    """The text of an array; the other way round of `split_array`. NULL for NULL."""

    def escaped(e: Column) -> Column:
        safe = F.regexp_replace(e, "([;~])", "~$1")
        return F.coalesce(F.when(e == UNKNOWN, F.lit(ESCAPE + UNKNOWN)).otherwise(safe), F.lit(UNKNOWN))

    texts = F.transform(elements.cast("array<string>"), escaped)
    return F.when(F.size(texts) == 0, ESCAPE).otherwise(F.array_join(texts, SEPARATOR))
