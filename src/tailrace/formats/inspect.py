"""Inspects files: which vendor's tables they are, headers, masks as column names, and problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .. import formats
from ..errors import FormatError
from ..model import mask
from ..model.change import ChangeTable
from ..model.quoting import quoted
from . import convert, file_reader, new_folder, recognition
from .base import ADDED_COLUMNS, FINER, WHY, Read, shown
from .spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREVIEW = 1000
"""The number of rows of each table that a preview reads."""
LENIENT = {"orphans": "keep", "starts": "optional"}
"""Options that allow to read parts of a vendor's tables without the rest."""
SHOWN = ("change_seq", "change_oper", "timestamp", "transaction_id")


@dataclass
class Table:
    """A source table: its headers and how many rows have values in them, key, columns with types, first
    changes (`changed`: names in the change mask, `carried`: names that the image has; None: unknown, or all),
    rows by operation, and reasons of bad rows with their counts."""

    name: str
    headers: dict[str, int]
    key: list[str]
    columns: dict[str, str]
    rows: list[dict[str, Any]]
    operations: dict[str, int]
    odd: dict[str, int] = field(default_factory=dict)


@dataclass
class Found:
    """The result of `inspect` for a path.

    It has the format, the degree of certainty (0 to 1), vendor tables and source tables, the first rows of
    tables without changes (policies, control tables), and for every table in the folder the format that
    recognises it best (empty: none).
    """

    format: str
    sure: float
    vendor_tables: dict[str, list[str]]
    tables: list[Table]
    notes: list[str]
    control_tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    vendors: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Returns the result for `--json`."""
        return asdict(self)


def inspect(
    spark: SparkSession,
    path: str,
    *,
    form: str | None = None,
    given: Mapping[str, str] | None = None,
    rows: int = 5,
    first: int | None = None,
) -> Found:
    """Inspects a file or folder: which vendor's tables it has, and the first `rows` changes of each.

    Args:
        spark: the session.
        path: a file, a folder of files, or a folder of tables.
        form: the format's name; detected by default.
        given: the format's options.
        rows: the number of changes to show per table.
        first: reads only this many rows of each table, and does not check them (a preview). By default all
            rows are read and checked.

    Raises:
        FormatError: no format recognises the tables.
    """
    new_folder.refuse_half(path)
    found, sure = recognition.recognise(path) if form is None else (formats.get(form), 1.0)
    side = convert.side(found.name, path, given or {})
    vendor = convert.load(spark, side)
    columns = {n: columns_of(df) for n, df in vendor.items()}
    read, notes = (
        _read(spark, side, given or {}) if first is None else _preview(vendor, side, given or {}, first)
    )
    shown = [_table(name, ct, rows, checked=first is None) for name, ct in sorted(read.changes.items())]
    whose = recognition.formats_at(path, vendor, found)
    strangers = {n for n, v in whose.items() if v != found.name}
    waiting = convert.waiting_rows(read.pending)
    notes += [*read.notes, *convert.key_notes(read, found), *waiting]
    notes += convert.odd_files(spark, side) if first is None else []
    control_tables = {n: _rows(df, rows) for n, df in read.control_tables.items() if n not in strangers}
    notes += recognition.notes(whose, found)
    if not any(t.operations for t in shown) and not waiting and not any(control_tables.values()):
        notes.append(f"{path} has no rows")
    if first is not None:
        notes.append(
            f"at most {first:,} rows of each table were read; --check reads all of them and reports bad ones"
        )
    return Found(found.name, sure, columns, shown, notes, control_tables, whose)


def columns_of(df: DataFrame) -> list[str]:
    """Returns a table's columns, without those that were added when it was read."""
    return [c for c in df.columns if c not in ADDED_COLUMNS]


def _preview(
    tables: Mapping[str, DataFrame], side: convert.Side, given: Mapping[str, str], first: int
) -> tuple[Read, list[str]]:
    """Returns the change tables of the first rows of the vendor's tables; of declarations (policies) all
    rows."""
    some = {n: df if side.form.declares(columns_of(df)) else df.limit(first) for n, df in tables.items()}
    looser = convert.side(side.form.name, side.path, {**given, **_lenient(side, given)})
    return side.form.read(some, looser.options), file_reader.notes_of(tables)


def _read(spark: SparkSession, side: convert.Side, given: Mapping[str, str]) -> tuple[Read, list[str]]:
    """Returns the change tables; parts of a vendor's tables are read as far as options allow it."""
    try:
        return convert.read(spark, side), []
    except FormatError as error:
        if not (more := _lenient(side, given)):
            raise
        looser = convert.side(side.form.name, side.path, {**given, **more})
        said = ", ".join(f"{k}={v}" for k, v in more.items())
        return convert.read(spark, looser), [f"read with {said}, because of: {error.what}"]


def _lenient(side: convert.Side, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of `LENIENT` that the format has and that are not set."""
    return {k: v for k, v in LENIENT.items() if k in side.form.options.model_fields and k not in given}


def _rows(df: DataFrame, rows: int) -> list[dict[str, Any]]:
    """Returns the first rows as text, without columns that have no values."""
    names = [c for c in df.columns if c == WHY or c not in ADDED_COLUMNS]
    found = [
        r.asDict() for r in df.select(*[F.col(quoted(c)).cast("string") for c in names]).limit(rows).collect()
    ]
    filled = [n for n in names if any(r[n] is not None for r in found)]
    short = shown(df.columns)
    return [{short.get(n, n): r[n] for n in filled} for r in found]


def _table(name: str, ct: ChangeTable, rows: int, *, checked: bool) -> Table:
    oper = F.col(ct.header("change_oper"))
    filled = [F.count(F.col(quoted(ct.header(h)))).alias(h) for h in ct.headers]
    finer = F.count_if(FINER) if FINER in ct.df.columns else F.lit(0)
    counted = ct.df.groupBy(
        oper.alias("oper"), F.regexp_replace(WHY, r"change \S+", "change ...").alias("why")
    )
    # One row per operation and reason: a small result, whatever the table's size.
    groups = counted.agg(F.count(F.lit(1)).alias("n"), finer.alias(FINER), *filled).collect()
    operations: dict[str, int] = {}
    odd: dict[str, int] = {}
    for group in groups:
        operations[str(group["oper"])] = operations.get(str(group["oper"]), 0) + group["n"]
        if group["why"]:
            odd[group["why"]] = odd.get(group["why"], 0) + group["n"]
    if cut := sum(group[FINER] for group in groups):
        odd[convert.FRACTION] = cut
    headers = {h: n for h in ct.headers if (n := sum(g[h] for g in groups))}
    types = {c: ct.df.schema[c].dataType.simpleString() for c in ct.columns}
    return Table(name, headers, ct.key, types, _first(ct, rows), operations, odd if checked else {})


def _first(ct: ChangeTable, rows: int) -> list[dict[str, Any]]:
    """Returns the first changes, with masks as column names."""
    places = {ct.ordinal(c): c for c in ct.columns}
    shown = [F.col(ct.header(h)).cast("string").alias(h) for h in SHOWN]
    for header, name in (("change_mask", "changed"), ("column_mask", "carried")):
        value = F.col(ct.header(header))
        shown.append(F.when(value.isNotNull(), mask.names(value, places)).alias(name))
    first = ct.df.filter(F.col(WHY).isNull()) if WHY in ct.df.columns else ct.df
    order = [ct.header("change_seq"), ct.header("change_oper")]
    return [row.asDict() for row in first.orderBy(*order).limit(rows).select(*shown).collect()]
