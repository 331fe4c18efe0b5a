"""Tables of several tenants: identifying fields are unique within one of them only, so rows of two tenants
could be taken for one row.

Source: spec/openedge.md §2.1, §6.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from ...errors import FormatError
from ..base import Tables
from ..parquet import LoadedTables
from ..shape import find_columns
from .policy import CapturedTable
from .tables import OPER, TRACKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TENANT = "_Tenant-Id"


def refuse_several(
    tables: Tables,
    name: str,
    tracking: DataFrame,
    found: Sequence[CapturedTable],
    shares: Mapping[str, Column],
) -> None:
    """Raises FormatError if the tracking rows of a table with a key are of several tenants.

    Args:
        tables: the vendor's tables.
        name: the name of the tracking table.
        tracking: its rows, under declared names; looked at only if footers of its files do not tell.
        found: the source tables.
        shares: source table -> which tracking rows are its own.
    """
    from pyspark.sql import functions as F

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
                f"changes of several tenants, {low} and {high} among them: two may have rows of the same "
                f"{', '.join(source.key)}",
                where=source.name,
                hint=f"read one tenant into each target, tenant={low}; or set tenant=all, if no two tenants "
                "have rows of one identity",
            )


def is_one(files: Sequence[Path], column: str) -> bool:
    """Whether footers of Parquet files say that no two tenants are in them."""
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
    """Whether a tracking row is read: those of the chosen tenant, and those that are of none."""
    from pyspark.sql import functions as F

    return F.lit(True) if chosen is None else F.coalesce(tenant == chosen, F.lit(True))
