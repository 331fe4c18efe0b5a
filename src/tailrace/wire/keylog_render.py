"""Renders Arrow arrays as the text of a key log's `before_key`, `after_key` and `after_image`, whole columns
at a time.

Used by tasks. Source: spec/sqdr.md §4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.types import element_type
from . import array_text
from .keylog_values import HEX, NAMED, OCTET_DIGITS, UNICODE_DIGITS, KeyLogField, escape_name
from .octets import hex_digits

Bools = npt.NDArray[np.bool_]
NIL = '=&xsi:nil="true"'
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_FEW_KINDS = 4
"""The maximum number of distinct special characters that are replaced one by one, which is faster for few."""
_IS_SPECIAL = np.zeros(256, np.bool_)
_IS_SPECIAL[[*range(32), *map(ord, NAMED.values())]] = True


@dataclass(frozen=True)
class Item:
    """A column of an image: its field, its values, and the rows that contain it (None: all)."""

    field: KeyLogField
    values: pa.Array
    there: Bools | None = None


def items(columns: Sequence[Item], start: str = "", end: str = "") -> pa.StringArray:
    """Returns the text of these columns between a prefix and a suffix, one text per row.

    >>> ids, notes = pa.array([1, 2]), pa.array(['a<b', None])
    >>> items([Item(KeyLogField("id", "bigint"), ids), Item(KeyLogField("n"), notes)]).to_pylist()
    ['id="1" n="a&lt;b"', 'id="2" n=&xsi:nil="true"']
    >>> items([Item(KeyLogField("id", "bigint"), ids, np.array([True, False]))]).to_pylist()
    ['id="1"', '']
    """
    if all(one.there is None for one in columns):
        return _joined(columns, start, end)
    pieces = []
    for one in columns:
        piece = pc.binary_join_element_wise(" ", _item(one), "")
        pieces.append(piece if one.there is None else pc.if_else(pa.array(one.there), piece, ""))
    return _concat([start, pc.utf8_slice_codeunits(_concat(pieces), 1), end])


def image(dest: str, columns: Sequence[Item]) -> pa.StringArray:
    """Returns the text of an `after_image`: the destination, and the items."""
    return items(columns, f"{dest}<row>", "</row>")


def _joined(columns: Sequence[Item], start: str, end: str) -> pa.StringArray:
    """Joins columns that every row has, in one pass over as few pieces as possible."""
    pieces: list[pa.Array | str] = []
    text = start  # the text before the next piece
    for place, one in enumerate(columns):
        text += f"{' ' if place else ''}{escape_name(one.field.name)}="
        if one.values.null_count:
            value = pc.fill_null(value_text(one.values, one.field), NIL[1:])
            quote = pc.if_else(one.values.is_valid(), '"', "")
            pieces += [text, quote, value, quote]
            text = ""
        else:
            pieces += [f'{text}"', value_text(one.values, one.field)]
            text = '"'
    return _concat([*pieces, text + end])


def _item(one: Item) -> pa.StringArray:
    name = escape_name(one.field.name)
    made = _concat([f'{name}="', value_text(one.values, one.field), '"'])
    return pc.fill_null(made, name + NIL)


def _concat(pieces: Sequence[pa.Array | str]) -> pa.StringArray:
    """Concatenates pieces; NULL if one is NULL."""
    return pc.binary_join_element_wise(*pieces, "")


def value_text(values: pa.Array, field: KeyLogField) -> pa.StringArray:
    """Returns values as written between the quotes; NULL stays NULL.

    >>> value_text(pa.array([b"\\x0a\\xff", None]), KeyLogField("c", "binary")).to_pylist()
    ['&#x0AFF', None]
    """
    kind = field.type
    if kind == "string":
        return _escaped(values, OCTET_DIGITS if field.octet else UNICODE_DIGITS)
    if element := element_type(kind):
        return _escaped(_array(values, element), UNICODE_DIGITS)
    made = _MADE.get("timestamp" if kind.startswith("timestamp") else kind)
    return values.cast(pa.string()) if made is None else made(values)


def _array(values: pa.ListArray, element: str) -> pa.StringArray:
    """Returns one text per array, from the texts of its elements."""
    found, ends = array_text.elements(values)
    texts = found if element == "string" else value_text(found, KeyLogField("", element))
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    return array_text.join(array_text.of_elements(texts, ends, valid))


def _escaped(text: pa.StringArray, digits: int) -> pa.StringArray:
    """Escapes the five special characters and control characters: one by one if there are few, else all at
    once."""
    if text.offset:
        text = pa.concat_arrays([text])
    valid, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(text) + 1]
    octets = np.frombuffer(data or b"", np.uint8)[: ends[-1] if len(text) else 0]
    sizes, escapes = _escapes(digits)
    special = np.flatnonzero(_IS_SPECIAL[octets])
    kinds = np.unique(octets[special]).tolist()
    if len(kinds) <= _FEW_KINDS:
        for code in sorted(kinds, key=lambda code: code != ord("&")):  # & first: all escapes have one
            text = pc.replace_substring(text, chr(code), escapes[code].decode())
        return text
    # The growth of the text up to each special byte shifts everything after it.
    grown = np.cumsum(sizes[octets[special]] - 1)
    place = special + grown - (sizes[octets[special]] - 1)
    made = np.empty(len(octets) + int(grown[-1]), np.uint8)
    plain = np.ones(len(made), np.bool_)
    for code in kinds:
        at = place[octets[special] == code]
        for i, octet in enumerate(escapes[code]):
            made[at + i] = octet
            plain[at + i] = False
    rest = np.ones(len(octets), np.bool_)
    rest[special] = False
    made[plain] = octets[rest]
    moved = np.concatenate([[0], grown])[np.searchsorted(special, ends)] + ends
    parts = [valid, pa.py_buffer(moved.astype(np.int32)), pa.py_buffer(made)]
    return pa.Array.from_buffers(pa.string(), len(text), parts)


@cache
def _escapes(digits: int) -> tuple[npt.NDArray[np.int64], dict[int, bytes]]:
    """Returns the length of each byte's replacement, and the replacements of special ones."""
    made = {ord(c): name.encode() for name, c in NAMED.items()}
    made |= {code: f"{HEX}{code:0{digits}X}".encode() for code in range(ord(" "))}
    sizes = np.ones(256, np.int64)
    for code, text in made.items():
        sizes[code] = len(text)
    return sizes, made


def _hex(values: pa.BinaryArray) -> pa.StringArray:
    return _concat([HEX, hex_digits(values)])


def _floats(values: pa.Array) -> pa.StringArray:
    """Returns the shortest digits that parse to the same value; Java sometimes writes more."""
    text = values.cast(pa.string())
    if pc.all(pc.is_finite(values)).as_py() is not False:
        return text
    for ours, word in (("nan", "NaN"), ("inf", "Infinity")):
        text = pc.replace_substring(text, ours, word)
    return text


def _times(values: pa.Array) -> pa.StringArray:
    """Returns microseconds as `2026-01-02T03:04:05.000006`; years above 9999 have a sign, as in Java."""
    plain = values.view(pa.timestamp("us"))
    number = values.view(pa.int64())
    far = pc.fill_null(pc.or_(pc.less(number, _YEAR_1), pc.greater_equal(number, _YEAR_10000)), False)
    text = pc.replace_substring(plain.cast(pa.string()), " ", "T", max_replacements=1)
    if not pc.any(far).as_py():
        return text
    found = np.datetime_as_string(number.filter(far).to_numpy().astype("datetime64[us]"))
    signed = [t if t.startswith(("-", "0")) else f"+{t}" for t in found.tolist()]
    return pc.replace_with_mask(text, far, pa.array(signed, pa.string()))


_MADE: dict[str, Callable[[pa.Array], pa.StringArray]] = {
    "binary": _hex,
    "boolean": lambda values: values.cast(pa.int8()).cast(pa.string()),
    "timestamp": _times,
    "float": _floats,
    "double": _floats,
}
"""Renderers of types whose values Arrow does not cast to the right text."""
