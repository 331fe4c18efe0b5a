"""solidDB's LOGADDR and change sequences, and the bodies of DDL records.

Source: spec/soliddb.md §4 (structure inferred there from the two published values), §5.2. A LOGADDR has 20 or
28 bytes that compare in order: the position's id (8), the index in the transaction (4, all ones: after it),
transaction id and statement id (4 or 8 each). Its change sequence depends on the first bit:

- 0 (all of solidDB's own addresses): the number in the first 12 bytes, in 35 digits;
- 1 (made from a change sequence that is not from solidDB): the next 55 bits are the sequence's 16 digits of
  time, and the 8 bytes after them the 19 digits of its change number.

Both kinds keep the order, and the second kind sorts after the first. A sequence less than 2**95 gets an
address of the first kind, any other one of the second. The remaining bytes are 0 except for the last, the
*rank* of the record (`RANKS`). solidDB's own addresses end in a transaction id.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import FormatError
from ..model.sequence import TIME_DIGITS, WIDTH
from .soliddb_rows import flat

Bytes = npt.NDArray[np.uint8]
LENGTHS = (20, 28)
"""Lengths of a LOGADDR: releases up to 100, release 200."""
OWN = 12
"""The number of bytes of solidDB's own addresses that determine the order."""
OWN_LIMIT = 1 << 95
MADE = 15
"""The number of bytes of an address of the second kind that hold the change sequence."""
RANKS = {"start": 0, "B": 1, "D": 2, "I": 3, "U": 4, "T": 5, "commit": 9}
"""The last byte of an address that was made from a change sequence."""

TRUNCATE = 73
DDL = {
    45: "create table", 17: "drop table", 47: "rename table", 22: "alter table", TRUNCATE: "truncate table",
    16: "create index", 18: "drop index", 46: "create view", 20: "drop view", 28: "create sequence",
    30: "drop sequence", 27: "create counter", 29: "drop counter",
}  # fmt: skip
"""Statements by the LOGRECID of a DDL record."""


def make(seq: str, rank: int, length: int = 20) -> bytes:
    """Returns the address of a record, made from its change sequence.

    Raises:
        FormatError: the change sequence does not have 35 digits.

    >>> make("00000000000000000000000000000000661", 4).hex().upper()
    '0000000000000000000002950000000000000004'
    >>> make("20231114221320120000000000000000007", 4).hex().upper()
    '87300255A83F2C00000000000000070000000004'
    """
    if len(seq) != WIDTH or not (seq.isascii() and seq.isdigit()):
        raise FormatError(f"change sequence {seq!r} does not fit into a LOGADDR: it is not {WIDTH} digits")
    if int(seq) < OWN_LIMIT:
        head = int(seq).to_bytes(OWN, "big")
    else:
        time = 1 << 55 | int(seq[:TIME_DIGITS])
        head = time.to_bytes(7, "big") + int(seq[TIME_DIGITS:]).to_bytes(8, "big")
    return head.ljust(length - 1, b"\0") + bytes([rank])


def sequence_of(address: bytes) -> str:
    """Returns the change sequence of an address.

    Raises:
        FormatError: the address does not have 20 or 28 bytes, or its time or number has too many digits.

    >>> sequence_of(bytes.fromhex("0000000000000001FFFFFFFF0000029500000295"))
    '00000000000000000000000008589934591'
    """
    if len(address) not in LENGTHS:
        raise FormatError(f"LOGADDR has {len(address)} bytes, not 20 or 28", where=address.hex().upper())
    if address[0] < 0x80:
        return f"{int.from_bytes(address[:OWN], 'big'):0{WIDTH}d}"
    time = int.from_bytes(bytes([address[0] & 0x7F]) + address[1:7], "big")
    number = int.from_bytes(address[7:MADE], "big")
    if time >= 10**TIME_DIGITS or number >= 10 ** (WIDTH - TIME_DIGITS):
        raise FormatError("LOGADDR does not fit into 35 digits", where=address.hex().upper())
    return f"{time:0{TIME_DIGITS}d}{number:0{WIDTH - TIME_DIGITS}d}"


def sequences(addresses: Bytes) -> pa.StringArray:
    """Returns the change sequences of valid addresses of one length (see `sequence_of`), one per row.

    >>> one = make("20231114221320120000000000000000007", 4)
    >>> sequences(np.frombuffer(one, np.uint8)[None, :]).to_pylist()
    ['20231114221320120000000000000000007']
    """
    n = len(addresses)
    made = np.zeros((n, WIDTH), np.uint8)
    own = addresses[:, 0] < 0x80
    if own.any():
        limbs = [addresses[own, i : i + 4].copy().view(">u4")[:, 0].astype(np.uint64) for i in (0, 4, 8)]
        digits = np.zeros((len(limbs[0]), WIDTH + 1), np.uint8)
        for end in range(WIDTH + 1, 0, -_CHUNK):
            _digits(digits[:, end - _CHUNK : end], _divided(limbs))
        made[own] = digits[:, 1:]
    if not own.all():
        octets = np.zeros((n - int(own.sum()), 16), np.uint8)
        octets[:, 1:] = addresses[~own, :MADE]
        octets[:, 1] &= 0x7F
        time, number = (octets[:, i : i + 8].copy().view(">u8")[:, 0].astype(np.uint64) for i in (0, 8))
        digits = np.zeros((len(octets), WIDTH), np.uint8)
        _digits(digits[:, :TIME_DIGITS], time)
        _digits(digits[:, TIME_DIGITS:], number)
        made[~own] = digits
    ends = pa.py_buffer(np.arange(n + 1, dtype=np.int32) * WIDTH)
    return pa.Array.from_buffers(pa.string(), n, [None, ends, pa.py_buffer(made.reshape(-1))])


def addresses(seqs: pa.StringArray, ranks: npt.NDArray[np.uint8], length: int = LENGTHS[0]) -> Bytes:
    """Returns the addresses of records, made from their change sequences (see `make`), one per row.

    Raises:
        FormatError: a change sequence does not have 35 digits.

    >>> addresses(pa.array(["00000000000000000000000000000000661"]), np.array([4], np.uint8)).tobytes().hex()
    '0000000000000000000002950000000000000004'
    """
    digits = _digits_of(seqs)
    n = len(digits)
    made = np.zeros((n, length), np.uint8)
    made[:, -1] = ranks
    limbs = _limbs(_number(digits[:, : WIDTH - 18]), _number(digits[:, WIDTH - 18 :]))
    own = limbs[0] < OWN_LIMIT >> 64
    for place, limb in enumerate(limbs):
        made[:, 4 * place : 4 * place + 4] = _octets(limb)[:, 4:]
    if not own.all():
        other = digits[~own]
        time = _octets(_number(other[:, :TIME_DIGITS]) | np.uint64(1 << 55))
        made[~own, :MADE] = np.hstack([time[:, 1:], _octets(_number(other[:, TIME_DIGITS:]))])
    return made


def _digits_of(seqs: pa.StringArray) -> Bytes:
    """Returns the digits of change sequences as numbers 0 to 9, one sequence per row."""
    sizes = pc.binary_length(seqs).fill_null(0).to_numpy(zero_copy_only=False)
    odd = np.flatnonzero(sizes != WIDTH)
    if not len(odd):
        octets, starts, _ = flat(seqs)
        first = int(starts[0]) if len(seqs) else 0
        digits: Bytes = octets[first : first + WIDTH * len(seqs)].reshape(-1, WIDTH) - np.uint8(48)
        odd = np.flatnonzero((digits > 9).any(axis=1))
    if len(odd):
        make(seqs[int(odd[0])].as_py() or "NULL", 0)  # raises the error
    return digits


def _number(digits: Bytes) -> npt.NDArray[np.uint64]:
    """Returns the numbers with up to 19 digits."""
    powers = 10 ** np.arange(digits.shape[1] - 1, -1, -1, dtype=np.uint64)
    found: npt.NDArray[np.uint64] = digits.astype(np.uint64) @ powers
    return found


def _limbs(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> list[npt.NDArray[np.uint64]]:
    """Returns high * 10**18 + low in limbs of 32 bits, highest first; the highest limb is not cut."""
    half, ones = np.uint64(32), np.uint64(2**32 - 1)
    a1, a0 = high >> half, high & ones
    c1, c0 = (np.uint64(part) for part in divmod(10**18, 2**32))
    w0 = (a0 * c0 & ones) + (low & ones)
    w1 = (a0 * c0 >> half) + (a0 * c1 & ones) + (a1 * c0 & ones) + (low >> half) + (w0 >> half)
    w2 = (a0 * c1 >> half) + (a1 * c0 >> half) + a1 * c1 + (w1 >> half)
    return [w2, w1 & ones, w0 & ones]


def _octets(values: npt.NDArray[np.uint64]) -> Bytes:
    """Returns numbers as 8 bytes each, big-endian."""
    made: Bytes = values.astype(">u8").view(np.uint8).reshape(-1, 8)
    return made


_CHUNK = 9  # digits of a number below 2**32


def _divided(limbs: list[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    """Divides numbers of 32-bit limbs (highest first) in place, and returns the remainder: the
    lowest digits."""
    base = np.uint64(10**_CHUNK)
    rest = np.zeros(len(limbs[0]), np.uint64)
    for i, limb in enumerate(limbs):
        limbs[i], rest = np.divmod(rest << np.uint64(32) | limb, base)
    return rest


def _digits(into: Bytes, values: npt.NDArray[np.uint64]) -> None:
    """Writes numbers as decimal digits with leading zeros."""
    for place in reversed(range(into.shape[1])):
        values, digit = np.divmod(values, np.uint64(10))
        into[:, place] = digit + np.uint64(48)


def ddl(body: bytes) -> tuple[int, str]:
    """Returns LOGRECID and INFO of a DDL record.

    The id has four bytes, big-endian, or little-endian if only that is a known id. The name follows; NULs
    between its parts become dots.

    Raises:
        FormatError: there are fewer than four bytes, or the name is not valid text.

    >>> ddl(b"\\0\\0\\0\\x49SHOP.ITEM\\0")
    (73, 'SHOP.ITEM')
    >>> ddl(b"\\x2d\\0\\0\\0CAT\\0SHOP\\0ITEM\\0")
    (45, 'CAT.SHOP.ITEM')
    """
    if len(body) < 4:
        raise FormatError(f"the body of a DDL record has {len(body)} bytes, not 4 or more")
    kind = int.from_bytes(body[:4], "big")
    other = int.from_bytes(body[:4], "little")
    try:
        info = body[4:].decode().rstrip("\0").replace("\0", ".")
    except UnicodeDecodeError as error:
        raise FormatError("the name in a DDL record is not UTF-8", where=body.hex().upper()) from error
    return (other if kind not in DDL and other in DDL else kind), info


def ddl_body(kind: int, info: str) -> bytes:
    """Returns the body of a DDL record.

    >>> ddl_body(73, "SHOP.ITEM")
    b'\\x00\\x00\\x00ISHOP.ITEM\\x00'
    """
    return kind.to_bytes(4, "big") + info.encode() + b"\0"


def name_parts(info: str) -> list[str]:
    """Returns the parts of a qualified name, separated by dots outside double quotes.

    >>> name_parts('CAT."a.b".ITEM')
    ['CAT', 'a.b', 'ITEM']
    """
    parts, quoted, now = [], False, ""
    for letter in info:
        if letter == '"':
            quoted = not quoted
        elif letter == "." and not quoted:
            parts.append(now)
            now = ""
        else:
            now += letter
    return [*parts, now]


def short(address: bytes) -> bytes:
    """Returns a LOGADDR as the 20 bytes of a position.

    Raises:
        FormatError: the address does not have 20 or 28 bytes, or an id has more than 32 bits.

    >>> short(bytes.fromhex("000000000000015FFFFFFFFF00000000000006DD00000000000006DD")).hex().upper()
    '000000000000015FFFFFFFFF000006DD000006DD'
    """
    if len(address) == LENGTHS[0]:
        return address
    if len(address) != LENGTHS[1] or address[12:16] != bytes(4) or address[20:24] != bytes(4):
        raise FormatError("a LOGADDR that does not fit into 20 bytes", where=address.hex().upper())
    return address[:12] + address[16:20] + address[24:]


def long(position: bytes, length: int) -> bytes:
    """Returns the LOGADDR from which `short` made a position."""
    if length == LENGTHS[0]:
        return position
    return position[:12] + bytes(4) + position[12:16] + bytes(4) + position[16:]


def behind(position: bytes) -> bytes:
    """Returns the position after a record: everything before it is done.

    >>> behind(bytes(19) + b"\\xff").hex()[-6:]
    '000100'
    """
    return (int.from_bytes(position, "big") + 1).to_bytes(20, "big")


def record_before(position: bytes) -> bytes:
    """Returns the record directly before a position."""
    return (max(1, int.from_bytes(position, "big")) - 1).to_bytes(20, "big")
