"""LOGADDR and change sequences as expressions; `wire.soliddb_address` explains them, and does the same for
single values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.sequence import TIME_DIGITS, WIDTH
from ...wire.soliddb_address import LENGTHS, MADE, OWN, RANKS
from ..arrow_functions import AnyColumn, Functions

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
    return F.when(known & _is_own(F, address), _padded(own, WIDTH)).when(known & fits, made)


def has_no_sequence(f: Functions, address: AnyColumn) -> AnyColumn:
    """Whether an address of a known length has none: its time or its number has too many digits."""
    time, count = (_MADE_BIT + 10**TIME_DIGITS).to_bytes(7, "big"), 10 ** (WIDTH - TIME_DIGITS)
    beyond = f.substring(address, 1, 7) >= f.lit(time)
    beyond |= f.substring(address, 8, 8) >= f.lit(count.to_bytes(8, "big"))
    return ~_is_own(f, address) & beyond


def rank_of(f: Functions, address: AnyColumn) -> AnyColumn:
    """The rank of an address that was made from a change sequence (int); NULL for solidDB's own."""
    size = f.octet_length(address)

    def empty(after: int) -> AnyColumn:
        tail = [
            f.substring(address, after + 1, n - after - 1) == f.lit(bytes(n - after - 1)) for n in LENGTHS
        ]
        return f.when(size == LENGTHS[0], tail[0]).when(size == LENGTHS[1], tail[1])

    octet = f.substring(address, -1, 1)
    last = f.coalesce(*(f.when(octet == f.lit(bytes([n])), n) for n in RANKS.values()))
    return f.when(f.when(_is_own(f, address), empty(OWN)).otherwise(empty(MADE)), last)


def _is_own(f: Functions, address: AnyColumn) -> AnyColumn:
    return f.substring(address, 1, 1) < f.lit(b"\x80")


def _decimal(octets: Column) -> Column:
    """Up to 8 bytes as an unsigned number, in text."""
    from pyspark.sql import functions as F

    return F.conv(F.hex(octets), 16, 10)


def _padded(number: Column, width: int) -> Column:
    from pyspark.sql import functions as F

    return F.lpad(number, width, "0")
