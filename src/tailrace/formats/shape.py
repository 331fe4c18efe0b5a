"""Steps that formats have in common: declared names and types of a vendor's columns, reasons of bad rows, and
canonical columns in their order."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import FormatError
from ..model.change import EXTRA_HEADERS, HEADERS, NATIVE, OPERATIONS, PREFIX, ChangeTable
from ..model.mask import balanced
from ..model.quoting import quoted
from ..model.sequence import WIDTH
from ..model.types import arrow_type
from .base import ADDED_COLUMNS, FILE, FINER, RAW, ROW, WHY, VendorTable
from .spark_functions import F, Window
from .types import as_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def find_columns(have: Sequence[str], table: VendorTable, *, where: str) -> dict[str, str]:
    """Returns declared column name -> actual column, whatever its letter case or spelling.

    Raises:
        FormatError: a required column is missing, or exists in two spellings.

    >>> from tailrace.formats.base import VendorColumn
    >>> t = VendorTable("T", "", (VendorColumn("_Recid", "bigint", "recid", ("_Source-Rowid",)),))
    >>> find_columns(["_SOURCE-ROWID"], t, where="x.csv")
    {'_Recid': '_SOURCE-ROWID'}
    """
    found: dict[str, str] = {}
    lower: dict[str, list[str]] = {}
    for name in have:
        lower.setdefault(name.lower(), []).append(name)
    for column in table.columns:
        spelled = dict.fromkeys(s.lower() for s in (column.name, *column.aliases))
        spellings = [name for s in spelled for name in lower.get(s, [])]
        if len(spellings) > 1:
            raise FormatError(f"{' and '.join(spellings)} both mean {column.name}", where=where)
        if spellings:
            found[column.name] = spellings[0]
        elif not column.optional:
            near = difflib.get_close_matches(column.name, have, 1)
            hint = f"is it {near[0]!r} under another name?" if near else f"the columns are {', '.join(have)}"
            raise FormatError(f"{table.name} has no column {column.name}", where=where, hint=hint)
    return found


def conform(df: DataFrame, table: VendorTable, *, where: str, base64: bool = False) -> DataFrame:
    """Returns the vendor's rows with the declared names and types; undeclared columns follow, `WHY`, `RAW`
    last.

    Values that their type cannot hold become NULL with a reason in `WHY`. Text is parsed according to the
    type; binary columns in text are hex, or base64.
    """
    have = [c for c in df.columns if c not in ADDED_COLUMNS]
    found = find_columns(have, table, where=where)
    typed = TypedColumns()
    for column in table.columns:
        name = found.get(column.name)
        if name is None:
            typed.values[column.name] = F.lit(None).cast(column.type)
        else:
            source_type = df.schema[name].dataType.simpleString()
            typed.add(column.name, F.col(quoted(name)), column.type, source_type, base64=base64)
    result = [value.alias(name) for name, value in typed.values.items()]
    rest = [F.col(quoted(c)) for c in have if c not in found.values()]
    added = [F.col(c) for c in (FILE, ROW) if c in df.columns]
    before = [(F.col(WHY).isNotNull(), F.col(WHY))] if WHY in df.columns else []
    as_came = F.to_json(F.struct(*[F.col(quoted(c)) for c in have]))
    raw_row = F.coalesce(F.col(RAW), as_came) if RAW in df.columns else as_came
    why = reasons([*before, *typed.bad]).alias(WHY)
    return df.select(*result, *rest, *added, why, raw_row.alias(RAW), *finer_too(df, typed.cut))


@dataclass
class TypedColumns:
    """Columns converted to wanted types.

    Attributes:
        values: name -> value.
        bad: conditions under which a value is not valid, with the reason.
        cut: conditions under which the fraction of a time is truncated.
    """

    values: dict[str, Column] = field(default_factory=dict)
    bad: list[tuple[Column, str | Column]] = field(default_factory=list)
    cut: list[Column] = field(default_factory=list)

    def add(
        self, name: str, raw: Column, kind: str, source_type: str = "string", *, base64: bool = False
    ) -> None:
        """Adds a column of the Spark SQL type `source_type`, converted to `kind` (see `types.as_type`)."""
        value = self.values[name] = as_type(raw, kind, source_type, base64=base64)
        if kind != source_type:
            self.bad.append((raw.isNotNull() & value.isNull(), f"{name} is not valid as {kind}"))
        if source_type == "string" and "timestamp" in kind:
            self.cut.append(is_finer(raw))

    def marked(self, df: DataFrame) -> DataFrame:
        """Returns the rows with the reasons of invalid values in `WHY`, and with `FINER`."""
        df = also(df, *self.bad)
        finer = finer_too(df, self.cut)
        return df.withColumn(FINER, finer[0]) if finer else df


def is_finer(text: Column) -> Column:
    """Whether a time in text form has a fraction finer than microseconds."""
    long = F.length(text) > len("2026-01-01 12:00:00.123456")
    return F.coalesce(long & text.rlike(r"\.\d{6}\d*[1-9]"), F.lit(False))


def finer_too(df: DataFrame, cut: Sequence[Column]) -> list[Column]:
    """Returns the column `FINER` with these conditions added; nothing if there are no conditions."""
    there = [F.coalesce(F.col(FINER), F.lit(False))] if FINER in df.columns else []
    return [any_of([*there, *cut]).alias(FINER)] if there or cut else []


def reasons(found: Iterable[tuple[Column, str | Column]]) -> Column:
    """Returns the texts whose conditions are true, joined by `; `; NULL if none is. NULL counts as false."""
    texts = [F.when(c, F.lit(t) if isinstance(t, str) else t) for c, t in found]
    return F.nullif(F.concat_ws("; ", *texts), F.lit("")) if texts else F.lit(None).cast("string")


def also(df: DataFrame, *found: tuple[Column, str | Column]) -> DataFrame:
    """Returns the rows with more reasons in `WHY`, after the existing ones."""
    return df.withColumn(WHY, reasons([(F.col(WHY).isNotNull(), F.col(WHY)), *found]))


def canonical(
    df: DataFrame,
    headers: Mapping[str, Column],
    columns: Mapping[str, Column],
    *,
    key: Sequence[str],
    name: str,
) -> ChangeTable:
    """Returns the canonical change table of `df`: `headers` (names without prefix; missing `HEADERS` are
    NULL, `operation` is that of `change_oper`) and data `columns`, in the contract's order, with `WHY`,
    `FILE`, `ROW`, `RAW` if present.

    Raises:
        FormatError: an unknown header, or a data column with a header's name.
    """
    known = {**HEADERS, **EXTRA_HEADERS}
    odd = [h for h in headers if h not in known and not h.startswith(NATIVE)]
    odd += [c for c in columns if c.lower().startswith(PREFIX)]
    if odd:
        raise FormatError(f"no such header: {', '.join(odd)}", where=name)
    if "operation" not in headers:
        headers = {**headers, "operation": looked_up(OPERATIONS, headers["change_oper"])}
    result = [_header(n, headers.get(n), kind) for n, kind in HEADERS.items()]
    result += [_header(n, headers[n], known.get(n)) for n in headers if n not in HEADERS]
    result += [value.alias(c) for c, value in columns.items()]
    added = [F.col(c) for c in (WHY, FILE, ROW, RAW, FINER) if c in df.columns]
    return ChangeTable(df.select(*result, *added), list(key), list(columns), name=name)


def _header(name: str, value: Column | None, kind: str | None) -> Column:
    result = F.lit(None) if value is None else value
    return (result.cast(kind) if kind else result).alias(PREFIX + name)


def neighbours(df: DataFrame, seq: str, oper: str) -> DataFrame:
    """Returns the rows with those of one change sequence together in one task, B before U, and their `_place`
    among them. A window, because it needs no shuffle if the checks before had one."""
    return df.withColumn("_place", F.row_number().over(Window.partitionBy(seq).orderBy(oper)))


def is_sequence(text: Column) -> Column:
    """Whether a text is a change sequence (35 digits and nothing else); NULL for NULL."""
    return text.rlike(rf"^[0-9]{{{WIDTH}}}\z")


def data_start(headers: Iterable[str]) -> int:
    """Returns the ordinal of the first data column in a canonical table with these headers.

    >>> data_start(["change_seq", "user_name"])
    9
    """
    return len(HEADERS) + sum(h not in HEADERS for h in headers)


def few_rows(spark: SparkSession, kinds: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Returns a table of a few rows (`kinds`: column -> Spark SQL type); columns that a row does not have are
    NULL.

    It is created from Arrow: for lists, Spark would start a Python worker, which takes a second.
    """
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in kinds.items()])
    plain = [{k: bytes(v) if isinstance(v, bytearray) else v for k, v in row.items()} for row in rows]
    return arrow_rows(spark, pa.Table.from_pylist(plain, schema))


def arrow_rows(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Returns an Arrow table as a DataFrame. Times without a zone are `timestamp_ntz`: by default Spark would
    interpret them in the session's zone."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))


def looked_up(known: Mapping[Any, Any], key: Column) -> Column:
    """Returns the value of a constant mapping for a key; NULL if it has none."""
    return F.element_at(F.create_map(*[F.lit(x) for pair in known.items() for x in pair]), key)


def any_of(conditions: Iterable[Column]) -> Column:
    """Whether one of the conditions is true; false without conditions."""
    return balanced([F.lit(False), *conditions], lambda a, b: a | b)
