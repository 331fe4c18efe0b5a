"""Finds the tracking rows of each source table: one tracking table has those of all tables and tenants.

Identifying fields are unique within one tenant only, so rows of two tenants could be confused.
Source: spec/openedge.md §2, §2.1, §6.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import FormatError
from ...model.quoting import quoted
from ..base import Tables
from ..parquet import LoadedTables
from ..shape import find_columns
from ..spark_functions import F
from .options import OpenEdgeOptions
from .policies import POLICIES, CapturedTable
from .tables import OPER, TRACKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def shares(found: list[CapturedTable], options: OpenEdgeOptions) -> dict[str, Column]:
    """Returns, for each source table, the condition for its tracking rows."""
    mine = {}
    for source in found:
        share = share_of(source, [c.name for c in TRACKING.columns], len(found) == 1)
        if share is None and options.orphans == "reject":
            raise FormatError(
                f"it is unknown which tracking rows belong to {source.change_table}",
                where=source.name,
                hint=f"give _Cdc-Table-Policy, or numbers={source.name}=<its _Source-Table-Number>",
            )
        mine[source.name] = F.lit(False) if share is None else share
    return mine


@dataclass(frozen=True)
class Share:
    """Defines the tracking rows of one source table: those with its number, and those without a number with
    its policy; if the table has no number, by policy alone; all if the table is `alone`."""

    number: int | None
    policies: tuple[str, ...]
    alone: bool

    @staticmethod
    def of(source: CapturedTable, alone: bool) -> Share | None:
        """Returns the definition for a source table; None if nothing is known."""
        ids = tuple(r["_Policy-Id"] for r in source.rows.get(POLICIES, ()) if r.get("_Policy-Id"))
        known = source.number is not None or ids or alone
        return Share(source.number, ids, alone) if known else None

    def column(self, number: Column, policy: Column) -> Column:
        """Whether a row belongs to the table."""
        by_policy = F.lit(self.alone and not self.policies)
        if self.policies:
            by_policy = F.coalesce(policy.isin(*self.policies), F.lit(False))
        elif self.number is not None:
            by_policy = F.lit(False)
        return by_policy if self.number is None else F.coalesce(number == self.number, by_policy)

    def rows(self, table: pa.Table) -> pa.Table:
        """Returns the rows of `table` that belong to the source table."""
        mine = pa.array(np.full(table.num_rows, self.alone and not self.policies and self.number is None))
        if self.policies:
            ids = pa.array(self.policies, pa.string())
            mine = pc.fill_null(pc.is_in(table["_Policy-Id"], ids), False)
        if self.number is not None:
            mine = pc.coalesce(pc.equal(table["_Source-Table-Number"], self.number), mine)
        return table.filter(mine)


def share_of(source: CapturedTable, columns: Sequence[str], alone: bool) -> Column | None:
    """Returns the condition for a source table's tracking rows (with these columns); None if it is
    unknown."""
    share = Share.of(source, alone)
    if share is None:
        return None
    names = find_columns(columns, TRACKING, where=TRACKING.name)
    number, policy = (
        F.col(quoted(names[n])) if n in names else F.lit(None) for n in ("_Source-Table-Number", "_Policy-Id")
    )
    return share.column(number.try_cast("int"), policy)


TENANT = "_Tenant-Id"


def refuse_several(
    tables: Tables,
    name: str,
    tracking: DataFrame,
    found: Sequence[CapturedTable],
    shares: Mapping[str, Column],
) -> None:
    """Raises FormatError if a table with a key has tracking rows of several tenants.

    Args:
        tables: the vendor's tables.
        name: the name of the tracking table.
        tracking: its rows, with declared names; only read if footers of its files are not sufficient.
        found: the source tables.
        shares: source table -> the condition for its tracking rows.
    """
    keyed = [s for s in found if s.key]
    there = find_columns(tables[name].columns, TRACKING, where=TRACKING.name)
    files = tables.files_of(name) if isinstance(tables, LoadedTables) else None
    if not keyed or TENANT not in there or (files is not None and is_one(files, there[TENANT])):
        return
    ends = []
    for source in keyed:
        changes = shares[source.name] & F.col("_Operation").isin(*(c for c, o in OPER.items() if o != "T"))
        tenant = F.when(changes, F.col(TENANT))
        ends += [F.min(tenant), F.max(tenant)]
    row = tracking.agg(*(end.alias(f"c{n}") for n, end in enumerate(ends))).first()
    for source, low, high in zip(keyed, row[::2], row[1::2], strict=True) if row else ():
        if low != high:
            raise FormatError(
                f"changes of several tenants, such as {low} and {high}, which may have rows with the same "
                f"{', '.join(source.key)}",
                where=source.name,
                hint=f"read one tenant into each target, tenant={low}; or set tenant=all, if rows of "
                "different tenants always differ in it",
            )


def is_one(files: Sequence[Path], column: str) -> bool:
    """Whether footers of Parquet files show that there is only one tenant."""
    seen = set()
    for file in files:
        footer = pq.read_metadata(file)
        names = [footer.schema.column(i).path for i in range(footer.num_columns)]
        for n in range(footer.num_row_groups):
            group = footer.row_group(n)
            if not group.num_rows or column not in names:
                continue
            span = group.column(names.index(column)).statistics
            if span is None or not (span.has_min_max or span.null_count == group.num_rows):
                return False
            seen |= {span.min, span.max} if span.has_min_max else set()
    return len(seen) < 2


def of_tenant(tenant: Column, chosen: int | None) -> Column:
    """Whether a tracking row is read: it is of the chosen tenant, or of no tenant."""
    return F.lit(True) if chosen is None else F.coalesce(tenant == chosen, F.lit(True))
