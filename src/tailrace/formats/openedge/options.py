"""What users can say about OpenEdge's tables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...errors import ConfigError
from ..base import Options


class OpenEdgeOptions(Options):
    """Options of `openedge`."""

    keys: str = Field(
        default="",
        description="Key columns where identifying fields do not say them: `PUB.Order=Num; PUB.Line=A,B`.",
    )
    numbers: str = Field(
        default="",
        description="`_Source-Table-Number`s where `_File` does not say them: `PUB.Order=18; PUB.Line=19`.",
    )
    orphans: Literal["reject", "keep"] = Field(
        default="reject",
        description="Change-table rows without tracking row, and tracking rows of level 2 and 3 without "
        "change-table row: bad rows, or changes of which is known what is there.",
    )
    partitions: Literal["reject", "truncate"] = Field(
        default="reject",
        description="Operations 6 to 10 on one partition or tenant: bad rows, because no change names the "
        "rows that are gone; or truncates, where that partition is all of the table.",
    )
    split: Literal["rows", "joined"] = Field(
        default="rows",
        description="Split records: two rows, as ABL and dumps see them, or joined, as SQL gives them.",
    )
    arrays: Literal["text", "columns", "array"] = Field(
        default="text",
        description="Array columns (those with `_Extent` in `_Field`): the vendor's text, a column for each "
        "element (`Phones1`, `Phones2`, of the array's type), or array<string>, which no target has.",
    )
    sequence: Literal["number", "rank"] = Field(
        default="number",
        description="Written `_Change-Sequence`: the number in a change sequence of 35 digits (rows of a "
        "full load count from 1, and changes behind it from 10^16), or the change's rank in its table, for "
        "change sequences of any other form; ranks are counted in one task.",
    )
    timestamps: Literal["timestamp", "text"] = Field(
        default="timestamp",
        description="Written `_Time-Stamp`: an instant, or ISO text with the zone that was read (else UTC).",
    )
    dump: str = Field(default="", description="Writes the policies as `<dump>.cd` too, beside the tables.")


def parse_lists(text: str) -> dict[str, list[str]]:
    """What users write about tables: `PUB.Order=Ordernum; PUB.Line=Ordernum,Linenum`.

    >>> parse_lists("PUB.Order=Ordernum; PUB.Line=Ordernum,Linenum")
    {'PUB.Order': ['Ordernum'], 'PUB.Line': ['Ordernum', 'Linenum']}
    """
    found = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, _, said = part.partition("=")
        found[name.strip()] = [s.strip() for s in said.split(",") if s.strip()]
    return found


def parse_numbers(text: str) -> dict[str, int]:
    """Numbers that users write about tables.

    Raises:
        ConfigError: one is no number.

    >>> parse_numbers("PUB.Order=18")
    {'PUB.Order': 18}
    """
    found = {}
    for name, said in parse_lists(text).items():
        if len(said) != 1 or not said[0].isdigit():
            raise ConfigError(f"numbers: {name} has no number", hint="write PUB.Order=18; PUB.Line=19")
        found[name] = int(said[0])
    return found
