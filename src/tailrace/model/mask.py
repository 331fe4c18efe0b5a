"""Change masks and field maps, as bytes and as Spark columns.

A change mask is one big-endian integer with leading zero bytes trimmed. Bit *n* is the column with ordinal
*n* (0-based) in the change table, including header columns (spec/qlik.md §2). A field map (OpenEdge) counts
user columns from 1, starting with the least significant bit of the first byte (spec/openedge.md §2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column

FIELD_MAP_BYTES = 256
T = TypeVar("T")


def balanced(parts: Sequence[T], both: Callable[[T, T], T]) -> T:
    """Combines all parts pairwise, so that the result's depth is logarithmic in their number.

    Spark processes expressions recursively: a chain with one link per column would overflow its stack.

    >>> balanced("abcde", lambda a, b: f"({a}{b})")
    '(((ab)(cd))e)'
    """
    left = list(parts)
    while len(left) > 1:
        pairs = [both(a, b) for a, b in zip(left[::2], left[1::2], strict=False)]
        left = pairs + left[2 * len(pairs) :]
    return left[0]


def encode(ordinals: Iterable[int]) -> bytes:
    """Returns the change mask with these bits set.

    >>> encode([7, 8]).hex()
    '0180'
    >>> encode([])
    b''
    """
    value = 0
    for n in ordinals:
        value |= 1 << n
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def decode(mask: bytes | None) -> list[int]:
    """Returns the ordinals whose bits are set, ascending.

    >>> decode(bytes.fromhex("0180"))
    [7, 8]
    >>> decode(None)
    []
    """
    value = int.from_bytes(mask or b"", "big")
    return [n for n in range(value.bit_length()) if value >> n & 1]


def encode_field_map(positions: Iterable[int]) -> bytes:
    """Returns the OpenEdge field map with these 1-based positions set, trimmed at the end.

    >>> encode_field_map([1, 9]).hex()
    '0101'
    """
    value = 0
    for n in positions:
        value |= 1 << (n - 1)
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def decode_field_map(field_map: bytes | None) -> list[int]:
    """Returns the 1-based positions set in an OpenEdge field map.

    >>> decode_field_map(bytes.fromhex("0101"))
    [1, 9]
    """
    value = int.from_bytes(field_map or b"", "little")
    return [n + 1 for n in range(value.bit_length()) if value >> n & 1]


def pack(bits: npt.NDArray[np.bool_], ordinals: Sequence[int], *, little: bool = False) -> pa.Array:
    """Returns masks for many rows: `bits[i, k]` says whether row i has `ordinals[k]` set.

    The result is a binary array of change masks (big-endian, trimmed) or, with `little`, of field maps, in
    which ordinal 0 is position 1.

    >>> pack(np.array([[True, False], [False, False]]), [7, 8]).to_pylist()
    [b'\\x80', b'']
    """
    rows, width = len(bits), (max(ordinals, default=-1) + 8) // 8 * 8
    wide = np.zeros((rows, width), np.bool_)
    if len(ordinals):
        wide[:, list(ordinals)] = bits
    raw = np.packbits(wide, axis=1, bitorder="little")  # byte k holds ordinals 8k..8k+7
    used = (raw != 0)[:, ::-1].argmax(axis=1) if width else np.zeros(rows, np.int64)
    size = np.where(raw.any(axis=1), width // 8 - used, 0) if width else used
    if not little:
        raw = raw[:, ::-1]
    keep = np.arange(width // 8)[None, :] < size[:, None]
    if not little:
        keep = keep[:, ::-1]
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(size, out=offsets[1:])
    data = pa.py_buffer(np.ascontiguousarray(raw[keep]))
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), data])


ALWAYS = -1
"""The ordinal of a column that every image has, whatever its mask: a constant of a mapping."""


def unpacked(masks: Sequence[bytes], ordinals: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Returns which ordinals change masks have set, one row per mask and one column per ordinal; `ALWAYS` is
    always set.

    >>> unpacked([b"\\x80", b"\\x01\\x00"], [7, 8]).tolist(), unpacked([], [7]).shape
    ([[True, False], [False, True]], (0, 1))
    >>> unpacked([b"\\x02"], [ALWAYS, 0, 1]).tolist()
    [[True, False, True]]
    """
    size = max([*ordinals, 0]) // 8 + 1
    octets = bytearray(b"".join(m[-size:].rjust(size, b"\0") for m in masks))
    lowest_first = np.array(octets, np.uint8).reshape(len(masks), size)[:, ::-1]
    found = np.unpackbits(lowest_first, axis=1, bitorder="little")[:, list(ordinals)].astype(np.bool_)
    found[:, np.array(ordinals, np.int64) == ALWAYS] = True
    return found


def unpack(masks: pa.Array, ordinals: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """Returns which ordinals change masks have set, one row per mask and one column per ordinal; all for NULL
    masks.

    Returns None if all masks are NULL. Distinct masks are few, and each is decoded once.

    >>> unpack(pa.array([b"\\x80", None]), [7, 8]).tolist(), unpack(pa.array([None], pa.binary()), [7])
    ([[True, False], [True, True]], None)
    """
    if masks.null_count == len(masks):
        return None
    known = masks.dictionary_encode()
    bits = unpacked(known.dictionary.to_pylist(), ordinals)
    every = np.vstack([bits, np.ones((1, len(ordinals)), np.bool_)])
    found: npt.NDArray[np.bool_] = every[known.indices.fill_null(len(bits)).to_numpy()]
    return found


def is_set(mask: Column, ordinal: int) -> Column:
    """Returns whether a change mask has the bit of one ordinal set, as a native Spark expression
    (boolean)."""
    from pyspark.sql import functions as F

    byte, bit = divmod(ordinal, 8)
    octet = F.conv(F.hex(F.substring(mask, -(byte + 1), 1)), 16, 10).cast("int")
    inside = F.octet_length(mask) > byte
    return F.coalesce(F.when(inside, F.getbit(octet, F.lit(bit)) == 1), F.lit(False))


WORD = 64
"""Bits per word. Masks are processed word by word, so that the cost does not grow with the columns."""


def words(mask: Column, bits: int, *, little: bool = False) -> list[Column]:
    """Returns the first `bits` bits of a mask (with `little`, of a field map) as bigints of 64 bits, lowest
    first.

    Bits beyond the mask's bytes, and those of a NULL mask, are 0.
    """
    from pyspark.sql import functions as F

    found = []
    for k in range(-(-bits // WORD)):
        if little:
            digits = _other_end(F.hex(F.substring(mask, 8 * k + 1, 8)))
        else:
            digits = F.hex(F.substring(mask, -8 * (k + 1), 8))
        # Base -10: the signed word, since bigints are signed. No digits give NULL.
        found.append(F.coalesce(F.conv(digits, 16, -10).cast("bigint"), F.lit(0).cast("bigint")))
    return found


def from_words(words: Sequence[Column], *, little: bool = False) -> Column:
    """Returns the mask (field map) with these words, without zero bytes at its high end."""
    from pyspark.sql import functions as F

    if not words:
        return F.unhex(F.lit(""))
    padded = [F.lpad(F.hex(w), 16, "0") for w in words]
    if not little:
        # An odd number of digits means a first byte below 16: only whole zero bytes are removed.
        return F.unhex(F.ltrim(F.concat(*reversed(padded)), F.lit("0")))
    return F.unhex(F.regexp_replace(F.concat(*map(_other_end, padded)), "(00)+$", ""))


def _other_end(digits: Column) -> Column:
    """Returns hex bytes in reverse order. The expression is used once, because a plan grows with each use."""
    from pyspark.sql import functions as F

    return F.regexp_replace(F.reverse(digits), "(.)(.)", "$2$1")


def move(mask: Column, places: Mapping[int, int], *, little: bool = False, to_little: bool = False) -> Column:
    """Returns the mask with each bit moved: `places` maps old to new bits; other bits are dropped.

    With `little` (`to_little`) the old (new) mask is a field map, whose bit n is position n + 1. Adjacent
    bits that move alike are moved together, so a mask costs a few shifts instead of one per column.
    """
    from pyspark.sql import functions as F

    if not places:
        return F.when(mask.isNotNull(), F.unhex(F.lit("")))
    old = words(mask, max(places) + 1, little=little)
    return F.when(mask.isNotNull(), from_words(moved(old, places), little=to_little))


def add(mask: Column, ordinals: Collection[int], width: int) -> Column:
    """Returns the mask, of at most `width` ordinals, with the bits of these ordinals set; NULL stays NULL."""
    from pyspark.sql import functions as F

    some = words(F.lit(bytearray(encode(ordinals))), width)
    both = [a.bitwiseOR(b) for a, b in zip(words(mask, width), some, strict=True)]
    return F.when(mask.isNotNull(), from_words(both))


def with_bits(words: Sequence[Column], bits: Mapping[int, Column]) -> Column:
    """The mask of these words with more bits set if their conditions hold."""
    return from_words(set_bits(words, bits))


def set_bits(words: Sequence[Column], bits: Mapping[int, Column]) -> list[Column]:
    """The words of a mask with more bits set if their conditions hold."""
    from pyspark.sql import functions as F

    parts = [[word] for word in words]
    for at, condition in bits.items():
        word, bit = divmod(at, WORD)
        one = (1 << bit) - (1 << 64 if bit == WORD - 1 else 0)  # bigints are signed
        parts[word].append(F.when(condition, F.lit(one)).otherwise(F.lit(0)).cast("bigint"))
    return [balanced(some, lambda a, b: a.bitwiseOR(b)) for some in parts]


def no_words(width: int) -> list[Column]:
    """Words of a mask of `width` bits, none set."""
    from pyspark.sql import functions as F

    return [F.lit(0).cast("bigint") for _ in range(-(-width // WORD))]


def moved(old: Sequence[Column], places: Mapping[int, int]) -> list[Column]:
    """Returns the words of a mask with each bit moved, from the words of the old one; see `move`."""
    from pyspark.sql import functions as F

    made: list[list[Column]] = [[] for _ in range(max(places.values(), default=-1) // WORD + 1)]
    for start, to, size in _runs(places):
        field = F.shiftrightunsigned(old[start // WORD], start % WORD)
        if size < WORD:
            field = field.bitwiseAND(F.lit((1 << size) - 1).cast("bigint"))
        made[to // WORD].append(F.shiftleft(field, to % WORD))
    zero = F.lit(0).cast("bigint")
    return [balanced(parts, lambda a, b: a.bitwiseOR(b)) if parts else zero for parts in made]


def _runs(places: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Returns (first old bit, first new bit, length) of runs that move by the same distance within a word."""
    runs: list[tuple[int, int, int]] = []
    for old in sorted(places):
        new = places[old]
        if runs:
            start, to, size = runs[-1]
            if start + size == old and to + size == new and old % WORD and new % WORD:
                runs[-1] = (start, to, size + 1)
                continue
        runs.append((old, new, 1))
    return runs


def bits(mask: Column, ordinals: Sequence[int], *, little: bool = False) -> list[Column]:
    """Returns for each ordinal whether its bit is set (boolean, never NULL), as native Spark expressions."""
    from pyspark.sql import functions as F

    found = words(mask, max(ordinals, default=-1) + 1, little=little)
    return [F.getbit(found[n // WORD], F.lit(n % WORD)) == 1 for n in ordinals]


def any_set(words: Sequence[Column], bits: Iterable[int]) -> Column:
    """Returns whether one of these bits is set in a mask of these words (boolean, never NULL)."""
    from pyspark.sql import functions as F

    wanted = [0] * len(words)
    for n in bits:
        wanted[n // WORD] |= 1 << (n % WORD)
    found = [F.lit(False)]
    for word, ones in zip(words, wanted, strict=True):
        if ones:
            signed = ones - (1 << WORD) if ones >> (WORD - 1) else ones
            found.append(word.bitwiseAND(F.lit(signed).cast("bigint")) != 0)
    return balanced(found, lambda a, b: a | b)


def beyond(mask: Column, width: int) -> Column:
    """Returns whether a mask has a bit set for an ordinal of `width` or more (boolean, NULL for a
    NULL mask)."""
    from pyspark.sql import functions as F

    byte, bit = divmod(width, 8)
    size = F.octet_length(mask)
    octet = F.coalesce(F.conv(F.hex(F.substring(mask, -(byte + 1), 1)), 16, 10).cast("int"), F.lit(0))
    edge = (size > byte) & (F.shiftright(octet, bit) != 0)
    return edge | F.hex(F.substring(mask, F.lit(1), F.greatest(size - byte - 1, F.lit(0)))).rlike("[1-9A-F]")


def names(mask: Column, places: Mapping[int, str], *, little: bool = False) -> Column:
    """Returns the names whose bits are set, in order of the bits: array<string>, empty for no bit or a NULL
    mask."""
    from pyspark.sql import functions as F

    order = sorted(places)
    there = bits(mask, order, little=little)
    return F.array_compact(
        F.array(*[F.when(bit, F.lit(places[n])) for n, bit in zip(order, there, strict=True)]).cast(
            "array<string>"
        )
    )
