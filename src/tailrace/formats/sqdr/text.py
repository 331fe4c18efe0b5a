"""Handles the texts of a key log as Spark columns: keys and images (`before_key`, `after_key`,
`after_image`), and the log entry of a change (`change_row_log_detail`). `images` writes keys and images.

Arrow batches are parsed by `wire.keylog_text`. Source: spec/sqdr.md §4, §5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...execution import over_rows
from ...model import mask
from ...model.quoting import quoted
from ...model.types import arrow_type
from ...wire import keylog_text
from ...wire.keylog_values import HEX, NAMED, KeyLogField, escape_name
from ..spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEST_END = "</Dest>"


# -- reading


def parsed(
    text: Column,
    fields: Sequence[KeyLogField],
    ordinals: Sequence[int],
    *,
    row: bool = False,
    values: bool = True,
) -> Column:
    """Returns the items of a text as a struct: a struct `v` of the fields' values (`c0`, `c1`, ... of their
    types), `m` which of them exist (a mask of `ordinals`; NULL: all of them), `why` the reason if it is bad,
    and `f` whether a fraction of a time is truncated.

    `row`: the items are in `<row>` and `</row>`; `values`: whether there is a `v`.
    """
    fields, ordinals = list(fields), list(ordinals)

    def read(texts: pa.Array) -> pa.Array:
        return _struct(keylog_text.parse(_strings(texts), fields, row=row), ordinals, values=values)

    kinds = ",".join(f"c{i}:{f.type}" for i, f in enumerate(fields)) if values else ""
    returns = f"struct<{f'v:struct<{kinds}>,' if kinds else ''}m:binary,why:string,f:boolean>"
    # Marked as not deterministic: otherwise Spark would parse the text once for each of its columns.
    udf = F.arrow_udf(read, returns).asNondeterministic()  # type: ignore[attr-defined]
    result: Column = udf(text)
    return result


def _struct(items: keylog_text.Items, ordinals: Sequence[int], *, values: bool) -> pa.StructArray:
    rows = len(items.why)
    whole = np.ones(rows, np.bool_)
    bits = np.stack([whole if p is None else p for p in items.present] or [whole], axis=1)
    masks = pa.nulls(rows, pa.binary())
    if not bits.all():
        masks = mask.pack(bits, ordinals)
        masks = pc.if_else(pa.array(bits.all(axis=1)), pa.scalar(None, pa.binary()), masks)
    cut = np.zeros(rows, np.bool_) if items.finer is None else items.finer
    parts = {"m": masks, "why": items.why, "f": pa.array(cut)}
    if items.values and values:
        result = pa.StructArray.from_arrays(items.values, [f"c{i}" for i in range(len(items.values))])
        parts = {"v": result, **parts}
    return pa.StructArray.from_arrays(list(parts.values()), list(parts))


def _strings(texts: pa.Array) -> pa.StringArray:
    return texts if texts.type == pa.string() else texts.cast(pa.string())


def names(df: DataFrame, by: str, texts: Mapping[str, bool]) -> DataFrame:
    """Returns the item names in text columns (`texts`: column -> whether its items are in `<row>`), for each
    value of the column `by`: rows of (`by`, text column, position in its text, name); few rows, with some
    duplicates.
    """
    found = f"{quoted(by)} string, text string, position int, name string"

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _names(batch, by, texts)

    return over_rows(df.select(by, *texts), read, found)


def _names(batch: pa.RecordBatch, by: str, texts: Mapping[str, bool]) -> pa.RecordBatch:
    rows: list[tuple[str | None, str, int, str]] = []
    for value in pc.unique(batch.column(by)).to_pylist():
        mine = pc.is_null(batch.column(by)) if value is None else pc.equal(batch.column(by), value)
        for text, row in texts.items():
            some = _strings(batch.column(text).filter(pc.fill_null(mine, False)))
            rows += [(value, text, place, name) for _, place, name in keylog_text.names(some, row=row)]
    kinds = {by: pa.string(), "text": pa.string(), "position": pa.int32(), "name": pa.string()}
    columns = [pa.array([r[i] for r in rows], kind) for i, kind in enumerate(kinds.values())]
    return pa.RecordBatch.from_arrays(columns, names=list(kinds))


# -- writing


def named_escapes(value: str) -> str:
    """Returns SQL of a text with the five characters escaped."""
    for text, character in NAMED.items():  # the ampersand has to be first
        value = f"replace({value}, {literal(character)}, {literal(text)})"
    return value


def literal(text: str) -> str:
    """Returns a text as an SQL literal.

    >>> print(literal("a'b"), literal(chr(92)))
    'a\\'b' '\\\\'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def dest(table: str) -> str:
    """Returns `<Dest>` of a table `schema.name`; the schema is the part before the first dot.

    >>> dest("shop.item")
    '<Dest>"shop"."item"</Dest>'
    """
    return f"<Dest>{'.'.join(_identifier(p) for p in table.split('.', 1))}{DEST_END}"


def _identifier(name: str) -> str:
    return '"' + escape_name(name).replace(f"{HEX}0020", " ").replace(f"{HEX}003D", "=") + '"'


def dest_of(image: Column) -> Column:
    """Returns the `<Dest>` of an `after_image`; NULL if it has none."""
    begun = F.substring_index(image, DEST_END, 1)
    return F.when(image.startswith("<Dest>") & image.contains(DEST_END), F.concat(begun, F.lit(DEST_END)))


def field_of(name: str, kind: str, *, octet: bool = False) -> KeyLogField:
    """Returns a field after checking its type.

    Raises:
        UnsupportedError: it is not a type of the lake.
    """
    arrow_type(kind)
    return KeyLogField(name, kind, octet)


def unescaped(value: Column) -> Column:
    """Returns text without the five escapes; others stay."""
    for text, character in reversed(NAMED.items()):  # the ampersand has to be last
        value = F.replace(value, F.lit(text), F.lit(character))
    return value


_WORDS = {
    "receiver": ("receiver_library", "receiver_name"),
    "job": ("job_name", "job_user", "job_number"),
    "type": ("journal_code", "entry_type"),
}
"""Elements with several words -> the columns of the words."""
DETAIL_FIELDS = (
    "receiver_library", "receiver_name", "user", "job_name", "job_user", "job_number", "journal_code",
    "entry_type", "sequence", "rrn", "program",
)  # fmt: skip
"""The fields of `detail`, in the vendor's order."""


def detail(text: Column) -> Column:
    """Returns the fields of a `<detail>` as a struct of strings (`DETAIL_FIELDS`); NULL for missing ones.
    `sequence` keeps its zeros; line breaks between words are ignored."""
    result = {}
    for element, names in _WORDS.items():
        words = F.split(F.trim(F.regexp_replace(part(text, element), r"\s+", " ")), " ", len(names))
        for i, name in enumerate(names):
            result[name] = F.get(words, F.lit(i))
    for element in ("user", "sequence", "rrn", "program"):
        result[element] = part(text, element)
    return F.when(text.isNotNull(), F.struct(*[result[n].alias(n) for n in DETAIL_FIELDS]))


def part(text: Column, element: str) -> Column:
    """Returns the text of one element, without the five escapes; NULL if it is missing."""
    start, end = f"<{element}>", f"</{element}>"
    inside = F.substring_index(F.substring_index(text, end, 1), start, -1)
    return F.when(text.contains(start) & text.contains(end), unescaped(inside))


def written(user: str | None, rrn: str | None) -> Column:
    """Returns a `<detail>` with values of other formats: SQL of the user and of the row's number; NULL if
    there is neither."""
    parts = [("user", user), ("rrn", rrn)]
    result = [
        F.concat(F.lit(f"<{n}>"), F.expr(named_escapes(v)), F.lit(f"</{n}>"))
        for n, v in parts
        if v is not None
    ]
    inside = F.concat_ws(" ", *result) if result else F.lit("")
    return F.when(inside != "", F.concat(F.lit("<detail> "), inside, F.lit(" </detail>")))
