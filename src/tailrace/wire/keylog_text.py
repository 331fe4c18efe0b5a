"""Parses the `name="value"` text of a key log's `before_key`, `after_key` and `after_image` into Arrow
columns.

Source: spec/sqdr.md §4. Items are separated by one space. A NULL is `C=&xsi:nil="true"`,
`C="&xsi:nil="true""` or `C="&xsi:nil=&quot;true&quot;"`. An after image is enclosed in `<row>` and `</row>`.
Values: `keylog_values`.

All rows are cut at their quotes at once. The pieces alternate between a *head* (up to the quote that opens a
value, with its name) and a value; after a row's last value is its *tail*. The pieces are one Arrow array over
the text's bytes. Heads repeat from row to row, so only distinct ones are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .keylog_values import NIL_START, KeyLogField, finer, of_column, unescape_name

__all__ = ["Items", "KeyLogField", "names", "parse"]

Ints = npt.NDArray[np.int64]
_Places = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]

_NAMED, _NIL, _NIL_END, _ODD = range(4)
"""Kinds of heads: before a value, the `true` of a NULL, the end of a NULL in quotes, or unknown."""
_NAME = r"[^\0- \"<>](?:[^\"<>]*[^\0- \"<>])?"
_FIRST, _FIRST_OF_ROW, _INNER = (
    re.compile(before + f"({_NAME})=", re.DOTALL) for before in ("", "<row>", '" ')
)
_NIL_HEAD = "&xsi:nil"
_UNKNOWN = -1


@dataclass(frozen=True)
class Items:
    """Parsed items of many rows.

    Attributes:
        values: an array per field, of its lake type; null if the item is NULL, absent or bad.
        present: per field which rows have the item; None if all have it.
        why: the error in each row's text; null if it is valid.
        finer: which rows have a time with a fraction finer than microseconds, which is cut; None if none has.
    """

    values: list[pa.Array]
    present: list[Bools | None]
    why: pa.StringArray
    finer: Bools | None = None


@dataclass(frozen=True)
class _Pieces:
    """Texts split at their quotes: the piece number of each item's head, whose value is the next piece."""

    text: pa.StringArray
    rows: int
    head: _Places
    row: _Places
    first: Bools
    tail: Ints
    unpaired: Bools


def parse(text: pa.StringArray, fields: Sequence[KeyLogField], *, row: bool = False) -> Items:
    """Parses the items of each text into columns.

    Args:
        text: one text per row; NULL and the empty text have no items.
        fields: the expected columns; an item with another name is bad.
        row: whether the items are enclosed in `<row>` and `</row>`.

    >>> found = parse(pa.array(['ID="7" N="a&amp;b"', 'ID="8" N=&xsi:nil="true"', 'ID="9"', 'ID=9']),
    ...               [KeyLogField("ID", "int"), KeyLogField("N")])
    >>> [v.to_pylist() for v in found.values]
    [[7, 8, 9, None], ['a&b', None, None, None]]
    >>> found.present[1].tolist(), found.why.to_pylist()
    ([True, True, False, False], [None, None, None, "'ID=9' is not an item"])
    """
    cut = _cut(text)
    codes, heads = _distinct(pc.take(cut.text, pa.array(cut.head)))
    why = _Reasons(cut.rows)
    why.add(cut.unpaired, "quotes do not pair")
    kinds, names = _read_heads(cut, codes, heads, row, why)
    places = {field.name: i for i, field in enumerate(fields)}
    column = np.array([places.get(n or "", _UNKNOWN) for n in names] or [_UNKNOWN], np.int16)[codes]
    strange = [None if n is None or n in places else f"there is no column {n}" for n in names]
    why.add_first(cut.row, codes, strange)
    nil = _nil(cut, kinds, why)
    _check_tails(cut, row, why)
    # Items of one column after one another, rows in order.
    order = np.argsort(column, kind="stable")
    bounds = np.searchsorted(column[order], np.arange(len(fields) + 1))
    values, present, fine = [], [], []
    for i, field in enumerate(fields):
        at = order[bounds[i] : bounds[i + 1]]
        text, there = _column(cut, field, at, nil, why)
        array, bad = of_column(text, field)
        if bad is not None:
            why.add(bad, f"{field.name} is not valid as {field.words}")
        if (some := finer(text, field)) is not None:
            fine.append(some)
        values.append(array)
        present.append(there)
    return Items(values, present, why.texts(), np.logical_or.reduce(fine) if fine else None)


def names(text: pa.StringArray, *, row: bool = False) -> list[tuple[int, int, str]]:
    """Returns the distinct names as (row where it first occurs, position in its row, name).

    Positions count from 0. A name with several positions is returned for each. Bad heads have no name.

    >>> names(pa.array(['ID="1" N="a"', 'ID="2"', 'N="b"']))
    [(0, 0, 'ID'), (0, 1, 'N'), (2, 0, 'N')]
    """
    cut = _cut(text)
    codes, heads = _distinct(pc.take(cut.text, pa.array(cut.head)))
    read = [_head(h, row) for h in heads]
    if not len(codes):
        return []
    starts = np.flatnonzero(cut.first)
    nil_end = np.array([kind == _NIL_END for kind, _ in read], np.bool_)[codes]
    place = np.arange(len(codes)) - np.cumsum(nil_end)
    place -= np.repeat(place[starts], np.diff(np.append(starts, len(codes))))
    _, at = np.unique(codes.astype(np.int64) << 32 | place, return_index=True)
    found: dict[tuple[int, str], int] = {}
    for i in sorted(at.tolist()):
        kind, name = read[codes[i]]
        if kind in (_NAMED, _NIL) and name is not None:
            found.setdefault((int(place[i]), name), int(cut.row[i]))
    return [(r, p, n) for (p, n), r in found.items()]


def _cut(text: pa.StringArray) -> _Pieces:
    if text.null_count:
        text = pc.fill_null(text, "")
    rows = len(text)
    _, offsets, data = text.buffers()
    ends = np.zeros(rows + 1, np.int64)
    if rows:
        ends = np.frombuffer(offsets, np.int32)[text.offset : text.offset + rows + 1].astype(np.int64)
    buf = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[: ends[-1]]
    quotes = (np.flatnonzero(buf[ends[0] :] == ord('"')) + ends[0]).astype(np.int32)
    counts = np.diff(np.searchsorted(quotes, ends))
    unpaired = (counts & 1) == 1
    if unpaired.any():  # such a text is one piece without items
        quotes = quotes[np.repeat(~unpaired, counts)]
        counts[unpaired] = 0
    items = counts // 2
    row = np.repeat(np.arange(rows, dtype=np.int32), items)
    head = 2 * np.arange(len(row), dtype=np.int32) + row
    tail = np.cumsum(counts) + np.arange(rows)
    bounds = np.empty(len(quotes) + rows + 1, np.int32)
    bounds[0] = ends[0]
    bounds[head + 1] = quotes[::2] + 1
    bounds[head + 2] = quotes[1::2]
    bounds[tail + 1] = ends[1:]
    pieces = pa.Array.from_buffers(
        pa.string(), len(bounds) - 1, [None, pa.py_buffer(bounds), data or pa.py_buffer(b"")]
    )
    first = np.zeros(len(row), np.bool_)
    first[(np.cumsum(items) - items)[items > 0]] = True
    return _Pieces(pieces, rows, head, row, first, tail, unpaired)


def _distinct(texts: pa.StringArray) -> tuple[Ints, list[str]]:
    coded = texts.dictionary_encode()
    return coded.indices.to_numpy(), coded.dictionary.to_pylist()


def _read_heads(
    cut: _Pieces, codes: Ints, heads: list[str], row: bool, why: _Reasons
) -> tuple[npt.NDArray[np.int8], list[str | None]]:
    """Returns the kind of each item's head, and the name in each distinct head; adds reasons for invalid
    heads."""
    read = [_head(h, row) for h in heads]
    kinds = np.array([kind for kind, _ in read] or [_ODD], np.int8)[codes]
    said = "not a name between a space and ="
    odd = [_quote(h, said) if k == _ODD else None for h, (k, _) in zip(heads, read, strict=True)]
    why.add_first(cut.row, codes, odd)
    return kinds, [name for _, name in read]


@lru_cache(maxsize=10_000)
def _head(text: str, row: bool) -> tuple[int, str | None]:
    """Returns the kind of a head, and the name in it."""
    if text == '"true"':
        return _NIL_END, None
    first = not text.startswith('"')
    kind, text = _NAMED, text[:-1]
    if text.endswith(f"={_NIL_HEAD}="):
        kind, text = _NIL, text[: -len(_NIL_HEAD) - 1]
    found = (_INNER if not first else _FIRST_OF_ROW if row else _FIRST).fullmatch(text)
    name = unescape_name(found[1]) if found else None
    return (kind, name) if name else (_ODD, None)


def _nil(cut: _Pieces, kinds: npt.NDArray[np.int8], why: _Reasons) -> Bools | None:
    """Returns which items are NULL, from the quotes around them."""
    nil = kinds == _NIL
    if nil.any():
        said = pc.take(cut.text, pa.array(cut.head[nil] + 1))
        true = pc.equal(said, "true").to_numpy(zero_copy_only=False)
        why.add_at(cut.row[nil][~true], "xsi:nil is not true")
    ends = np.flatnonzero(kinds == _NIL_END)
    if len(ends):
        # The value before it must be the beginning of a NULL; its own must be empty.
        first = pc.take(cut.text, pa.array(cut.head[np.maximum(ends - 1, 0)] + 1))
        begun = pc.equal(first, NIL_START).to_numpy(zero_copy_only=False) & ~cut.first[ends]
        empty = pc.equal(pc.binary_length(pc.take(cut.text, pa.array(cut.head[ends] + 1))), 0)
        well = begun & empty.to_numpy(zero_copy_only=False) & (kinds[np.maximum(ends - 1, 0)] == _NAMED)
        nil[ends[well] - 1] = True
        why.add_at(cut.row[ends[~well]], '"true" where no NULL begins')
    return nil if nil.any() else None


def _check_tails(cut: _Pieces, row: bool, why: _Reasons) -> None:
    filled = np.zeros(cut.rows, np.bool_)
    filled[cut.row] = True
    codes, tails = _distinct(pc.take(cut.text, pa.array(cut.tail)))
    after = [t == ('"</row>' if row else '"') for t in tails]
    alone = [t in ("", "<row></row>") if row else t == "" for t in tails]
    good = np.where(filled, np.array(after or [True])[codes], np.array(alone or [True])[codes])
    bad = np.flatnonzero(~good & ~cut.unpaired)
    said = [_quote(t, "not an item") if t.strip('" ') else "the text ends early" for t in tails]
    why.add_first(bad, codes[bad], said)


def _quote(text: str, what: str) -> str:
    said = text.removeprefix('"').removesuffix('"').strip()
    return f"{said[:80]!r} is {what}"


def _column(
    cut: _Pieces, field: KeyLogField, at: Ints, nil: Bools | None, why: _Reasons
) -> tuple[pa.StringArray, Bools | None]:
    """Returns one field's values by row as text, and which rows have it."""
    rows = cut.row[at]
    pieces: _Places = cut.head[at] + 1
    if nil is not None:
        pieces = np.where(nil[at], -1, pieces)
    there = None
    if len(rows) != cut.rows or (len(rows) and (np.diff(rows) == 0).any()):
        why.add_at(rows[1:][np.diff(rows) == 0], f"{field.name} occurs twice")
        spread = np.full(cut.rows, -1, np.int64)
        spread[rows] = pieces
        pieces = spread
        there = np.zeros(cut.rows, np.bool_)
        there[rows] = True
    null = pieces < 0
    return pc.take(cut.text, pa.array(pieces, mask=null if null.any() else None)), there


class _Reasons:
    """Errors of rows, collected error by error."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._found: list[pa.StringArray] = []

    def add(self, bad: Bools, text: str) -> None:
        if bad.any():
            self._found.append(pc.if_else(pa.array(bad), pa.scalar(text), pa.scalar(None, pa.string())))

    def add_at(self, rows: _Places, text: str) -> None:
        if len(rows):
            bad = np.zeros(self.rows, np.bool_)
            bad[rows] = True
            self.add(bad, text)

    def add_first(self, rows: _Places, codes: Ints, texts: Sequence[str | None]) -> None:
        """Adds the text of the first item of each row that has one; `codes` index the texts, rows ascend."""
        bad = np.array([t is not None for t in texts] or [False], np.bool_)
        if not bad.any():
            return
        at = np.flatnonzero(bad[codes])
        at = at[np.r_[True, np.diff(rows[at]) != 0]] if len(at) else at
        spread = np.full(self.rows, -1, np.int64)
        spread[rows[at]] = codes[at]
        self._found.append(pc.take(pa.array(texts, pa.string()), pa.array(spread, mask=spread < 0)))

    def texts(self) -> pa.StringArray:
        made = pa.nulls(self.rows, pa.string())
        for found in self._found:
            both = pc.binary_join_element_wise(made, found, "; ")  # null if one of them is
            made = pc.coalesce(both, made, found)
        return made
