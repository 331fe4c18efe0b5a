"""Writes canonical change tables as Qlik change tables, following the settings of the Store Changes page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from ...model import mask, sequence
from ...model.change import BEFORE, DELETE, INSERT, NATIVE, TRUNCATE, ChangeTable
from ...model.quoting import quoted
from ..spark_functions import F
from . import control
from . import layout as lay
from . import partitions as parts
from .options import HEADERS, QlikOptions
from .reader import QLIK, word_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def write(changes: Mapping[str, ChangeTable], options: QlikOptions) -> dict[str, DataFrame]:
    """Returns change tables, named with the suffix; rows from full-load files, under the plain name; and
    attrep_cdc_partitions if the option `partition_minutes` creates partitions."""
    result: dict[str, DataFrame] = {}
    closed: list[DataFrame] = []
    for name, ct in changes.items():
        loaded = was_loaded(ct)
        rows = ct.df if loaded is None else ct.df.filter(~loaded)
        if not options.before_images:
            rows = rows.filter(~_header(ct, "change_oper").eqNullSafe(BEFORE))
        result[name + options.suffix] = _written(ct.with_df(rows), options)
        if loaded is not None:
            result[name] = _loads(ct.with_df(ct.df.filter(loaded)), options)
        if options.partition_minutes:
            named = _partition(ct, options).alias("name")
            seqs = rows.select(named, _header(ct, "change_seq").alias("change_seq"))
            who: dict[str, Any] = {"server": options.server, "task": options.task}
            closed.append(control.partition_rows(seqs, "name", name, **who))
    if closed:
        result[parts.TABLE] = reduce(lambda a, b: a.unionByName(b), closed)
    return result


def was_loaded(ct: ChangeTable) -> Column | None:
    """Whether rows are from full-load files; None if none can be."""
    if lay.LOADED not in ct.headers:
        return None
    seq = _header(ct, "change_seq")
    first = seq.startswith("0") & seq.endswith("0" * sequence.NUMBER_DIGITS)
    came = (_header(ct, lay.LOADED) == "L") & (_header(ct, "change_oper") == INSERT) & first
    return F.coalesce(came, F.lit(False))


def _header(ct: ChangeTable, name: str) -> Column:
    return F.col(quoted(ct.header(name)))


def _written(ct: ChangeTable, options: QlikOptions) -> DataFrame:
    """Returns one change table with the vendor's columns."""
    prefix = options.written_prefix()
    partitioned = "partition_name" in ct.headers or options.partition_minutes > 0
    heads = options.written_headers(partitioned)
    natives = _natives(ct)
    start = len(heads) + len(natives)
    values: dict[str, Column] = {h: _header(ct, h) for h in ct.headers if h in heads}
    oper = _header(ct, "change_oper")
    values["operation"] = (
        F.coalesce(values["operation"], word_of(oper)) if "operation" in values else word_of(oper)
    )
    values["change_oper"] = F.when(oper == TRUNCATE, F.lit(options.truncate_code)).otherwise(oper)
    if "change_mask" in heads:
        values["change_mask"] = _mask(ct, start, natives, len(heads), options)
    if options.partition_minutes:
        values["partition_name"] = _partition(ct, options)
    # So readers need not inspect rows to know the byte order of masks.
    notes = {"change_mask": {lay.BIG: 1}} if options.mask_order != "little" else {}
    result = [
        values.get(h, F.lit(None)).cast(HEADERS[h]).alias(prefix + h, metadata=notes.get(h, {}))
        for h in heads
    ]
    result += [_header(ct, h).alias(was, metadata={QLIK: was}) for h, was in natives.items()]
    return ct.df.select(*result, *_data(ct))


def _partition(ct: ChangeTable, options: QlikOptions) -> Column:
    sliced = parts.name_of(_header(ct, "change_seq"), options.partition_minutes)
    return F.coalesce(_header(ct, "partition_name"), sliced) if "partition_name" in ct.headers else sliced


def _natives(ct: ChangeTable) -> dict[str, str]:
    """Returns canonical `native_` headers that were read from a Qlik table -> their original names."""
    fields = {f.name: f.metadata for f in ct.df.schema}
    named = {h: fields[ct.header(h)].get(QLIK) for h in ct.headers if h.startswith(NATIVE)}
    return {h: str(was) for h, was in named.items() if was}


def _mask(
    ct: ChangeTable, start: int, natives: Mapping[str, str], before: int, options: QlikOptions
) -> Column:
    """Returns the change mask in the written table's ordinals; a missing one as the operation implies."""
    ordinal = {n: i for i, n in enumerate(ct.df.columns)}
    data = {ordinal[c]: (0 if options.masks == "queue" else start) + i for i, c in enumerate(ct.columns)}
    more = {ordinal[ct.header(h)]: before + i for i, h in enumerate(natives)}
    places = data if options.masks == "queue" else data | more
    little = options.mask_order == "little"
    moved = _implied(ct, data, little=little)
    if "change_mask" in ct.headers:
        moved = F.coalesce(mask.move(_header(ct, "change_mask"), places, to_little=little), moved)
    if not options.mask_bytes:
        return moved
    missing = F.greatest(F.lit(options.mask_bytes) - F.octet_length(moved), F.lit(0))
    zeros = F.unhex(F.repeat(F.lit("00"), missing))
    return F.concat(moved, zeros) if little else F.concat(zeros, moved)


def _implied(ct: ChangeTable, places: Mapping[int, int], *, little: bool) -> Column:
    """Returns the mask by Qlik's rule (spec/qlik.md §2): inserts have every column they carry, deletes the
    key, before images none; NULL for updates, for which it would have to be derived from the images."""

    def made(names: Sequence[str]) -> Column:
        octets = mask.encode(places[ct.ordinal(n)] for n in names)
        return F.lit(bytearray(octets[::-1] if little else octets))

    oper, carried = _header(ct, "change_oper"), F.lit(None).cast("binary")
    if "column_mask" in ct.headers:
        carried = mask.move(_header(ct, "column_mask"), places, to_little=little)
    inserted = F.when(oper == INSERT, F.coalesce(carried, made(ct.columns)))
    changed = inserted.when(oper == BEFORE, made([]))
    return changed.when(oper == DELETE, made(ct.key)) if ct.key else changed


def _data(ct: ChangeTable) -> list[Column]:
    """Returns the data columns; those of the key are marked in their metadata, for the DFM."""
    place = {k: {lay.KEY_POS: i} for i, k in enumerate(ct.key, 1)}
    return [F.col(quoted(c)).alias(c, metadata=place.get(c, {})) for c in ct.columns]


def _loads(ct: ChangeTable, options: QlikOptions) -> DataFrame:
    """Returns rows of full-load files: the data columns, after the headers with the time of the load."""
    prefix = options.written_prefix()
    kept: Sequence[str] = [h for h in ("change_seq", "timestamp") if h in ct.headers]
    return ct.df.select(
        *[_header(ct, h).alias(prefix + h, metadata={lay.HEADER: 1}) for h in kept], *_data(ct)
    )
