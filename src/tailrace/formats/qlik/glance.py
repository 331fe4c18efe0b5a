"""The first rows of Qlik tables, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from ...errors import FormatError
from ...model.change import INSERT
from ..first_rows import Glance, TableSample
from ..given import key_of
from ..glances import headed
from ..samples import of_csv, of_json, sample
from ..text import packing
from . import files as found
from . import layout as lay
from .data_file import DataFile
from .files import Listing
from .options import QlikOptions


def samples(path: str, options: QlikOptions) -> dict[str, TableSample]:
    """The tables under a path with the first rows of each layout; keys and types in the schema's metadata.

    Raises:
        ConfigError, FormatError: as `loading.load`.
    """
    listed = found.listing(path, options)
    found.refuse_nothing(listed, path)
    made = {n: _first(listed, files, options) for n, files in found.tables(listed, options).items()}
    return made | {n: sample(_place(listed, f)) for n, f in found.delta_by_name(listed, options).items()}


def _place(listed: Listing, path: str) -> Path:
    return Path(listed.root) / path


def _first(listed: Listing, files: Sequence[DataFile], options: QlikOptions) -> TableSample:
    """The rows of one file per layout, the newest first."""
    layouts = {f.layout: f for f in reversed(files)}
    made = [_one(listed, f, options) for f in layouts.values()]
    newest = made[0]
    counts = [f.meta.records if f.meta else None for f in files]
    total = None if None in counts else sum(c for c in counts if c is not None)
    return TableSample(newest.rows, newest.total if len(files) == 1 else total, newest.text, tuple(made[1:]))


def _one(listed: Listing, file: DataFile, options: QlikOptions) -> TableSample:
    if file.kind == "parquet":
        made = sample(_place(listed, file.path))
    else:
        where = f"{listed.root}/{file.path}"
        with listed.fs.open_input_stream(where, compression=packing(where)) as stream:
            made = (_json if file.kind == "json" else _csv)(stream, file, options)
    columns = file.meta.columns if file.meta else ()
    types_of = {c.name: f"{c.key} {c.spark(options.datetime)}" for c in columns}
    return TableSample(made.rows.replace_schema_metadata(types_of), made.total, made.text)


def _json(stream: IO[bytes], file: DataFile, options: QlikOptions) -> TableSample:
    try:
        return of_json(stream, encoding=options.encoding)
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"it cannot be read: {error}", where=file.path) from error


def _csv(stream: IO[bytes], file: DataFile, options: QlikOptions) -> TableSample:
    try:
        return of_csv(stream, file.names, found.dialect(file, options), header=options.csv_header)
    except FormatError as error:
        raise FormatError(error.what, where=file.path, hint=error.hint) from error


def glance(tables: Mapping[str, TableSample], options: QlikOptions, path: str) -> list[Glance]:
    """The first rows of change tables and full loads."""
    made: dict[str, Glance] = {}
    for name, newest in sorted(tables.items()):
        source = options.source_of(name) or name
        glances = [_glance(source, one, options) for one in (newest, *newest.older)]
        if source in made:
            glances.append(made[source])
        made[source] = replace(glances[0], changes=[c for g in glances for c in g.changes])
    return list(made.values())


def _glance(source: str, one: TableSample, options: QlikOptions) -> Glance:
    types_of = _dfm_types(one)
    key = key_of(options.key, source) or [c for _, c in sorted((p, c) for c, (p, _) in types_of.items() if p)]
    types = {c: kind for c, (_, kind) in types_of.items()}
    prefix = lay.find_prefix(one.columns, options.prefix)
    if prefix is None:
        loaded = [{"change_oper": INSERT, "native_oper": "L"} for _ in range(one.rows.num_rows)]
        return Glance(source, key, {**one.types(), **types}, loaded)
    heads = lay.headers_of(one.columns, prefix)
    mine = {c for c in one.columns if prefix and c.lower().startswith(prefix.lower())}
    native = mine.difference(heads.values())
    data = [c for c in one.columns if c not in (*heads.values(), *native)]
    counted = data if options.masks == "queue" else one.columns
    little = {"big": False, "little": True, "auto": None}[options.mask_order]
    return headed(source, one, heads, key, types=types, counted=counted, little=little, native=native)


def _dfm_types(one: TableSample) -> dict[str, tuple[int, str]]:
    """Column -> its place in the key (0: none) and its type, from the DFM."""
    found: dict[str, tuple[int, str]] = {}
    for name, text in (one.rows.schema.metadata or {}).items():
        place, _, kind = text.decode().partition(" ")
        if place.isdigit() and name.decode() in one.columns:
            found[name.decode()] = (int(place), kind)
    return found
