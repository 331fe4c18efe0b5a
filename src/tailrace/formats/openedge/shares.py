"""Which tracking rows belong to which source table: one tracking table has those of all.

Source: spec/openedge.md §2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import FormatError
from ..shape import find_columns, quoted
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


def share_of(source: CapturedTable, columns: Sequence[str], alone: bool) -> Column | None:
    """Which tracking rows (with these columns) belong to a source table: by its number, rows without one by
    their policy; all of them for one `alone`; None if it is unknown."""
    from pyspark.sql import functions as F

    names = find_columns(columns, TRACKING, where=TRACKING.name)
    number, policy = (
        F.col(quoted(names[n])) if n in names else F.lit(None) for n in ("_Source-Table-Number", "_Policy-Id")
    )
    ids = [r["_Policy-Id"] for r in source.rows.get(POLICIES, ()) if r.get("_Policy-Id")]
    by_policy = F.coalesce(policy.isin(*ids), F.lit(False)) if ids else F.lit(False)
    if source.number is not None:
        return F.coalesce(number.try_cast("int") == source.number, by_policy)
    if ids:
        return by_policy
    return F.lit(True) if alone else None
