"""OpenEdge arrays as text: elements joined by `;`, escaped by `~`, the unknown value as `?`.

Source: spec/openedge.md §7 (an escape stands before `;`, before `~`, and nowhere else when written here;
read, it takes the next character as it is). An element that is the text `?` is written `~?`; an array without
elements, which OpenEdge does not have, is a `~` alone. All is native Spark; `wire.array_text` is the same for
Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

SEPARATOR, ESCAPE, UNKNOWN = ";", "~", "?"
_ELEMENT = r"(?s);((?:[^;~]|~.|~\z)*)"


def split_array(text: Column) -> Column:
    """The elements of an array's text (array<string>; NULL: `?`); the empty text is one empty element."""
    from pyspark.sql import functions as F

    # A leading separator: after an empty match, Java's matcher would skip the next one.
    parts = F.regexp_extract_all(F.concat(F.lit(SEPARATOR), text), F.lit(_ELEMENT), F.lit(1))
    found = F.transform(parts, lambda p: F.when(p != UNKNOWN, F.regexp_replace(p, "(?s)~(.)", "$1")))
    return F.when(text == ESCAPE, F.array().cast("array<string>")).otherwise(found)


def join_array(elements: Column) -> Column:
    """The text of an array; the other way round of `split_array`. NULL for NULL."""
    from pyspark.sql import functions as F

    def escaped(e: Column) -> Column:
        safe = F.regexp_replace(e, "([;~])", "~$1")
        return F.coalesce(F.when(e == UNKNOWN, F.lit(ESCAPE + UNKNOWN)).otherwise(safe), F.lit(UNKNOWN))

    texts = F.transform(elements.cast("array<string>"), escaped)
    return F.when(F.size(texts) == 0, ESCAPE).otherwise(F.array_join(texts, SEPARATOR))
