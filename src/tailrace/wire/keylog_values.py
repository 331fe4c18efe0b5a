"""Converts values in a key log's text to Arrow arrays of their lake types, whole columns at a time.

Source: spec/sqdr.md §4. Escapes begin with `&`: `&amp;` `&apos;` `&quot;` `&lt;` `&gt;`, and `&#x` with hex
digits and no terminator. The column's type determines the number of digits: two in octet text, four in
Unicode text, all up to the closing quote in binary columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.types import arrow_type, element_type
from . import array_text
from .pgvalues import convert

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NIL_START = "&xsi:nil="
"""The apparent value of `C="&xsi:nil="true""`."""
NIL_QUOTED = "&xsi:nil=&quot;true&quot;"
NAMED = {"&amp;": "&", "&apos;": "'", "&quot;": '"', "&lt;": "<", "&gt;": ">"}
"""Escapes of single characters."""
HEX = "&#x"
IGNORED = "\0"
"""`action_taken` of an ignored change: a byte 0, neither NULL nor a code."""
UNICODE_DIGITS, OCTET_DIGITS = 4, 2
_TRUE, _FALSE = ("1", "true", "t"), ("0", "false", "f")
_MICROS = 26  # characters of a timestamp with six digits of fraction
_FINER = r"^[0-9]{4}-.{21}[0-9]{1,6}$"
"""Pattern of timestamps with up to twelve digits of fraction, which are cut to microseconds."""


@dataclass(frozen=True)
class KeyLogField:
    """A column in a key log's text.

    Attributes:
        name: its name, without escapes.
        type: its lake type.
        octet: whether its text is octets, whose numeric escapes have two digits instead of four.
    """

    name: str
    type: str = "string"
    octet: bool = False

    @property
    def words(self) -> str:
        """A description of its values for errors."""
        kinds = {"string": "octet text" if self.octet else "Unicode text", "binary": "hex octets"}
        return kinds.get(self.type, self.type)


def finer(text: pa.StringArray, field: KeyLogField) -> Bools | None:
    """Returns which times have a fraction finer than microseconds, other than zeros; None if none has.

    >>> at = pa.array(["2026-01-02T03:04:05.1234567", "2026-01-02T03:04:05.123456000"])
    >>> finer(at, KeyLogField("C", "timestamp")).tolist()
    [True, False]
    """
    if not field.type.startswith("timestamp") or not pc.any(_long(text)).as_py():
        return None
    rest = pc.utf8_slice_codeunits(text, _MICROS)
    found = pc.and_(_fine(text), pc.match_substring_regex(rest, "[1-9]"))
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False) if pc.any(found).as_py() else None


def of_column(text: pa.StringArray, field: KeyLogField) -> tuple[pa.Array, Bools | None]:
    """Returns the values of a column in its lake type, and which rows are bad (None: none). Bad values are
    null.

    >>> texts = pa.array(["a&#x000A;", "&lt", "&xsi:nil=&quot;true&quot;"])
    >>> of_column(texts, KeyLogField("C"))[0].to_pylist()
    ['a\\n;', None, None]
    >>> of_column(pa.array(["&#x0AFF", "&#x0", "0A"]), KeyLogField("C", "binary"))[1].tolist()
    [False, True, True]
    """
    escaped = pc.fill_null(pc.match_substring(text, "&"), False)
    if pc.any(escaped).as_py():
        nil = pc.equal(text, NIL_QUOTED)
        if pc.any(nil).as_py():
            text = pc.if_else(nil, pa.scalar(None, pa.string()), text)
    if field.type == "binary":
        values, bad = _binary(text)
    elif field.type == "string":
        values, bad = _text(text, escaped, OCTET_DIGITS if field.octet else UNICODE_DIGITS)
    elif element := element_type(field.type):
        values, bad = _array(text, escaped, element)
    else:
        values, bad = convert(field.type, field.type, _plain(text, field.type))
    if bad is None or not pc.any(bad).as_py():
        return values, None
    return values, pc.fill_null(bad, False).to_numpy(zero_copy_only=False)


def _plain(text: pa.StringArray, kind: str) -> pa.StringArray:
    """Returns text in the form that `convert` reads for the type; other text is unchanged."""
    if kind == "boolean":
        true, false = (pc.is_in(pc.utf8_lower(text), value_set=pa.array(v)) for v in (_TRUE, _FALSE))
        return pc.if_else(true, "t", pc.if_else(false, "f", pc.if_else(pc.is_valid(text), "?", text)))
    if kind.startswith("timestamp") and pc.any(_long(text)).as_py():
        text = pc.if_else(_fine(text), pc.utf8_slice_codeunits(text, 0, _MICROS), text)
    return text


def _long(text: pa.StringArray) -> pa.BooleanArray:
    return pc.greater(pc.binary_length(text), _MICROS)


def _fine(text: pa.StringArray) -> pa.BooleanArray:
    return pc.and_(_long(text), pc.match_substring_regex(text, _FINER))


def _binary(text: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray]:
    well = pc.or_(pc.starts_with(text, HEX), pc.equal(text, ""))
    pairs = pc.if_else(pc.equal(text, ""), "\\x", pc.utf8_replace_slice(text, 0, len(HEX), "\\x"))
    values, _ = convert("binary", "bytea", pc.if_else(well, pairs, pa.scalar("?")))
    return values, pc.and_(pc.is_valid(text), pc.is_null(values))


def _text(text: pa.StringArray, escaped: pa.BooleanArray, digits: int) -> tuple[pa.Array, pa.Array | None]:
    escaped = pc.and_(escaped, pc.is_valid(text))
    if not pc.any(escaped).as_py():
        return text, None
    plain = unescape(text.filter(escaped), digits)
    values = pc.replace_with_mask(text, escaped, plain)
    return values, pc.and_(pc.is_valid(text), pc.is_null(values)) if plain.null_count else None


def _array(text: pa.StringArray, escaped: pa.BooleanArray, element: str) -> tuple[pa.Array, pa.Array]:
    """Returns the arrays that texts contain (`array_text`); an array with a bad element is bad."""
    plain, _ = _text(text, escaped, UNICODE_DIGITS)
    arrays = array_text.split(plain)
    found, ends = array_text.elements(arrays)
    values, bad = (found, None) if element == "string" else of_column(found, KeyLogField("", element))
    valid = arrays.is_valid().to_numpy(zero_copy_only=False)
    if bad is not None:
        wrong = np.concatenate([[0], np.cumsum(bad)])
        valid = valid & (wrong[ends[1:]] == wrong[ends[:-1]])
    made = array_text.of_elements(values, ends, valid).cast(arrow_type(f"array<{element}>"))
    return made, pc.and_(pc.is_valid(text), pc.is_null(made))


def unescape(text: pa.StringArray, digits: int) -> pa.StringArray:
    """Returns texts with their escapes decoded, null for an invalid escape. The texts may not be null.

    >>> unescape(pa.array(["&amp;lt;&#x0041;", "A&#x00D", "&x"]), 4).to_pylist()
    ['&lt;A;', None, None]
    """
    _, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1].astype(np.int64)
    buf = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    ends -= ends[0]
    at = np.flatnonzero(buf == ord("&"))
    if (plain := _all_named(text, len(at))) is not None:
        return plain
    owner = np.searchsorted(ends, at, "right") - 1
    padded = np.append(buf, np.zeros(8, np.uint8))
    code, size = _named(padded, at)
    hexed = size == 0
    code[hexed], size[hexed] = _numeric(padded, at[hexed], digits)
    # An escape must end within its text; a & without an escape has size 0.
    bad = (size == 0) | (at + size > ends[owner + 1])
    good = ~bad
    out, kept, lost = _replace(padded[: len(buf)].copy(), at[good], code[good], size[good])
    shorter = np.bincount(owner[good], lost, len(text)).astype(np.int64)
    new = (ends - np.append(0, np.cumsum(shorter))).astype(np.int32)
    valid = np.ones(len(text), np.bool_)
    valid[owner[bad]] = False
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(text), [bits, pa.py_buffer(new), pa.py_buffer(out[kept])])


def _all_named(text: pa.StringArray, escapes: int) -> pa.StringArray | None:
    """Returns the texts decoded if all escapes are of single characters; None if there are others."""
    found = []
    for name in NAMED:
        if escapes and (many := pc.sum(pc.count_substring(text, name)).as_py()):
            found.append(name)
            escapes -= many
    if escapes:
        return None
    for name in reversed(found):  # the ampersand last
        text = pc.replace_substring(text, name, NAMED[name])
    return text


def _named(padded: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Returns character and length of each escape of a single character; length 0 if it is not one."""
    code, size = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
    second = padded[at + 1]
    for text, character in NAMED.items():
        maybe = np.flatnonzero(second == ord(text[1]))
        if len(maybe):
            window = padded[at[maybe][:, None] + np.arange(len(text))]
            same = maybe[(window == np.frombuffer(text.encode(), np.uint8)).all(axis=1)]
            code[same], size[same] = ord(character), len(text)
    return code, size


def _numeric(padded: Bytes, at: Ints, digits: int) -> tuple[Ints, Ints]:
    """Returns code point and length of each numeric escape; length 0 if it is not one, or half a pair."""
    if not len(at):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    mark = (padded[at + 1] == ord("#")) & (padded[at + 2] == ord("x"))
    window = _DIGIT[padded[at[:, None] + 3 + np.arange(digits)]]
    code = window @ (16 ** np.arange(digits - 1, -1, -1))
    well = mark & (window >= 0).all(axis=1) & ~((code >= 0xD800) & (code <= 0xDFFF))
    return np.where(well, code, 0), np.where(well, len(HEX) + digits, 0)


def _replace(buf: Bytes, at: Ints, code: Ints, size: Ints) -> tuple[Bytes, Bools, Ints]:
    """Returns the bytes with each escape's character in UTF-8, which bytes remain, and how many each escape
    loses."""
    kept = np.ones(len(buf), np.bool_)
    long = (code >= 0x80).astype(np.int64) + (code >= 0x800)  # continuation bytes
    for k in range(1, int(size.max(initial=1))):
        kept[at[(k < size) & (k > long)] + k] = False
    lead = np.array([0, 0xC0, 0xE0])[long]
    buf[at] = lead | code >> 6 * long
    for k in (1, 2):
        mine = long >= k
        buf[at[mine] + k] = 0x80 | code[mine] >> 6 * (long[mine] - k) & 0x3F
    return buf, kept, size - long - 1


def _digits() -> Ints:
    """Returns the value of each byte as a hexadecimal digit, or -1."""
    digit = np.full(256, -1, np.int64)
    for characters in (b"0123456789abcdef", b"0123456789ABCDEF"):
        digit[np.frombuffer(characters, np.uint8)] = np.arange(16)
    return digit


_DIGIT = _digits()
_ESCAPE = re.compile(r"&(?:amp;|apos;|quot;|lt;|gt;|#x[0-9A-Fa-f]{4})")


def unescape_name(text: str) -> str | None:
    """Returns a column's name with its escapes decoded (numeric ones with four digits); None for an invalid
    escape.

    >>> unescape_name("a&#x0020b&#x003D&amp;"), unescape_name("a&b")
    ('a b=&', None)
    """
    if "&" in _ESCAPE.sub("", text):
        return None
    return _ESCAPE.sub(lambda e: NAMED.get(e[0]) or chr(int(e[0][len(HEX) :], 16)), text)


def escape_name(name: str) -> str:
    """Returns a column's name as written before `=`, with special characters escaped.

    >>> escape_name('a b="c"')
    'a&#x0020b&#x003D&quot;c&quot;'
    """
    back = {character: text for text, character in NAMED.items()}
    return "".join(back.get(c) or (f"{HEX}{ord(c):04X}" if c <= " " or c == "=" else c) for c in name)
