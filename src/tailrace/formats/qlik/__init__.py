"""Declares Qlik Replicate's change tables, the model for the canonical layout, in files with DFM metadata.

Source: spec/qlik.md §1-§3, §5, §6. Rows are converted in `reader` and `writer`, files in `file_reader` and
`file_writer`, control tables in `control`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model.change import PREFIX, ChangeTable
from ..base import Format, VendorColumn, VendorTable, value_gap
from ..spark_functions import F
from . import control as qlik_control
from . import dfm as qlik_dfm
from . import layout as lay
from .file_reader import incomplete, load
from .file_writer import save
from .files import columns_at, refuse
from .options import HEADERS, QlikOptions
from .reader import read
from .writer import was_loaded, write

if TYPE_CHECKING:
    from pyspark.sql import Column

_ABOUT = {
    "change_seq": "change_seq: 16 digits of commit time, 19 digits of change number",
    "change_oper": "change_oper",
    "change_mask": "change_mask: bit n is the column with ordinal n, headers included",
    "partition_name": "partition_name, with Change Data Partitioning",
}

CHANGE_TABLE = VendorTable(
    "{schema}.{table}__ct",
    "one row per image of a change: headers, then the columns of the table",
    tuple(
        VendorColumn(
            PREFIX + name,
            kind,
            _ABOUT.get(name, name),
            tuple(PREFIX + other for other in lay.ALIASES.get(name, ())),
            optional=name not in ("change_seq", "change_oper"),
        )
        for name, kind in HEADERS.items()
    ),
)
FULL_LOAD = VendorTable(
    "{schema}.{table}",
    "rows of LOAD files: the columns of the table; they precede all changes",
    (),
)


def knows(columns: Sequence[str]) -> float:
    """Returns how likely these are headers of a Qlik change table, with any prefix; less with tailrace's own
    headers.

    >>> knows(["header__change_seq", "header__change_oper", "id"])
    0.9
    >>> knows(["id", "name"])
    0.0
    """
    names = {c.lower() for c in columns}
    if any(names == {c.name.lower() for c in t.columns} for t in qlik_control.TABLES.values()):
        return 0.9
    prefix = lay.find_prefix(columns)
    if prefix is None:  # columns that are only added when LOAD files are read
        return 0.3 if PREFIX + "timestamp" in names else 0.0
    return 0.5 if (prefix + lay.COLUMN_MASK).lower() in names else 0.9


def _loads_alone(ct: ChangeTable, value: Column) -> Column:
    """Returns the codes of rows of full loads; NULL for other vendors' codes."""
    loaded = was_loaded(ct)
    return value if loaded is None else F.when(loaded, value)


NATIVE_OPER = value_gap(
    "header native_oper", "there is no column for other vendors' codes; L stays as full load", lay.LOADED,
    _loads_alone,
)  # fmt: skip

FORMAT = Format(
    name="qlik",
    title="Qlik Replicate change tables (Store Changes)",
    source="spec/qlik.md §1-§3, §5, §6; vendor page Change Tables",
    tables=(CHANGE_TABLE, FULL_LOAD, *qlik_control.TABLES.values()),
    operations={"I": "I", "U": "U", "D": "D", "B": "B", "T": "T", "L": "a row of a full load: I"},
    order=(PREFIX + "change_seq", PREFIX + "change_oper"),
    row_key="primaryKeyPos of the DFM's columns; without DFM the option `key`",
    images="full; before images (B) with the same change_seq as their U, if they are stored",
    masks="hex text or bytes; bit n is the column with ordinal n, headers included; zero bytes trimmed",
    types=qlik_dfm.TYPES,
    files=("parquet", "csv", "json", "delta"),
    holds=frozenset(
        ("change_mask", "stream_position", "transaction_id", "timestamp", "partition_name", lay.LOADED)
    ),
    cannot=(NATIVE_OPER,),
    options=QlikOptions,
    read=read,
    write=write,
    knows=knows,
    load=load,
    save=save,
    complete=incomplete,
    control_table=qlik_control.control_table,
    refuse=refuse,
    columns=columns_at,
)
