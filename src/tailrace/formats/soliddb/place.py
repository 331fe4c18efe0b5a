"""LOGADDR and change sequences as native Spark expressions; `wire.soliddb_address` explains them, and does
the same for single values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.sequence import TIME_DIGITS, WIDTH
from ...wire.soliddb_address import LENGTHS, MADE, OWN, RANKS

if TYPE_CHECKING:
    from pyspark.sql import Column

_MADE_BIT = 1 << 55


def sequence_of(address: Column) -> Column:
    """The change sequence of an address; NULL when it has none."""
    from pyspark.sql import functions as F

    number = _decimal(F.substring(address, 1, 8)).cast("decimal(20,0)")
    place = _decimal(F.substring(address, 9, OWN - 8)).cast("decimal(10,0)")
    own = (number * F.lit(1 << 32).cast("decimal(10,0)") + place).cast("string")
    time = _decimal(F.substring(address, 1, 7)).cast("bigint") - _MADE_BIT
    count = _decimal(F.substring(address, 8, 8))
    fits = (time < 10**TIME_DIGITS) & (F.length(count) <= WIDTH - TIME_DIGITS)
    made = F.concat(_padded(time.cast("string"), TIME_DIGITS), _padded(count, WIDTH - TIME_DIGITS))
    known = F.octet_length(address).isin(*LENGTHS)
    return F.when(known & _is_own(address), _padded(own, WIDTH)).when(known & fits, made)


def has_no_sequence(address: Column) -> Column:
    """Whether an address of a known length has none: its time or its number has too many digits."""
    from pyspark.sql import functions as F

    time, count = (_MADE_BIT + 10**TIME_DIGITS).to_bytes(7, "big"), 10 ** (WIDTH - TIME_DIGITS)
    beyond = F.substring(address, 1, 7) >= F.lit(time)
    beyond |= F.substring(address, 8, 8) >= F.lit(count.to_bytes(8, "big"))
    return ~_is_own(address) & beyond


def rank_of(address: Column) -> Column:
    """The rank of an address that was made from a change sequence (int); NULL for solidDB's own."""
    from pyspark.sql import functions as F

    size = F.octet_length(address)

    def empty(after: int) -> Column:
        tail = [
            F.substring(address, after + 1, n - after - 1) == F.lit(bytes(n - after - 1)) for n in LENGTHS
        ]
        return F.when(size == LENGTHS[0], tail[0]).when(size == LENGTHS[1], tail[1])

    octet = F.substring(address, -1, 1)
    last = F.coalesce(*(F.when(octet == F.lit(bytes([n])), n) for n in RANKS.values()))
    return F.when(F.when(_is_own(address), empty(OWN)).otherwise(empty(MADE)), last)


def _is_own(address: Column) -> Column:
    from pyspark.sql import functions as F

    return F.substring(address, 1, 1) < F.lit(b"\x80")


def _decimal(octets: Column) -> Column:
    """Up to 8 bytes as an unsigned number, in text."""
    from pyspark.sql import functions as F

    return F.conv(F.hex(octets), 16, 10)


def _padded(number: Column, width: int) -> Column:
    from pyspark.sql import functions as F

    return F.lpad(number, width, "0")
