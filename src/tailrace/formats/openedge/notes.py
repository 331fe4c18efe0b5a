"""What is odd about OpenEdge's tables as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..given import lists_in, no_table
from .options import OpenEdgeOptions
from .policy import FIELDS, FILES, POLICIES, CapturedTable, said_of


def notes(found: Sequence[CapturedTable], metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """One sentence for each thing, with what to do."""
    said = []
    for source in found:
        policies = source.rows.get(POLICIES, ())
        if policies and all(p.get("_Policy-State") for p in policies):
            said.append(
                f"{source.name}: no policy is active; changes made without an active policy are not captured"
            )
        if source.counted and FIELDS in metadata:
            said.append(
                f"{source.name}: _Field has no rows of {_counted(source)}: bits of field maps are counted in "
                "order of its columns, which is wrong if there are gaps; give _Field of the change table"
            )
    return tuple(said)


def keyless(found: Sequence[CapturedTable], metadata: Mapping[str, Any]) -> dict[str, str]:
    """The source tables with values whose key is not known, and why."""
    made = {}
    for source in found:
        if source.columns and not source.key:
            wants = any(p.get("_Identifying-Fields") for p in source.rows.get(POLICIES, ()))
            lacks = " and ".join(
                n for n, key in (("_File", FILES), ("_Field", FIELDS)) if key not in metadata
            )
            unnamed = f"identifying fields without names{f' (give {lacks})' if lacks else ''}"
            made[source.name] = unnamed if wants else "no identifying fields"
    return made


def unknown_tables(options: OpenEdgeOptions, found: Sequence[CapturedTable]) -> list[str]:
    """A note for each table that the options name and that is none of these."""
    there = [source.name for source in found]
    return [
        no_table(option, name, there)
        for option, text in (("keys", options.keys), ("numbers", options.numbers))
        for name in lists_in(text)
        if all(said_of({name: True}, table) is None for table in there)
    ]


def _counted(source: CapturedTable) -> str:
    """The change table, or those of its columns, whose positions are counted."""
    some = f", columns {', '.join(source.counted)}" if source.counted != source.columns else ""
    return f"{source.change_table}{some}"
