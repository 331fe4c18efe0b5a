"""Declares the format of solidDB's transaction log reader: extracts of SYS_LOG with SYS_TABLES and
SYS_COLUMNS.

Source: spec/soliddb.md; what is inferred there is an option (`options`). Modules for `read`: `tables`
determines the layout of rows, `log_reader` brings each transaction to a task, in order, `rules` and `log`
select records, `transactions` finds those that are committed, `pairs` converts a table's records to changes,
and `others` keeps the rest. `write` uses `records` to create records. `codec` decodes and encodes DATA;
`wire.soliddb` handles bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...model.change import NATIVE, ChangeTable
from ...model.quoting import quoted
from ...wire.soliddb_rows import row_layout
from .. import file_writer
from ..base import Format, Gap, Tables, value_gap
from ..shape import any_of
from ..spark_functions import F
from .log import KEPT, RECNAMES, SYS_LOG
from .options import SolidOptions
from .reader import kind_of, read
from .tables import SQL, SYS_COLUMNS, SYS_TABLES
from .writer import is_own, keeps_id, write

if TYPE_CHECKING:
    from pyspark.sql import Column


GROUP_BYTES = 8 << 20
"""The size of row groups of Parquet files: small, so that ranges of transactions can be read
(`log_reader`)."""


def knows(columns: Sequence[str]) -> float:
    """Returns how likely a table is one of solidDB's; tailrace's LOG has SYS_LOG's columns, but different
    DATA."""
    if kind_of(columns) is None:
        return 0.0
    return 0.3 if {"CHANGE_SEQ", "COMMIT_TIME"} <= {c.upper() for c in columns} else 1.0


def save(tables: Tables, path: str, kind: str, options: SolidOptions) -> None:
    """Writes each table to a folder named after it; binary columns of text files have the form of the
    option."""
    file_writer.save(tables, path, kind, group_bytes=GROUP_BYTES, base64=options.binary == "base64")


def _own(ct: ChangeTable, value: Column) -> Column:
    """Returns a header's values in rows that were read from solidDB; NULL in others."""
    return F.when(is_own(ct), value)


def _empty(kind: str, type: str, why: str, under: Callable[[SolidOptions], bool]) -> Gap:
    """Returns the gap of empty values of a type, which become NULL in row layouts where length 0 means NULL;
    rows with their original bytes lose nothing."""

    def text_columns(ct: ChangeTable) -> list[str]:
        data = set(ct.columns)
        return [f.name for f in ct.df.schema if f.name in data and f.dataType.simpleString() == type]

    def is_empty(ct: ChangeTable, column: str) -> Column:
        bytes_ = ct.header(NATIVE + "DATA")
        has_bytes = is_own(ct) & F.col(bytes_).isNotNull() if bytes_ in ct.df.columns else F.lit(False)
        return F.coalesce(F.octet_length(quoted(column)) == 0, F.lit(False)) & ~has_bytes

    def erase(ct: ChangeTable) -> ChangeTable:
        result = {c: F.when(~is_empty(ct, c), F.col(quoted(c))) for c in text_columns(ct)}
        return ct.with_df(ct.df.withColumns(result)) if result else ct

    def lost(ct: ChangeTable) -> Column:
        return any_of(is_empty(ct, c) for c in text_columns(ct))

    return Gap(kind, why, lost, erase, lambda o: row_layout(o.row_layout).empty_is_null and under(o))


def _no_columns(ct: ChangeTable) -> Column:
    return F.lit(not ct.columns)


FORMAT = Format(
    name="soliddb",
    title="solidDB transaction log reader (SYS_LOG)",
    source="spec/soliddb.md; vendor page 004",
    tables=(SYS_LOG, SYS_TABLES, SYS_COLUMNS),
    operations={
        "1": "I, or the U of a key change",
        "3": "U",
        "4": "D, or the B of a key change",
        "5": "B",
        "13": "T if LOGRECID is 73; other DDL stays unchanged",
        **{str(n): name for n, name in RECNAMES.items() if n in (0, 6, 7, 12)},
    },
    order=("LOGADDR",),
    row_key="the option `keys`, or SYS_COLUMNS.REMARKS in tables written by tailrace",
    images="all columns in every image; 5 before 3 in updates",
    masks="none: the changed columns are unknown",
    types={name: kind for name, _, kind in SQL.values()},
    files=("parquet", "csv", "json", "delta"),
    holds=frozenset(
        {"transaction_id", "stream_position", "column_mask", "statement_id", *(NATIVE + c for c in KEPT)}
        | {"change_seq", "change_oper", "operation"}
    ),
    cannot=(
        value_gap("absent_columns", "missing columns become NULL", "column_mask", _own),
        value_gap(
            "transaction_id",
            "TRXID is a number: other ids are lost",
            "transaction_id",
            lambda ct, value: F.when(keeps_id(ct), value),
        ),
        value_gap("stream_position", "a position is derived from change_seq", "stream_position", _own),
        Gap(
            "no_columns",
            "tables without columns do not exist: their changes are left out",
            _no_columns,
            lambda ct: ct.with_df(ct.df.filter(~_no_columns(ct))),
        ),
        _empty("empty_binary", "binary", "empty bytes become NULL in row layout A", lambda o: True),
        _empty(
            "empty_text",
            "string",
            "empty text becomes NULL in row layout A with `trailing_nul=false`",
            lambda o: not o.trailing_nul,
        ),
    ),
    options=SolidOptions,
    read=read,
    write=write,
    knows=knows,
    save=save,
    ids_option="names",
)  # fmt: skip
