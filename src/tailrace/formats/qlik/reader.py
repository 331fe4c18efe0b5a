"""Converts Qlik change tables and full-load tables to canonical change tables, without shuffles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import FormatError
from ...model import mask, sequence
from ...model.change import EXTRA_HEADERS, HEADERS, INSERT, OPERATIONS, TRUNCATE, ChangeTable
from ...model.quoting import quoted
from ..base import ADDED_COLUMNS, FILE, OWN, WHY, Read, Tables, VendorColumn, VendorTable
from ..json_lines import is_of_lines
from ..option_names import key_of, keys_of_none, refuse_columns
from ..shape import also, canonical, conform, is_sequence
from ..spark_functions import F
from . import control
from . import layout as lay
from . import partitions as parts
from .masks import is_little
from .options import HEADERS as KNOWN
from .options import QlikOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QLIK = "qlik"
"""In the metadata of a canonical `native_` header: its column name in the Qlik table."""
_WORD = OWN + "operation"
NOTE = "tailrace"
"""In the metadata of the column `FILE`: notes about the files."""


def read(tables: Tables, options: QlikOptions) -> Read:
    """Returns canonical change tables, one per source table: its changes, and before them its full load."""
    found: dict[str, tuple[DataFrame | None, DataFrame | None]] = {}
    notes: list[str] = []
    kept: dict[str, DataFrame] = {}
    control_tables: dict[str, DataFrame] = {}
    lines = set()
    for name, df in tables.items():
        notes += _said(df)
        if control.is_control(name):
            control_tables[name] = kept[control.plain(name)] = control.conformed(name, df)
            continue
        source = options.source_of(name)
        changed = lay.find_prefix(lay.columns_of(df), options.prefix) is not None
        if source is not None and not changed:
            raise FormatError(f"{name} has no change_seq and change_oper", where=", ".join(df.columns))
        if is_of_lines(df):
            lines.add(source or name)
        loaded, before = found.get(source or name, (None, None))
        if (before if changed else loaded) is not None:
            raise FormatError(f"two tables {source or name}", where=name)
        found[source or name] = (loaded, df) if changed else (df, before)
    changes, pending = {}, {}
    for name, (loaded, rows) in found.items():
        df, prefix = _together(name, loaded, rows, options)
        if options.partitions == "closed" and rows is not None:
            df, waiting = _closed(df, prefix, parts.closed(kept.get(parts.TABLE), name, options.suffix))
            pending[name + options.suffix] = waiting
        changes[name], said = _canonical(df, prefix, name, options)
        notes += said
    notes += keys_of_none(options.key, found)
    keyless = {n: "no DFM names a key" for n, ct in changes.items() if ct.columns and not ct.key}
    left_out = frozenset(lines)
    return Read(changes, pending, tuple(notes), control_tables, keyless=keyless, left_out=left_out)


def _said(df: DataFrame) -> list[str]:
    return list(df.schema[FILE].metadata.get(NOTE, [])) if FILE in df.columns else []


def _together(
    name: str, loaded: DataFrame | None, changed: DataFrame | None, options: QlikOptions
) -> tuple[DataFrame, str]:
    """Returns a table's rows, with those of its full load as changes before all others."""
    if changed is None:
        if loaded is None:
            raise FormatError("no rows", where=name)
        prefix = lay.find_prefix(lay.columns_of(loaded), options.prefix) or options.written_prefix()
        return as_changes(loaded, prefix), prefix
    prefix = lay.find_prefix(lay.columns_of(changed), options.prefix) or ""
    if loaded is None:
        return changed, prefix
    changed = lay.binary_masks(changed, prefix)
    first = as_changes(loaded, lay.find_prefix(lay.columns_of(loaded), prefix) or prefix)
    layouts = [lay.layout_of(first), lay.layout_of(changed)]
    want = lay.merged(layouts)
    masked = prefix + lay.COLUMN_MASK
    short = any({n.lower() for n in want.names} - {n.lower() for n in have.names} - _heads(want, prefix)
                for have in layouts)  # fmt: skip
    if short and masked not in want.types:
        want = lay.QlikLayout({**want.types, masked: "binary"}, want.keys)
    little = options.mask_order == "little" or (
        options.mask_order == "auto" and in_doubt(changed, prefix) and bool(is_little(changed, prefix))
    )
    result = [
        lay.arrange(df, want, prefix, little=little, base64=options.binary_text == "base64")
        for df in (first, changed)
    ]
    return lay.keyed(result[0].unionByName(result[1], allowMissingColumns=True), want.keys), prefix


def _heads(layout: lay.QlikLayout, prefix: str) -> set[str]:
    return {n.lower() for n in lay.headers_of(layout.names, prefix).values()}


def as_changes(loaded: DataFrame, prefix: str) -> DataFrame:
    """Returns rows of full-load files as inserts: `native_oper` L, before every change.

    A row that has a change_seq keeps it. Others get one, unique in the table: a time before all times, and
    the change number 0, so that loaded rows never count as progress after a change.
    """
    have = lay.columns_of(loaded)
    # Without a prefix, only columns marked by `load` are headers: a table may well have a column `timestamp`.
    heads = {
        h: n
        for h, n in lay.headers_of(have, prefix).items()
        if prefix or loaded.schema[n].metadata.get(lay.HEADER)
    }
    number = F.lpad((F.monotonically_increasing_id() + 1).cast("string"), sequence.TIME_DIGITS, "0")
    result = {
        "change_seq": F.concat(number, F.lit("0" * sequence.NUMBER_DIGITS)),
        "change_oper": F.lit(INSERT),
        "operation": F.lit(OPERATIONS[INSERT]),
        lay.LOADED: F.lit("L"),
    }
    given = {h: F.col(quoted(n)) for h, n in heads.items() if h not in result or h == "change_seq"}
    result |= given
    order = [h for h in (*KNOWN, lay.LOADED) if h in result]
    data = [loaded[quoted(n)] for n in have if n not in heads.values()]
    behind = [F.col(c) for c in ADDED_COLUMNS if c in loaded.columns]
    return loaded.select(*[result[h].alias(prefix + h) for h in order], *data, *behind)


def _closed(df: DataFrame, prefix: str, names: list[str]) -> tuple[DataFrame, DataFrame]:
    """Returns rows of closed partitions (and of the full load), and rows that wait."""
    heads = lay.headers_of(lay.columns_of(df), prefix)
    if "partition_name" not in heads:
        raise FormatError("there is no partition_name", hint="read partitions=all")
    ready = F.col(quoted(heads["partition_name"])).isin(names) if names else F.lit(False)
    if lay.LOADED in heads:
        ready = ready | (F.col(quoted(heads[lay.LOADED])) == "L")
    ready = F.coalesce(ready, F.lit(False))
    return df.filter(ready), df.filter(~ready).withColumn(WHY, F.lit("its partition is not closed"))


def in_doubt(df: DataFrame, prefix: str) -> bool:
    """Whether only the rows can show the byte order of masks."""
    name = lay.headers_of(lay.columns_of(df), prefix).get("change_mask")
    if name is None or df.schema[name].dataType.simpleString() != "binary":
        return False
    return not df.schema[name].metadata.get(lay.BIG)


def _canonical(df: DataFrame, prefix: str, name: str, options: QlikOptions) -> tuple[ChangeTable, list[str]]:
    """Returns one vendor table with headers as a canonical change table, and notes about it."""
    names = lay.columns_of(df)
    heads, natives = lay.headers_of(names, prefix), lay.natives_of(names, prefix)
    key = key_of(options.key, name) or lay.key_of([lay.layout_of(df)])
    data = [n for n in names if n not in heads.values() and n not in natives.values()]
    little, notes = _byte_order(df, prefix, name, options)
    refuse_columns("key", name, key, data, hint="see the options key and, for text files, delimiter")
    for native in natives.values():
        df = df.withMetadata(native, {QLIK: native})
    df = conform(df, _declared(heads, prefix), where=name)
    held = {h: F.col(quoted(prefix + h)) for h in heads}
    extras = [h for h in heads if h in EXTRA_HEADERS] + list(natives)
    # A column's bit in the vendor's masks -> its bit here, after all headers.
    order = [*(None for _ in HEADERS), *(natives.get(h) for h in extras), *data]
    bit = {n: i for i, n in enumerate(order) if n is not None}
    counted = data if options.masks == "queue" else names
    places = {i: bit[n] for i, n in enumerate(counted) if n in bit}
    found = {h: held[h] for h in ("change_mask", lay.COLUMN_MASK) if h in held}
    letter = held["change_oper"]
    df = df.select("*", word_of(letter, options.truncate_code).alias(_WORD))
    df, words = _words(df, found, len(counted), little=little)
    bad = [
        why
        for h, m in found.items()
        for why in lay.outside(m, len(counted), list(places), h, little=little, words=words[h])
    ]
    df = also(df, *_reasons(held, F.col(_WORD)), *bad)
    oper = F.when(letter == options.truncate_code, F.lit(TRUNCATE)).otherwise(letter)
    headers = held | {h: F.col(quoted(n)) for h, n in natives.items()}
    headers |= {
        h: F.when(m.isNotNull(), mask.from_words(mask.moved(words[h], places))) for h, m in found.items()
    }
    headers |= {"change_oper": oper, "operation": F.col(_WORD)}
    ordered = {h: headers[h] for h in (*HEADERS, *extras) if h in headers}
    return canonical(df, ordered, {c: F.col(quoted(c)) for c in data}, key=key, name=name), notes


def _words(
    df: DataFrame, masks: dict[str, Column], width: int, *, little: bool
) -> tuple[DataFrame, dict[str, list[Column]]]:
    """Returns the rows with their masks as 64-bit words: computed once, because several expressions need
    them."""
    result: dict[str, list[Column]] = {}
    extra = []
    for header, bits in masks.items():
        names = []
        for k, word in enumerate(mask.words(bits, width, little=little)):
            names.append(f"{OWN}{header}_{k}")
            extra.append(word.alias(names[-1]))
        result[header] = [F.col(n) for n in names]
    return (df.select("*", *extra) if extra else df), result


def _byte_order(df: DataFrame, prefix: str, name: str, options: QlikOptions) -> tuple[bool, list[str]]:
    """Whether masks are little-endian; determined from rows only for binary masks of a complete table."""
    if options.mask_order != "auto" or not in_doubt(df, prefix) or options.masks == "queue":
        return options.mask_order == "little", []
    little = is_little(df, prefix)
    if little:
        return True, [f"{name}: masks have their least significant byte first (detected from rows)"]
    return False, []


def _declared(heads: dict[str, str], prefix: str) -> VendorTable:
    """Returns the existing header columns, in the form that `conform` needs."""
    types = {**KNOWN, lay.COLUMN_MASK: "binary", lay.LOADED: "string"}
    columns = [VendorColumn(prefix + h, types[h], h, (n,)) for h, n in heads.items()]
    return VendorTable("change table", "", tuple(columns))


def word_of(letter: Column, truncate: str = TRUNCATE) -> Column:
    """Returns the operation for a letter, NULL for an unknown one; `truncate` is the letter of a TRUNCATE."""
    result = F.lit(None).cast("string")
    for code, word in OPERATIONS.items():
        result = F.when(letter == (truncate if code == TRUNCATE else code), F.lit(word)).otherwise(result)
    return result


def _reasons(held: dict[str, Column], word: Column) -> list[tuple[Column, str | Column]]:
    """Returns reasons for wrong headers of a row; `word` is the operation of its change_oper."""
    seq, letter = held["change_seq"], held["change_oper"]
    short = F.concat(F.lit("change_seq is not 35 digits: "), seq)
    unknown = F.concat(F.lit("unknown operation "), letter)
    found: list[tuple[Column, str | Column]] = [
        (seq.isNull() | ~is_sequence(seq), F.coalesce(short, F.lit("no change_seq"))),
        (word.isNull(), F.coalesce(unknown, F.lit("no change_oper"))),
    ]
    if "operation" in held:
        said = held["operation"]
        plain = F.upper(F.trim(said))
        text = F.concat(F.lit("operation "), said, F.lit(" but change_oper "), letter)
        found.append(((said != word) & (plain != word), text))
        hint = F.concat(F.lit("a TRUNCATE with the letter "), letter, F.lit(": see the option truncate_code"))
        found.append((word.isNull() & (plain == OPERATIONS[TRUNCATE]), hint))
    return found
