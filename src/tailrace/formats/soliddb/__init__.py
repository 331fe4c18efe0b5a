"""solidDB's transaction log reader: extracts of SYS_LOG with SYS_TABLES and SYS_COLUMNS.

Source: spec/soliddb.md; what is inferred there is an option (`options`). Reading (`read`): `tables` says how
rows are laid out, `log_reader` brings each transaction to a task, in order, `rules` and `log` decide which
records are read, `transactions` which are committed, `pairs` makes changes of a table's records, `others`
keeps the rest. Writing (`write`): `records` makes records of changes. `codec` reads and writes DATA; bytes
are in `wire.soliddb`.
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
"""Row groups of Parquet files are small, so that ranges of transactions can be read (`log_reader`)."""


def knows(columns: Sequence[str]) -> float:
    """How likely a table is one of solidDB's; tailrace's LOG has SYS_LOG's columns, but different DATA."""
    if kind_of(columns) is None:
        return 0.0
    return 0.3 if {"CHANGE_SEQ", "COMMIT_TIME"} <= {c.upper() for c in columns} else 1.0


def save(tables: Tables, path: str, kind: str, options: SolidOptions) -> None:
    """Writes each table to a folder named after it, binary columns of text files as the option says."""
    file_writer.save(tables, path, kind, group_bytes=GROUP_BYTES, base64=options.binary == "base64")


def _own(ct: ChangeTable, value: Column) -> Column:
    """A header's values in rows that came from solidDB; NULL in others."""
    return F.when(is_own(ct), value)


def _empty(kind: str, type: str, why: str, under: Callable[[SolidOptions], bool]) -> Gap:
    """The gap of empty values of a type, which are NULL in row layouts in which a length of 0 is; rows whose
    bytes are kept lose none."""

    def named(ct: ChangeTable) -> list[str]:
        data = set(ct.columns)
        return [f.name for f in ct.df.schema if f.name in data and f.dataType.simpleString() == type]

    def gone(ct: ChangeTable, column: str) -> Column:
        bytes_ = ct.header(NATIVE + "DATA")
        kept = is_own(ct) & F.col(bytes_).isNotNull() if bytes_ in ct.df.columns else F.lit(False)
        return F.coalesce(F.octet_length(quoted(column)) == 0, F.lit(False)) & ~kept

    def erase(ct: ChangeTable) -> ChangeTable:
        made = {c: F.when(~gone(ct, c), F.col(quoted(c))) for c in named(ct)}
        return ct.with_df(ct.df.withColumns(made)) if made else ct

    def lost(ct: ChangeTable) -> Column:
        return any_of(gone(ct, c) for c in named(ct))

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
        "13": "T when LOGRECID is 73; other DDL is kept unchanged",
        **{str(n): name for n, name in RECNAMES.items() if n in (0, 6, 7, 12)},
    },
    order=("LOGADDR",),
    row_key="the option `keys`, or SYS_COLUMNS.REMARKS in tables written by tailrace",
    images="all columns in every image; 5 before 3 in updates",
    masks="none: it is not known which columns changed",
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
            "TRXID is a number: other ids are not kept",
            "transaction_id",
            lambda ct, value: F.when(keeps_id(ct), value),
        ),
        value_gap("stream_position", "a position is derived from change_seq", "stream_position", _own),
        Gap(
            "no_columns",
            "there is no table without columns: its changes are left out",
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
