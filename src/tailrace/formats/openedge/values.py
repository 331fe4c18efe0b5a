"""The values of images: text read as the type that `_Field` says, and what unknown ones look like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..shape import is_finer
from ..typed import as_type
from .both_rows import THERE, TrackedTable, of_image
from .options import OpenEdgeOptions

if TYPE_CHECKING:
    from pyspark.sql import Column

NOTHING_KNOWN = r"^\?(;\?)*\z"
"""The text of an array of unknown elements."""
ZONE_AT_END = r"([+-]\d\d:\d\d)\s*$"
"""The offset of a time in text form."""


def values_of(
    of: TrackedTable, options: OpenEdgeOptions
) -> tuple[dict[str, Column], list[tuple[Column, str | Column]], list[Column]]:
    """The data columns, text read as the type `_Field` says; what was wrong with it; which of it has a
    fraction that is cut."""
    values: dict[str, Column] = {}
    bad: list[tuple[Column, str | Column]] = []
    cut: list[Column] = []
    for column in of.source.columns:
        known = values[column] = _known(of, column)
        kind = of.source.types.get(column)
        if column in of.source.extents:
            kind = f"array<{kind or 'string'}>" if options.arrays == "array" else None
        if _came_as_text(of, column) and kind not in (None, "string"):
            values[column] = as_type(known, kind)
            bad.append((known.isNotNull() & values[column].isNull(), f"{column} is not valid as {kind}"))
            if "timestamp" in kind:
                cut.append(is_finer(known))
    return values, bad, cut


def _came_as_text(of: TrackedTable, column: str) -> bool:
    return of.images is not None and of.images.schema[column].dataType.simpleString() == "string"


def _known(of: TrackedTable, column: str) -> Column:
    """A value as it came, NULL if it is `?` in text of a column that is not text; an array that is `?` has
    one element, which is unknown."""
    from pyspark.sql import functions as F

    value, kind = of_image(column), of.source.types.get(column, "string")
    if kind == "string" or column in of.source.extents or not _came_as_text(of, column):
        return value
    return F.when(F.trim(value) != "?", value)


def says_something(of: TrackedTable, column: str) -> Column:
    """Whether a value shows that its image carries the column; that of an array does by an element that is
    known."""
    from pyspark.sql import functions as F

    there = _known(of, column).isNotNull()
    if column not in of.source.extents or not _came_as_text(of, column):
        return there
    return there & ~F.coalesce(of_image(column).rlike(NOTHING_KNOWN), F.lit(False))


def zoned(of: TrackedTable) -> list[str]:
    """The columns whose times came as text with an offset (DATETIME-TZ), which instants do not keep."""
    if of.images is None:
        return []
    kinds = {f.name: f.dataType.simpleString() for f in of.images.schema}
    return [c for c in of.source.columns if of.source.types.get(c) == "timestamp" and kinds[c] == "string"]


def offsets(of: TrackedTable) -> Column:
    """The offsets of those times, in order of the columns: `+01:00;;-05:00`; NULL: no time has one."""
    from pyspark.sql import functions as F

    texts = [F.regexp_extract(F.coalesce(of_image(c), F.lit("")), ZONE_AT_END, 1) for c in zoned(of)]
    if not texts:
        return F.lit(None).cast("string")
    some = F.concat(*texts) != ""
    return F.when(of_image(THERE).isNotNull() & some, F.concat_ws(";", *texts))
