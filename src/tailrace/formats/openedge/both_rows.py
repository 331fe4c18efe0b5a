"""The two rows of a change: its tracking row and its image, under names that tell them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...model.quoting import quoted
from ..base import OWN, RAW, WHY
from .policy import CapturedTable
from .split import SPLIT
from .tables import CHANGE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

THERE = OWN + "there"
"""Added to either row: true, NULL if there is none."""


@dataclass(frozen=True)
class TrackedTable:
    """The data of one source table: tracking rows, images (None: level 0), names of the input tables,
    whether they have the columns that tailrace adds."""

    source: CapturedTable
    tracking: DataFrame
    images: DataFrame | None
    given: Mapping[str, str]
    added: bool = False
    joined: DataFrame | None = None
    """Both, joined already (`by_range`)."""


def of_tracking(name: str) -> Column:
    """A column of the tracking row."""
    from pyspark.sql import functions as F

    return F.col(quoted(f"_t:{name}"))


def of_image(name: str) -> Column:
    """A column of the image."""
    from pyspark.sql import functions as F

    return F.col(quoted(f"_c:{name}"))


def both_rows(of: TrackedTable) -> DataFrame:
    """Tracking row `_t:…` and image `_c:…` of each change joined, NULL if there is none.

    Not as structs: what nobody asks for (the rows as they came) is then not made and not shuffled.
    """
    from pyspark.sql import functions as F

    if of.joined is not None:
        return of.joined

    def named(df: DataFrame, side: str) -> DataFrame:
        columns = [F.col(quoted(c)).alias(f"{side}:{c}") for c in df.columns]
        return df.select(*columns, F.lit(True).alias(f"{side}:{THERE}"))

    left = named(of.tracking, "_t")
    if of.images is None:
        kinds = {c.name: c.type for c in CHANGE.columns} | {SPLIT: "string", WHY: "string", RAW: "string"}
        nothing = {**kinds, THERE: "boolean"}
        return left.withColumns({f"_c:{c}": F.lit(None).cast(t) for c, t in nothing.items()})
    right = named(of.images, "_c")
    return left.join(right, of_tracking("_Change-Sequence") == of_image("_Change-Sequence"), "full_outer")


def raw_rows() -> Column:
    """Both original rows, as a JSON array."""
    from pyspark.sql import functions as F

    return F.concat(F.lit("["), F.concat_ws(",", of_tracking(RAW), of_image(RAW)), F.lit("]"))
