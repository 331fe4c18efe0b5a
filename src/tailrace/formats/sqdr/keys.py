"""The key of a key log's rows: which of its texts say it. Source: spec/sqdr.md §4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...model import mask
from ..shape import any_of
from .columns import SqdrTable

if TYPE_CHECKING:
    from pyspark.sql import Column

IMAGE, OLD, NEW = "_image", "_old", "_new"
"""Columns with the items of `after_image`, `before_key` and `after_key`, see `text.parsed`."""


@dataclass(frozen=True)
class ColumnPlaces:
    """The places of a source's columns in its change table."""

    source: SqdrTable
    start: int

    @property
    def keys(self) -> list[int]:
        """Places of the key's columns; without a key, of all columns: then they are in the texts of keys."""
        return self.key_places or list(range(len(self.source.fields)))

    @property
    def key_places(self) -> list[int]:
        """Places of the key's columns; none if there is no key."""
        return [i for i, f in enumerate(self.source.fields) if f.name in self.source.key]

    @property
    def width(self) -> int:
        """How many bits a mask has at most."""
        return self.start + len(self.source.fields)

    def ordinals(self, places: Sequence[int]) -> list[int]:
        """Bits of these columns."""
        return [self.start + i for i in places]


def _has(side: str, bit: int) -> Column:
    """Whether a text, if it is there, has a column."""
    from pyspark.sql import functions as F

    return F.col(f"{side}.m").isNull() | mask.is_set(F.col(f"{side}.m"), bit)


def filled(layout: ColumnPlaces, place: int) -> Column:
    """Whether a column of the key is not in the image, and has its value from `before_key`: it is the same
    after an update whose `after_key` does not name it. The key before an insert means nothing."""
    from pyspark.sql import functions as F

    bit = layout.start + place
    same = F.col("after_key").isNull() | ~_has(NEW, bit)
    keyed = F.col("before_key").isNotNull() & _has(OLD, bit) & F.col("change_row_type").isin("U", "D", "B")
    return F.coalesce(~_has(IMAGE, bit) & keyed & same, F.lit(False))


def any_filled(layout: ColumnPlaces) -> Column:
    return any_of(filled(layout, place) for place in layout.key_places)


def keyless(layout: ColumnPlaces) -> list[tuple[Column, str | Column]]:
    """Rows whose texts have no value of a column of the key."""
    from pyspark.sql import functions as F

    image, kind = F.col("after_image"), F.col("change_row_type")
    there = image.isNotNull() & F.col(f"{IMAGE}.why").isNull() & F.col(f"{OLD}.why").isNull()
    there &= kind.isin("I", "U", "D", "B")
    return [
        (
            there & ~_has(IMAGE, layout.start + place) & ~filled(layout, place),
            f"neither after_image nor before_key has {layout.source.fields[place].name}, which is in the key",
        )
        for place in layout.key_places
    ]


def key_differs(layout: ColumnPlaces) -> Column:
    """Whether a key column differs between the two texts, among those that both have."""
    from pyspark.sql import functions as F

    found = []
    for place in layout.keys:
        there = [_has(side, layout.start + place) for side in (IMAGE, OLD)]
        same = F.col(f"{IMAGE}.v.c{place}").eqNullSafe(F.col(f"{OLD}.v.c{place}"))
        found.append(there[0] & there[1] & ~same)
    return any_of(found)
