"""Options for OpenEdge's tables."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from ...errors import ConfigError
from ..base import Options
from ..option_names import lists_in


class OpenEdgeOptions(Options):
    """Options of `openedge`."""

    keys: str = Field(
        default="",
        description="Key columns, if there are no identifying fields: `PUB.Order=Num; PUB.Line=A,B`.",
    )
    numbers: str = Field(
        default="",
        description="`_Source-Table-Number`s, if there is no `_File`: `PUB.Order=18; PUB.Line=19`.",
    )
    orphans: Literal["reject", "keep"] = Field(
        default="reject",
        description="Change-table rows without a tracking row, and tracking rows of level 2 and 3 without a "
        "change-table row: bad rows, or changes with the columns that are known.",
    )
    partitions: Literal["reject", "truncate"] = Field(
        default="reject",
        description="Operations 6 to 10 on one partition or tenant: bad rows, because no change names the "
        "removed rows; or truncates, if that partition is the whole table.",
    )
    tenant: str = Field(
        default="",
        description="Read: of multi-tenant tables the changes of one tenant, by its `_Tenant-Id`, because "
        "identifying fields are unique within one tenant only; or `all`, if they are unique across tenants. "
        "By default, changes of several tenants to a table with a key are an error.",
    )
    split: Literal["rows", "joined"] = Field(
        default="rows",
        description="Split records: two rows, as in ABL and dumps, or joined, as in SQL.",
    )
    arrays: Literal["text", "columns", "array"] = Field(
        default="text",
        description="Array columns (those with `_Extent` in `_Field`): the vendor's text, a column for each "
        "element (`Phones1`, `Phones2`, of the array's type), or an array of the array's type.",
    )
    sequence: Literal["number", "rank"] = Field(
        default="number",
        description="Written `_Change-Sequence`: the number in a change sequence of 35 digits (rows of "
        "a full "
        "load count from 1, and changes after it from 10^16), or the change's rank in its table, for "
        "change sequences of any other form; ranks are computed in one task.",
    )
    timestamps: Literal["timestamp", "text"] = Field(
        default="timestamp",
        description="Written `_Time-Stamp`: an instant, or ISO text with the zone that was read (else UTC).",
    )
    dump: str = Field(default="", description="Writes the policies as `<dump>.cd` too, next to the tables.")

    @field_validator("tenant")
    @classmethod
    def _a_tenant(cls, value: str) -> str:
        if value not in ("", "all") and not re.fullmatch(r"-?\d{1,9}", value):
            raise ValueError(f"{value!r} is neither the number of a tenant nor all")
        return value

    @property
    def chosen(self) -> int | None:
        """Returns the tenant whose changes are read; None: all tenants."""
        return None if self.tenant in ("", "all") else int(self.tenant)


def parse_numbers(text: str) -> dict[str, int]:
    """Parses numbers per table that users write.

    Raises:
        ConfigError: a value is not a number.

    >>> parse_numbers("PUB.Order=18")
    {'PUB.Order': 18}
    """
    found = {}
    for name, said in lists_in(text).items():
        if len(said) != 1 or not said[0].isdigit():
            raise ConfigError(f"numbers: {name} has no number", hint="write PUB.Order=18; PUB.Line=19")
        found[name] = int(said[0])
    return found
