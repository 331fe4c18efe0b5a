"""Masks assembled bit by bit, as native Spark expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...model import mask

if TYPE_CHECKING:
    from pyspark.sql import Column


def with_bits(words: Sequence[Column], bits: Mapping[int, Column]) -> Column:
    """The mask of these words with more bits set if their conditions hold."""
    return mask.from_words(set_bits(words, bits))


def set_bits(words: Sequence[Column], bits: Mapping[int, Column]) -> list[Column]:
    """The words of a mask with more bits set if their conditions hold."""
    from pyspark.sql import functions as F

    parts = [[word] for word in words]
    for at, condition in bits.items():
        word, bit = divmod(at, mask.WORD)
        one = (1 << bit) - (1 << 64 if bit == mask.WORD - 1 else 0)  # bigints are signed
        parts[word].append(F.when(condition, F.lit(one)).otherwise(F.lit(0)).cast("bigint"))
    return [mask.balanced(some, lambda a, b: a.bitwiseOR(b)) for some in parts]


def no_words(width: int) -> list[Column]:
    """Words of a mask of `width` bits, none set."""
    from pyspark.sql import functions as F

    return [F.lit(0).cast("bigint") for _ in range(-(-width // mask.WORD))]
