"""The text of a key log's `before_key`, `after_key` and `after_image` as Spark columns, both ways.

Reading hands whole Arrow batches to `wire.keylog_text`; writing is native expressions.
Source: spec/sqdr.md §4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import UnsupportedError
from ...model import mask
from ...model.types import arrow_type
from ...wire import keylog_text
from ...wire.keylog_values import HEX, NAMED, OCTET_DIGITS, UNICODE_DIGITS, KeyLogField, escape_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Item = tuple[KeyLogField, str, str | None]
"""A column of an image: what it is, SQL of its value, SQL of whether it is there (None: always)."""
DEST_END = "</Dest>"
_SPECIAL, _CONTROL = "[\\x00-\\x1f&'\"<>]", "[\\x00-\\x1f]"
NIL = '=&xsi:nil="true"'
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_PLAIN = (*_NUMBERS, "date")


# -- reading


def parsed(
    text: Column,
    fields: Sequence[KeyLogField],
    ordinals: Sequence[int],
    *,
    row: bool = False,
    values: bool = True,
) -> Column:
    """The items of a text: a struct of a struct `v` of the fields' values (`c0`, `c1`, ... of their types),
    `m` which of them are there (a mask of `ordinals`; NULL: all of them) and `why` what is wrong with it.

    `row`: the items stand in `<row>` and `</row>`; `values`: whether there is a `v`.
    """
    from pyspark.sql import functions as F

    fields, ordinals = list(fields), list(ordinals)

    def read(texts: pa.Array) -> pa.Array:
        return _struct(keylog_text.parse(_strings(texts), fields, row=row), ordinals, values=values)

    kinds = ",".join(f"c{i}:{f.type}" for i, f in enumerate(fields)) if values else ""
    returns = f"struct<{f'v:struct<{kinds}>,' if kinds else ''}m:binary,why:string>"
    # Not deterministic, for Spark: otherwise it reads the text once for each column that is taken from it.
    udf = F.arrow_udf(read, returns).asNondeterministic()  # type: ignore[attr-defined]
    made: Column = udf(text)
    return made


def _struct(items: keylog_text.Items, ordinals: Sequence[int], *, values: bool) -> pa.StructArray:
    rows = len(items.why)
    whole = np.ones(rows, np.bool_)
    bits = np.stack([whole if p is None else p for p in items.present] or [whole], axis=1)
    masks = pa.nulls(rows, pa.binary())
    if not bits.all():
        masks = mask.pack(bits, ordinals)
        masks = pc.if_else(pa.array(bits.all(axis=1)), pa.scalar(None, pa.binary()), masks)
    parts = {"m": masks, "why": items.why}
    if items.values and values:
        made = pa.StructArray.from_arrays(items.values, [f"c{i}" for i in range(len(items.values))])
        parts = {"v": made, **parts}
    return pa.StructArray.from_arrays(list(parts.values()), list(parts))


def _strings(texts: pa.Array) -> pa.StringArray:
    return texts if texts.type == pa.string() else texts.cast(pa.string())


def names(df: DataFrame, by: str, texts: Mapping[str, bool]) -> DataFrame:
    """The item names in text columns (`texts`: column -> whether its items stand in `<row>`), for each value
    of the column `by`: rows of (`by`, text column, place in its text, name), few, some of them twice."""
    found = f"`{by}` string, text string, place int, name string"

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _names(batch, by, texts)

    return df.select(by, *texts).mapInArrow(look, found)


def _names(batch: pa.RecordBatch, by: str, texts: Mapping[str, bool]) -> pa.RecordBatch:
    rows: list[tuple[str | None, str, int, str]] = []
    for value in pc.unique(batch.column(by)).to_pylist():
        mine = pc.is_null(batch.column(by)) if value is None else pc.equal(batch.column(by), value)
        for text, row in texts.items():
            some = _strings(batch.column(text).filter(pc.fill_null(mine, False)))
            rows += [(value, text, place, name) for _, place, name in keylog_text.names(some, row=row)]
    kinds = {by: pa.string(), "text": pa.string(), "place": pa.int32(), "name": pa.string()}
    columns = [pa.array([r[i] for r in rows], kind) for i, kind in enumerate(kinds.values())]
    return pa.RecordBatch.from_arrays(columns, names=list(kinds))


# -- writing: SQL text, parsed once; as Column calls a wide table would take seconds to put together


def value_text(value: str, field: KeyLogField) -> str:
    """SQL of a value as it stands between the quotes; NULL stays NULL. `value` is SQL of type `field.type`.

    Raises:
        UnsupportedError: a type that a key log has no text for.
    """
    kind = field.type
    if kind == "string":
        digits = OCTET_DIGITS if field.octet else UNICODE_DIGITS
        rare = f"if({value} rlike {literal(_CONTROL)}, {escaped(value, digits)}, {named_escapes(value)})"
        return f"if({value} rlike {literal(_SPECIAL)}, {rare}, {value})"
    if kind.startswith(_PLAIN):
        return f"cast({value} as string)"
    if kind.startswith("timestamp"):
        return f"date_format({value}, 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSS')"
    if kind == "binary":
        return f"concat('{HEX}', hex({value}))"
    if kind == "boolean":
        return f"cast(cast({value} as int) as string)"
    raise UnsupportedError(
        f"a key log has no text for {field.name}, which is {kind}", hint="cast it to string before"
    )


def escaped(value: str, digits: int = UNICODE_DIGITS) -> str:
    """SQL of a text with the five characters and control characters escaped, these with that many digits."""
    value = named_escapes(value)
    zeros = "0" * (digits - 2)
    for letter in "\n\r\t":
        value = f"replace({value}, chr({ord(letter)}), '{HEX}{zeros}{ord(letter):02X}')"
    # Other control characters are rare: letter by letter.
    rare = f"x -> if(x < ' ' and x <> '', concat('{HEX}{zeros}', hex(x)), x)"
    return (
        f"element_at(transform(array({value}), t -> if(t rlike {literal(_CONTROL)}, "
        f"concat_ws('', transform(split(t, ''), {rare})), t)), 1)"
    )


def named_escapes(value: str) -> str:
    """SQL of a text with the five characters escaped."""
    for text, character in NAMED.items():  # the ampersand comes first
        value = f"replace({value}, {literal(character)}, {literal(text)})"
    return value


def literal(text: str) -> str:
    """A text as SQL.

    >>> print(literal("a'b"), literal(chr(92)))
    'a\\'b' '\\\\'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def items(columns: Sequence[Item]) -> str:
    """SQL of the text of these columns: `before_key` and `after_key` of it.

    Costs about what a `concat` of casts does, and one look for special characters a text value.
    """
    made = []
    for field, value, there in columns:
        name = escape_name(field.name)
        start, end = literal(name + '="'), literal('"')
        quoted = f"concat({start}, {value_text(value, field)}, {end})"
        item = f"coalesce({quoted}, {literal(name + NIL)})"
        made.append(item if there is None else f"if({there}, {item}, NULL)")
    return f"concat_ws(' ', {', '.join(made)})" if made else "''"


def image(columns: Sequence[Item], dest: str) -> str:
    """SQL of the text of an `after_image`: `dest` (SQL of a `<Dest>` or NULL) and the items in `<row>`."""
    return f"concat(coalesce({dest}, ''), '<row>', {items(columns)}, '</row>')"


def dest(table: str) -> str:
    """`<Dest>` of a table `schema.name`; what stands before the first dot is the schema.

    >>> dest("shop.item")
    '<Dest>"shop"."item"</Dest>'
    """
    return f"<Dest>{'.'.join(_identifier(p) for p in table.split('.', 1))}{DEST_END}"


def _identifier(name: str) -> str:
    return '"' + escape_name(name).replace(f"{HEX}0020", " ").replace(f"{HEX}003D", "=") + '"'


def dest_of(image: Column) -> Column:
    """The `<Dest>` of an `after_image`; NULL when it has none."""
    from pyspark.sql import functions as F

    begun = F.substring_index(image, DEST_END, 1)
    return F.when(image.startswith("<Dest>") & image.contains(DEST_END), F.concat(begun, F.lit(DEST_END)))


def field_of(name: str, kind: str, *, octet: bool = False) -> KeyLogField:
    """A field, its type checked.

    Raises:
        UnsupportedError: not a type of the lake's.
    """
    arrow_type(kind)
    return KeyLogField(name, kind, octet)


def unescaped(value: Column) -> Column:
    """Text without the five escapes; others stay."""
    from pyspark.sql import functions as F

    for text, character in reversed(NAMED.items()):  # the ampersand comes last
        value = F.replace(value, F.lit(text), F.lit(character))
    return value
