"""LOGADDR and change sequences as native Spark expressions; `wire.soliddb_address` explains them, and does
the same for single values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.sequence import TIME_DIGITS, WIDTH
from ...wire.soliddb_address import LENGTHS, MADE, OWN, OWN_LIMIT, RANKS

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


def address_of(seq: Column, rank: Column, length: int) -> Column:
    """The address of a record made from its change sequence; the query fails if that is not 35 digits."""
    from pyspark.sql import functions as F

    number = seq.cast("decimal(38,0)")
    limit = F.lit(1 << 32).cast("decimal(10,0)")
    own = F.concat(
        F.lpad(F.hex(F.call_function("div", number, limit)), 16, "0"),
        F.lpad(F.hex((number % limit).cast("bigint")), 8, "0"),
        F.lit("00" * (length - OWN - 1)),
    )
    time = F.substring(seq, 1, TIME_DIGITS).cast("bigint") + _MADE_BIT
    made = F.concat(
        F.lpad(F.hex(time), 14, "0"),
        F.lpad(F.conv(F.substring(seq, TIME_DIGITS + 1, WIDTH - TIME_DIGITS), 10, 16), 16, "0"),
        F.lit("00" * (length - MADE - 1)),
    )
    said = F.concat(
        F.lit("a change sequence that does not fit into a LOGADDR: "), F.coalesce(seq, F.lit("NULL"))
    )
    head = (
        F.when(~F.coalesce(seq.rlike(f"^[0-9]{{{WIDTH}}}$"), F.lit(False)), F.raise_error(said))
        .when(seq < f"{OWN_LIMIT:0{WIDTH}d}", own)
        .otherwise(made)
    )
    return F.unhex(F.concat(head, F.lpad(F.hex(rank.cast("bigint")), 2, "0")))


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


def with_rank(address: Column, rank: int) -> Column:
    """The same place with another rank."""
    from pyspark.sql import functions as F

    digits = F.hex(address)
    return F.unhex(F.concat(digits.substr(F.lit(1), F.length(digits) - 2), F.lit(f"{rank:02X}")))


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
