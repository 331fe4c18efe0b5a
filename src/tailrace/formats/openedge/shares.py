"""Which tracking rows belong to which source table: one tracking table has those of all.

Source: spec/openedge.md §2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import FormatError
from ...model.quoting import quoted
from ..shape import find_columns
from .options import OpenEdgeOptions
from .policy import POLICIES, CapturedTable
from .tables import TRACKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def shares(found: list[CapturedTable], options: OpenEdgeOptions) -> dict[str, Column]:
    """Which tracking rows belong to which source table."""
    from pyspark.sql import functions as F

    mine = {}
    for source in found:
        share = share_of(source, [c.name for c in TRACKING.columns], len(found) == 1)
        if share is None and options.orphans == "reject":
            raise FormatError(
                f"it is not known which tracking rows belong to {source.change_table}",
                where=source.name,
                hint=f"give _Cdc-Table-Policy, or numbers={source.name}=<its _Source-Table-Number>",
            )
        mine[source.name] = F.lit(False) if share is None else share
    return mine


@dataclass(frozen=True)
class Share:
    """The tracking rows of one source table: those with its number, and those without one by their policy;
    without a number by policy alone; all if the table is `alone`."""

    number: int | None
    policies: tuple[str, ...]
    alone: bool

    @staticmethod
    def of(source: CapturedTable, alone: bool) -> Share | None:
        """What is known of a source table; None if nothing is."""
        ids = tuple(r["_Policy-Id"] for r in source.rows.get(POLICIES, ()) if r.get("_Policy-Id"))
        known = source.number is not None or ids or alone
        return Share(source.number, ids, alone) if known else None

    def column(self, number: Column, policy: Column) -> Column:
        """Whether a row is one of them."""
        from pyspark.sql import functions as F

        by_policy = F.lit(self.alone and not self.policies)
        if self.policies:
            by_policy = F.coalesce(policy.isin(*self.policies), F.lit(False))
        elif self.number is not None:
            by_policy = F.lit(False)
        return by_policy if self.number is None else F.coalesce(number == self.number, by_policy)

    def rows(self, table: pa.Table) -> pa.Table:
        """Those of a table."""
        mine = pa.array(np.full(table.num_rows, self.alone and not self.policies and self.number is None))
        if self.policies:
            ids = pa.array(self.policies, pa.string())
            mine = pc.fill_null(pc.is_in(table["_Policy-Id"], ids), False)
        if self.number is not None:
            mine = pc.coalesce(pc.equal(table["_Source-Table-Number"], self.number), mine)
        return table.filter(mine)


def share_of(source: CapturedTable, columns: Sequence[str], alone: bool) -> Column | None:
    """Which tracking rows (with these columns) belong to a source table; None if it is unknown."""
    from pyspark.sql import functions as F

    share = Share.of(source, alone)
    if share is None:
        return None
    names = find_columns(columns, TRACKING, where=TRACKING.name)
    number, policy = (
        F.col(quoted(names[n])) if n in names else F.lit(None) for n in ("_Source-Table-Number", "_Policy-Id")
    )
    return share.column(number.try_cast("int"), policy)
