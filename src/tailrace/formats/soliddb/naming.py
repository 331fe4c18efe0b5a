"""What tables are called: `schema.table`, preceded by the catalog where several have one of that name.

So a name may change when another catalog gets such a table, or loses it: `tailrace apply` keeps the names
that it gave (`Format.ids_option`), by id, which is the name with its catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import FormatError

Row = Mapping[str, Any]


@dataclass(frozen=True)
class TableName:
    """A table's name, and its id; empty if its catalog is not known."""

    name: str
    id: str


def bare_name(row: Row) -> str:
    """`schema.table` of a row of SYS_TABLES."""
    return f"{row['TABLE_SCHEMA']}.{row['TABLE_NAME']}" if row["TABLE_SCHEMA"] else str(row["TABLE_NAME"])


def table_names(rows: Collection[Row], given: Mapping[str, str]) -> dict[int, TableName]:
    """The names of tables by RELID, from their rows of SYS_TABLES; `given`: those that are known by id.

    Raises:
        FormatError: tables of several catalogs would have one name.
    """
    places: dict[str, set[object]] = {}
    for row in rows:
        places.setdefault(bare_name(row), set()).add(row["TABLE_CATALOG"])
    owner = {table: id for id, table in given.items()}
    found: dict[int, TableName] = {}
    whose: dict[str, str] = {}
    for row in rows:
        bare, catalog = bare_name(row), row["TABLE_CATALOG"]
        full = f"{catalog}.{bare}" if catalog else ""
        plain = not full or (len(places[bare]) == 1 and owner.get(bare, full) == full)
        name = given.get(full) or (bare if plain else full)
        other = whose.setdefault(name, full or bare)
        if other != (full or bare):
            raise FormatError(
                f"{other} and {full or bare} would both be {name}",
                where="SYS_TABLES",
                hint=f"give one of them another name: `--option 'names={full or other}={full or other}'`",
            )
        found[row["ID"]] = TableName(name, full)
    return found
