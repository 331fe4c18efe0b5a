"""Words of masks as Spark expressions, either end first, against Python's integers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.model import mask

pytestmark = pytest.mark.spark
MASKS = st.lists(st.binary(max_size=24), min_size=20, max_size=40)
"""No bytes, some of a word, words and a part of one; zero bytes at either end."""
BITS = 192


@settings(max_examples=3)
@given(masks=MASKS)
def test_words_are_the_bits_whichever_end_is_first(spark: SparkSession, masks: list[bytes]) -> None:
    df = spark.createDataFrame([(m,) for m in [*masks, b"\x00\x01\x00", b"\x80" * 9]], "m binary")
    for end in ("little", "big"):
        words = mask.words(F.col("m"), BITS, little=end == "little")
        back = (mask.from_words(words, little=True), mask.from_words(words))
        for m, little, big, *found in df.select("m", *back, *words).collect():
            value = int.from_bytes(m, end)
            size = (value.bit_length() + 7) // 8
            assert [n % (1 << 64) for n in found] == [value >> 64 * k & (1 << 64) - 1 for k in range(3)]
            assert (bytes(little), bytes(big)) == (
                value.to_bytes(size, "little"),
                value.to_bytes(size, "big"),
            )
