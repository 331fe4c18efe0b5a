"""The layout of values in DATA of solidDB's row records. Source: spec/soliddb.md §5.1.

The layout is not published; those here are candidates, declared as data. Another one is a `RowLayout` in a
module, named by its import path (`package.module:NAME`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

REASONS = (
    "",
    "DATA ends before column {}",
    "DATA ends in column {}",
    "column {} refers to a blob outside DATA",
    "column {} has an impossible length",
)
"""Errors of rows; the code is the index in this tuple."""
_, ENDS_BEFORE, ENDS_IN, BLOB, BAD_LENGTH = range(5)


class Heads(NamedTuple):
    """The bytes before one column's values.

    Attributes:
        size: the value's size; -1 for NULL.
        begin: the start of the value.
        wrong: the error code.
        odd: which sizes are encoded differently from how `lengths` writes them; None if unknown.
    """

    size: Ints
    begin: Ints
    wrong: npt.NDArray[np.int8]
    odd: Bools | None = None


@dataclass(frozen=True)
class RowLayout:
    """One layout of a row's values in DATA, column by column, each preceded by its length.

    Attributes:
        name: its name in options.
        about: a description.
        heads: parses the bytes at `at` before values that end at `ends` or earlier.
        lengths: returns these bytes for values of the given sizes (-1: NULL).
        empty_is_null: whether an empty value equals NULL.
    """

    name: str
    about: str
    heads: Callable[[Bytes, Ints, Ints], Heads]
    lengths: Callable[[Ints], pa.Array]
    empty_is_null: bool


@dataclass(frozen=True)
class Rows:
    """Rows split into columns.

    Attributes:
        values: raw values; null for NULL.
        why: the error of each row; null if it is valid.
        odd: whether a size is encoded differently from how it is written; None if unknown.
    """

    values: list[pa.Array]
    why: pa.Array
    odd: Bools | None = None


def split(data: pa.Array, ncolumns: int, layout: RowLayout) -> Rows:
    """Returns the raw values of each column of many rows. An invalid row has nulls from the error on.

    >>> rows = split(pa.array([b"\\x01a\\x00", b"\\x02b"]), 2, LAYOUTS["A"])
    >>> [v.to_pylist() for v in rows.values], rows.why.to_pylist()
    ([[b'a', None], [None, None]], [None, 'DATA ends in column 1'])
    """
    buf, starts, ends = flat(data)
    n = len(starts)
    at, code, place = starts.copy(), np.zeros(n, np.int8), np.zeros(n, np.int64)
    odd: Bools | None = np.zeros(n, np.bool_)
    values = []
    for column in range(ncolumns):
        head = layout.heads(buf, at, ends)
        wrong = np.where(
            (head.wrong == 0) & (head.begin + np.maximum(head.size, 0) > ends), ENDS_IN, head.wrong
        )
        odd = None if odd is None or head.odd is None else odd | head.odd
        fresh = (code == 0) & (wrong != 0)
        code[fresh], place[fresh] = wrong[fresh], column + 1
        good = code == 0
        null = ~good | (head.size < 0)
        begin = np.where(good, head.begin, ends)
        at = np.where(null, begin, begin + head.size)
        values.append(cut(buf, begin, at, ~null))
    why = _reasons(code, place)
    left = (code == 0) & (at != ends)
    if left.any():
        why = pc.if_else(pa.array(left), "bytes left over after the last column", why)
    return Rows(values, why, odd)


def join(columns: Sequence[pa.Array], rows: int, layout: RowLayout) -> pa.Array:
    """Returns the DATA of many rows from the raw values of each column.

    >>> join([pa.array([b"a"]), pa.array([None], pa.binary())], 1, LAYOUTS["B"]).to_pylist()
    [b'\\x00\\x00\\x00\\x01a\\xff\\xff\\xff\\xff']
    """
    parts = []
    for values in columns:
        size = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        parts += [layout.lengths(size), pc.fill_null(values, b"")]
    if not parts:
        return pa.array([b""] * rows, pa.binary())
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def flat(data: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """Returns the bytes of a binary array, and the start and end of each value; a null has no bytes."""
    data = pc.fill_null(data, b"") if data.null_count else data
    _, offsets, values = data.buffers()
    if not len(data) or offsets is None:
        return np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)
    places = np.frombuffer(offsets, np.int32)[data.offset : data.offset + len(data) + 1].astype(np.int64)
    buf = np.zeros(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)
    return buf, places[:-1], places[1:]


def cut(buf: Bytes, begin: Ints, end: Ints, valid: Bools) -> pa.Array:
    """Returns pieces of a buffer, in ascending order, as one binary array; null where not valid.

    Pieces and the gaps between them form one array over the same bytes. Taking every second entry copies them
    in native code.
    """
    n = len(begin)
    if not n:
        return pa.array([], pa.binary())
    borders = np.empty(2 * n + 1, np.int32)
    borders[:-1:2], borders[1::2], borders[-1] = begin, end, end[-1]
    both = pa.Array.from_buffers(pa.binary(), 2 * n, [None, pa.py_buffer(borders), pa.py_buffer(buf)])
    taken = both.take(pa.array(np.arange(0, 2 * n, 2, dtype=np.int32)))
    if valid.all():
        return taken
    _, offsets, content = taken.buffers()
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), n, [bits, offsets, content or pa.py_buffer(b"")])


def binary(matrix: Bytes, widths: Ints | None = None) -> pa.Array:
    """Returns a binary array of a matrix's rows, each truncated to its width."""
    n, most = matrix.shape
    widths = np.full(n, most, np.int64) if widths is None else widths
    kept = matrix if (widths == most).all() else matrix[np.arange(most)[None, :] < widths[:, None]]
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(widths, out=offsets[1:])
    content = pa.py_buffer(np.ascontiguousarray(kept).reshape(-1))
    return pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), content])


def _reasons(code: npt.NDArray[np.int8], place: Ints) -> pa.Array:
    """Returns one text per row; the few distinct texts are created once."""
    kinds, which = np.unique(code.astype(np.int64) * 1_000_000 + place, return_inverse=True)
    texts = [REASONS[k // 1_000_000].format(k % 1_000_000) or None for k in kinds.tolist()]
    return pa.array(texts, pa.string()).take(pa.array(which))


def at_every_byte(buf: Bytes, dtype: str) -> npt.NDArray[Any]:
    """Returns the buffer as integers that begin at every byte, with zeros after its end."""
    padded = np.concatenate([buf, np.zeros(8, np.uint8)])
    every: npt.NDArray[Any] = np.ndarray((len(buf) + 1,), dtype, padded, strides=(1,))
    return every


def _v_heads(buf: Bytes, at: Ints, ends: Ints) -> Heads:
    """Parses lengths: a first byte up to 0xFD is the length; after 0xFE follow four bytes of length,
    little-endian.

    After 0xFF, the value is a reference to a blob. Length 0 is NULL.
    """
    inside = at < ends
    first = buf[np.where(inside, at, 0)] if len(buf) else np.zeros(len(at), np.uint8)
    first = np.where(inside, first, 0)
    long = first >= 0xFE
    size = first.astype(np.int64)
    if long.any():
        size[long] = at_every_byte(buf, "<u4")[at[long] + 1]
    begin = at + np.where(long, 5, 1)
    wrong = np.select([~inside, long & (begin > ends), first == 0xFF], [ENDS_BEFORE, ENDS_IN, BLOB], 0)
    return Heads(np.where(size == 0, -1, size), begin, wrong.astype(np.int8), long & (size <= 0xFD))


def _v_lengths(size: Ints) -> pa.Array:
    long = size > 0xFD
    made = np.zeros((len(size), 5), np.uint8)
    made[:, 1:] = np.maximum(size, 0).astype("<u4").view(np.uint8).reshape(-1, 4)
    made[:, 0] = np.where(long, 0xFE, np.maximum(size, 0))
    if not long.any():
        return binary(made[:, :1])
    return binary(made, np.where(long, 5, 1))


def _be_heads(buf: Bytes, at: Ints, ends: Ints) -> Heads:
    """Parses lengths of four bytes, big-endian; -1 is NULL."""
    begin = at + 4
    fits = begin <= ends
    size = np.where(fits, at_every_byte(buf, ">i4")[at], 0).astype(np.int64)
    wrong = np.select([at >= ends, ~fits, size < -1], [ENDS_BEFORE, ENDS_IN, BAD_LENGTH], 0)
    return Heads(np.maximum(size, -1), begin, wrong.astype(np.int8), np.zeros(len(at), np.bool_))


def _be_lengths(size: Ints) -> pa.Array:
    return binary(size.astype(">i4").view(np.uint8).reshape(-1, 4))


LAYOUTS: dict[str, RowLayout] = {
    "A": RowLayout(
        "A", "as the engine stores values: one byte of length, or 0xFE and four; 0 is NULL",
        _v_heads, _v_lengths, empty_is_null=True,
    ),
    "B": RowLayout(
        "B", "four bytes of length, most significant first; -1 is NULL",
        _be_heads, _be_lengths, empty_is_null=False,
    ),
}  # fmt: skip
"""The declared row layouts by name."""


@cache
def row_layout(name: str) -> RowLayout:
    """Returns a declared layout, or one of another module by import path.

    Raises:
        ConfigError: there is no such layout.

    >>> row_layout("a").name
    'A'
    >>> row_layout("C")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: no row layout 'C'
      hint: use one of A, B, or your own: package.module:LAYOUT
    """
    if name.upper() in LAYOUTS:
        return LAYOUTS[name.upper()]
    module, _, attribute = name.partition(":")
    hint = f"use one of {', '.join(LAYOUTS)}, or your own: package.module:LAYOUT"
    if not attribute:
        raise ConfigError(f"no row layout {name!r}", hint=hint)
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"row layout {name!r} cannot be imported: {error}", hint=hint) from error
    if not isinstance(found, RowLayout):
        raise ConfigError(f"{name} is not a RowLayout", hint=hint)
    return found
