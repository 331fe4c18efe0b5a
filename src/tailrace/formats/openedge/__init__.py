"""Progress OpenEdge Change Data Capture: policies, `_Cdc-Change-Tracking` and change tables.

Tracking rows have the operation and the changed fields; change tables have the values, sparse for updates.
Both are joined by `_Change-Sequence`, which counts within one source table only: change sequences of
different tables cannot be compared. Source: spec/openedge.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model import mask
from ...model.change import NATIVE, ChangeTable
from ...model.quoting import quoted
from ..base import Format, Gap, value_gap
from ..shape import any_of
from ..spark_functions import F
from . import tables as tables_
from .changes import CUT, GONE_CODE, IMAGE_TIME, IMAGE_TRAN, NATIVES, OF_POLICY, OFFSETS, ZONE
from .files import columns_at, load, refuse, save
from .functions import cdc_get_changed_columns, cdc_is_column_changed, register
from .metadata import KEPT, policy_id, table_number
from .options import OpenEdgeOptions
from .purge import purge
from .reader import read
from .rebuild import rebuild
from .writer import transaction_number, write

if TYPE_CHECKING:
    from pyspark.sql import Column


def _implied(ct: ChangeTable) -> Column:
    """Returns the change mask that an operation implies, for rows whose mask OpenEdge does not keep."""
    oper, carried = F.col(ct.header("change_oper")), F.lit(None).cast("binary")
    if ct.header("column_mask") in ct.df.columns:
        carried = F.col(ct.header("column_mask"))
    every, key = (F.lit(bytearray(mask.encode(map(ct.ordinal, some)))) for some in (ct.columns, ct.key))
    whole = F.when(oper == "I", F.coalesce(carried, every)).when(oper == "D", key)
    return whole.otherwise(F.unhex(F.lit("")))


def _kept_mask(ct: ChangeTable, value: Column) -> Column:
    """Returns the change mask of updates; of other rows the implied one, unless it is the same."""
    trimmed = F.unhex(F.regexp_replace(F.hex(value), "^(00)+", ""))
    other = (F.col(ct.header("change_oper")) != "U") & ~trimmed.eqNullSafe(_implied(ct))
    return F.when(other, _implied(ct)).otherwise(value)


def _as_number(name: str, value: Column) -> Column:
    """Returns a text header as it is read again from OpenEdge's numbers."""
    result = transaction_number(value) if name == "transaction_id" else value.try_cast("bigint")
    return F.when(value.isNotNull(), result.cast("string"))


def _part_lost(ct: ChangeTable) -> Column:
    if KEPT in ct.df.schema[ct.header("change_seq")].metadata:
        return F.lit(False)
    there = [F.col(h) for n in ("partition_id", "tenant_id") if (h := ct.header(n)) in ct.df.columns]
    some = F.coalesce(*there) if there else F.lit(None)
    return (F.col(ct.header("change_oper")) == "T") & some.isNotNull()


def _part_erase(ct: ChangeTable) -> ChangeTable:
    lost = _part_lost(ct)
    there = [h for n in ("partition_id", "tenant_id") if (h := ct.header(n)) in ct.df.columns]
    return ct.with_df(
        ct.df.withColumns({h: F.when(~lost, F.col(quoted(h))) for h in there}) if there else ct.df
    )


def _policy_defaults(ct: ChangeTable) -> dict[str, Column]:
    """Returns headers that have no meaning without `Kept` -> the value written instead."""
    if KEPT in ct.df.schema[ct.header("change_seq")].metadata:
        return {}
    result = {n: F.lit(None) for n in (*(NATIVE + name for name in OF_POLICY), CUT, OFFSETS)}
    result |= {
        f"{NATIVE}_Policy-Id": F.lit(policy_id(ct.name)),
        f"{NATIVE}_Source-Table-Number": F.lit(table_number(ct.name)),
    }
    return {h: value for n, value in result.items() if (h := ct.header(n)) in ct.df.columns}


def _policy_lost(ct: ChangeTable) -> Column:
    return any_of(
        F.col(quoted(h)).isNotNull() & ~F.col(quoted(h)).eqNullSafe(v)
        for h, v in _policy_defaults(ct).items()
    )


def _policy_erase(ct: ChangeTable) -> ChangeTable:
    result = {h: v.cast(ct.df.schema[h].dataType) for h, v in _policy_defaults(ct).items()}
    return ct.with_df(ct.df.withColumns(result) if result else ct.df)


GAPS = (
    value_gap(
        "change_mask of inserts, deletes and before images",
        "OpenEdge has field maps for updates only; other rows are read back with the mask that their "
        "operation implies",
        "change_mask",
        _kept_mask,
    ),
    value_gap(
        "transaction_id as text",
        "`_Tran-Id` is a number of 32 bits; other ids are left out",
        "transaction_id",
        lambda ct, value: _as_number("transaction_id", value),
    ),
    value_gap(
        "recid as text",
        "`_Recid` is a number; other row ids are left out",
        "recid",
        lambda ct, value: _as_number("recid", value),
    ),
    Gap(
        "partition of a truncate",
        "a partition's truncate identifies no rows, so truncates of other sources are written for the whole "
        "table",
        _part_lost,
        _part_erase,
    ),
    Gap(
        "missing policies",
        "rows that were once read from OpenEdge get a new policy if the table's schema no longer has the old "
        "one",
        _policy_lost,
        _policy_erase,
    ),
)


def knows(columns: Sequence[str]) -> float:
    """Returns how likely a table with these columns is one of OpenEdge's."""
    return tables_.knows(columns)


FORMAT = Format(
    name="openedge",
    title="Progress OpenEdge Change Data Capture",
    source="spec/openedge.md",
    tables=tables_.TABLES,
    operations=tables_.OPERATIONS,
    order=("_Source-Table-Number", "_Change-Sequence", "_Operation", "_Continuation-Position"),
    row_key="identifying fields of the current policy, or the option `keys`; `_Recid`, `_Partition-Id` and "
    "`_Tenant-Id` are headers",
    images="creates and deletes carry every captured field, updates the changed and the identifying ones; "
    "before images of updates at level 3; levels 0 and 1 carry none",
    masks="updates: field map, bit n (from 1, lowest bit of the first byte first) is the user column at "
    "physical position `_First-User-Field` + n - 1; none at level 0",
    types=tables_.TYPES,
    files=("parquet", "csv", "json", "delta"),
    holds=frozenset(
        {
            "change_seq", "change_mask", "column_mask", "transaction_id", "timestamp", "partition_id",
            "tenant_id", "recid", "user_name", *(NATIVE + n for n in NATIVES), GONE_CODE, IMAGE_TRAN,
            IMAGE_TIME, CUT, ZONE, OFFSETS,
        }
    ),
    cannot=GAPS,
    options=OpenEdgeOptions,
    read=read,
    write=write,
    knows=knows,
    load=load,
    save=save,
    by_number=lambda options: options.sequence == "number",
    refuse=refuse,
    columns=columns_at,
)  # fmt: skip

__all__ = [
    "FORMAT", "OpenEdgeOptions", "cdc_get_changed_columns", "cdc_is_column_changed", "purge", "read",
    "rebuild", "register", "write",
]  # fmt: skip
