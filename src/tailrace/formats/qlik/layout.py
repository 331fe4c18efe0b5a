"""Handles the columns of a Qlik table: which are headers, their bits in masks, and merging of layouts.

One file has one layout; a DDL starts the next (spec/qlik.md §1.4, §6). Layouts are merged before their rows
are combined: each row's masks are moved to the merged layout, and `column_mask` shows which columns its
layout had.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...model import mask
from ...model.change import PREFIX
from ...model.quoting import quoted
from ..base import ADDED_COLUMNS, FILE, FINER, RAW, ROW, WHY
from ..shape import reasons
from ..spark_functions import F
from ..types import bytes_as_text, exactly
from .options import HEADERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ALIASES = {"change_oper": ("oper",)}
"""Other spellings of headers; one of them is in the vendor's own example."""
COLUMN_MASK = "column_mask"
"""A header that Qlik's messages have but its tables do not; added as the last column to tables of several
layouts."""
LOADED = "native_oper"
"""A header added to the rows of full-load files: `L`."""
KEY_POS = "primaryKeyPos"
"""In the metadata of a Spark column: its rank in the primary key, from 1."""
HEADER = "qlikHeader"
"""In the metadata of a Spark column of full-load rows: it is not from the file, but describes its load."""
BIG = "qlikBig"
"""In the metadata of a mask column: its most significant byte is first, as in all text."""
_ENOUGH = 38


def find_prefix(names: Sequence[str], given: str | None = None) -> str | None:
    """Returns the prefix of header names; None if these are not the columns of a change table.

    >>> find_prefix(["HEADER__CHANGE_SEQ", "HEADER__CHANGE_OPER", "ID"])
    'HEADER__'
    >>> find_prefix(["id", "name"]) is None
    True
    """
    lower = {n.lower() for n in names}
    opers = ("change_oper", *ALIASES["change_oper"])
    found = [
        n[: -len("change_seq")]
        for n in names
        if n.lower().endswith("change_seq")
        and any(n.lower()[: -len("change_seq")] + o in lower for o in opers)
    ]
    if given is not None:
        return next((p for p in found if p.lower() == given.lower()), None)
    usual = [p for p in found if p.lower() == PREFIX]
    return next(iter(usual or found), None)


def headers_of(names: Sequence[str], prefix: str) -> dict[str, str]:
    """Returns header name -> column, for Qlik's headers and tailrace's two.

    >>> headers_of(["h_change_seq", "h_oper", "id"], "h_")
    {'change_seq': 'h_change_seq', 'change_oper': 'h_oper'}
    """
    lower: dict[str, str] = {}
    for n in names:
        if n.lower() in lower:
            raise FormatError(f"two columns {n}", where="change table")
        lower[n.lower()] = n
    found = {}
    for header in (*HEADERS, COLUMN_MASK, LOADED):
        for spelled in (header, *ALIASES.get(header, ())):
            if header not in found and (name := lower.get(prefix.lower() + spelled)):
                found[header] = name
    return found


def natives_of(names: Sequence[str], prefix: str) -> dict[str, str]:
    """Returns header name `native_x` -> column, for columns with the header prefix that are not Qlik's."""
    known = set(headers_of(names, prefix).values())
    return {
        "native_" + n[len(prefix) :].lower(): n
        for n in names
        if prefix and n.lower().startswith(prefix.lower()) and n not in known
    }


def columns_of(df: DataFrame) -> list[str]:
    """Returns the vendor's columns in order: a column's index is its bit in masks."""
    return [c for c in df.columns if c not in ADDED_COLUMNS]


@dataclass(frozen=True)
class QlikLayout:
    """Columns by name in order, with Spark types, and ranks of the primary key's columns."""

    types: Mapping[str, str]
    keys: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Returns the names in order."""
        return list(self.types)


def layout_of(df: DataFrame) -> QlikLayout:
    """Returns the layout of a table in Spark."""
    fields = {f.name: f for f in df.schema if f.name not in ADDED_COLUMNS}
    keys = {n: int(f.metadata[KEY_POS]) for n, f in fields.items() if f.metadata.get(KEY_POS)}
    return QlikLayout({n: f.dataType.simpleString() for n, f in fields.items()}, keys)


def keyed(df: DataFrame, keys: Mapping[str, int]) -> DataFrame:
    """Returns the rows with ranks in the primary key in their columns' metadata."""
    for name, place in keys.items():
        df = df.withMetadata(name, {KEY_POS: place})
    return df


def key_of(layouts: Sequence[QlikLayout]) -> list[str]:
    """Returns the key columns in order, from the newest layout that declares them."""
    keys = next((lay.keys for lay in reversed(layouts) if lay.keys), {})
    return sorted(keys, key=lambda n: keys[n])


def merged(layouts: Sequence[QlikLayout]) -> QlikLayout:
    """Returns one layout for the rows of all layouts (oldest first): the newest one's columns, then those
    that only older ones have; types as wide as needed.

    >>> merged([QlikLayout({"id": "int", "a": "int"}), QlikLayout({"id": "bigint", "b": "string"})]).types
    {'id': 'bigint', 'b': 'string', 'a': 'int'}
    """
    types: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for layout in reversed(layouts):
        for name, kind in layout.types.items():
            known = spelled.setdefault(name.lower(), name)
            types[known] = widen(types[known], kind) if known in types else kind
    keys = next((lay.keys for lay in reversed(layouts) if lay.keys), {})
    return QlikLayout(types, {spelled[n.lower()]: p for n, p in keys.items()})


_WHOLE = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


def widen(one: str, other: str) -> str:
    """Returns the type that holds every value of both; string if there is no other.

    >>> widen("int", "decimal(12,2)"), widen("decimal(10,0)", "decimal(19,0)"), widen("date", "int")
    ('decimal(12,2)', 'decimal(19,0)', 'string')
    """
    if one == other:
        return one
    if one in _WHOLE and other in _WHOLE:
        return max(one, other, key=_WHOLE.__getitem__)
    if {one, other} == {"float", "double"}:
        return "double"
    if "date" in (one, other) and {"timestamp", "timestamp_ntz"} & {one, other}:
        return other if one == "date" else one
    digits = [_digits(t) for t in (one, other)]
    if digits[0] and digits[1]:
        scale = max(d[1] for d in digits if d)
        whole = max(d[0] - d[1] for d in digits if d)
        return f"decimal({whole + scale},{scale})" if whole + scale <= _ENOUGH else "string"
    return "string"


def _digits(kind: str) -> tuple[int, int] | None:
    if kind in _WHOLE:
        return _WHOLE[kind], 0
    found = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    return (int(found[1]), int(found[2])) if found else None


def arrange(
    df: DataFrame, want: QlikLayout, prefix: str | None, *, little: bool = False, base64: bool = False
) -> DataFrame:
    """Returns the rows in another layout: columns by name, masks adapted to it (with the same byte order),
    and `column_mask`, if the layout has it, for rows without some of its columns. Bytes become text as in
    text files: hex, or base64. A mask that marks columns which its own layout does not have gets a reason, as
    does a value that is invalid for the new type."""
    have = columns_of(df)
    if layout_of(df).types == dict(want.types) and have == want.names:
        return df
    heads = headers_of(have, prefix) if prefix is not None else {}
    ours = {n.lower(): n for n in have}
    place = {n.lower(): i for i, n in enumerate(want.names)}
    places = {i: place[n.lower()] for i, n in enumerate(have) if n.lower() in place}
    bad: list[tuple[Column, str | Column]] = (
        [(F.col(WHY).isNotNull(), F.col(WHY))] if WHY in df.columns else []
    )
    masked = {n.lower(): h for h, n in heads.items() if h in ("change_mask", COLUMN_MASK)}
    result = []
    for name, kind in want.types.items():
        old = ours.get(name.lower())
        if old is None:
            given = F.lit(None)
            if prefix is not None and name.lower() == (prefix + COLUMN_MASK).lower():
                given = _carried(have, want, prefix, places, little=little)
            result.append(given.cast(kind).alias(name))
            continue
        value = F.col(quoted(old))
        if name.lower() in masked:
            value = mask.move(value, places, little=little, to_little=little)
            bad += outside(
                F.col(quoted(old)), len(have), range(len(have)), masked[name.lower()], little=little
            )
        elif _kind(df, old) != kind:
            if (_kind(df, old), kind) == ("binary", "string") and old not in heads.values():
                value = bytes_as_text(value, base64=base64)
            else:
                value = exactly(value, kind, _kind(df, old))
            bad.append((F.col(quoted(old)).isNotNull() & value.isNull(), f"{name} is not valid as {kind}"))
        result.append(value.alias(name, metadata=df.schema[old].metadata))
    why = [reasons(bad).alias(WHY)] if bad else [F.lit(None).cast("string").alias(WHY)]
    return df.select(*result, *[F.col(c) for c in (FILE, ROW) if c in df.columns], *why,
                     *[F.col(c) for c in (RAW, FINER) if c in df.columns])  # fmt: skip


def binary_masks(df: DataFrame, prefix: str) -> DataFrame:
    """Returns the rows with hex masks as bytes; text that is not hex gets a reason."""
    heads = headers_of(columns_of(df), prefix)
    texts = [n for h in ("change_mask", COLUMN_MASK) if (n := heads.get(h)) and _kind(df, n) == "string"]
    for name in texts:
        raw = F.col(quoted(name))
        why = [(F.col(WHY).isNotNull(), F.col(WHY))] if WHY in df.columns else []
        bad = reasons([*why, (raw.isNotNull() & F.unhex(raw).isNull(), f"{name} is not valid as binary")])
        df = df.withColumn(WHY, bad).withColumn(name, F.unhex(raw)).withMetadata(name, {BIG: 1})
    return df


def _kind(df: DataFrame, name: str) -> str:
    return df.schema[name].dataType.simpleString()


def _carried(
    have: Sequence[str], want: QlikLayout, prefix: str, positions: Mapping[int, int], *, little: bool
) -> Column:
    """Returns the column mask of rows of an older layout: NULL if it has every data column."""
    heads = {n.lower() for n in headers_of(want.names, prefix).values()}
    there = {n.lower() for n in have}
    if all(n.lower() in there or n.lower() in heads for n in want.names):
        return F.lit(None)
    octets = mask.encode(p for p in positions.values() if want.names[p].lower() not in heads)
    return F.lit(octets[::-1] if little else octets)


def outside(
    bits: Column,
    width: int,
    allowed: Sequence[int],
    what: str,
    *,
    little: bool = False,
    words: Sequence[Column] | None = None,
) -> list[tuple[Column, str | Column]]:
    """Returns reasons for masks that mark columns beyond `width`, or others than the `allowed`. `words`: the
    mask's 64-bit words, at least `width` bits, if they are already known."""
    words = mask.words(bits, width, little=little) if words is None else words
    size = len(words) * mask.WORD
    longer = mask.any_set(words, range(width, size))
    # Bytes after the words are only checked if there are any: masks are usually trimmed.
    start = F.lit(size // 8 + 1) if little else F.lit(1)
    rest = F.hex(F.substring(bits, start, F.octet_length(bits) - size // 8))
    more = F.when(F.octet_length(bits) > size // 8, rest.rlike("[1-9A-F]"))
    return [
        (longer | F.coalesce(more, F.lit(False)), f"{what} longer than the columns"),
        (mask.any_set(words, set(range(width)) - set(allowed)), f"{what} marks header columns"),
    ]
