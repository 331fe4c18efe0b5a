"""Provides the rows of policies and schema tables that are written with a change table: those with which it
was read (`Kept`), or, for other sources, one active policy of level 3.

Ids and numbers of such a policy are derived from the table's name alone, so that they stay the same in later
conversions.
"""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UnsupportedError
from ...model.change import ChangeTable
from ...model.types import is_lake_type
from .policies import FIELDS, FIELDS_OF, FILES, METADATA, POLICIES
from .tables import FIRST_USER_FIELD, KNOWN, abl_type

Row = Mapping[str, Any]
KEPT = "openedge"
"""Metadata key of the column change_seq under which `Kept` is stored as JSON text."""


@dataclass(frozen=True)
class Kept:
    """Metadata in a canonical table's schema about the OpenEdge tables that it was read from.

    Attributes:
        tables: the vendor's tables: plain name (`_file`) -> name in the input.
        change_table: the name of its change table; None: it had none.
        positions: column -> its bit in field maps.
        rows: metadata rows about it, by plain table name; times are text.
        added: whether the tables have the columns that tailrace adds.
        zoned: columns whose times were text with offsets, in order.
    """

    tables: Mapping[str, str]
    change_table: str | None
    positions: Mapping[str, int]
    rows: Mapping[str, Sequence[Row]]
    added: bool = False
    zoned: Sequence[str] = ()

    def to_json(self) -> str:
        """Returns JSON text for the schema.

        >>> k = Kept({"_file": "PUB._File"}, None, {"a": 1}, {"_file": [{"_Owner": "PUB"}]}, zoned=["a"])
        >>> Kept.from_json(k.to_json()) == k
        True
        """
        return json.dumps(vars(self), default=str)

    @staticmethod
    def from_json(text: str) -> Kept:
        """Parses the text of `to_json`."""
        return Kept(**json.loads(text))


MOST_KEYS = 15
FIRST_FIELD = 2
"""The first physical position of a table's fields."""
_SPACE = uuid.UUID("6f5a8f6e-61d5-4a51-8f55-0c1c0a8f3c11")


def policy_id(name: str) -> str:
    """Returns 22 characters derived from a table's name, always the same.

    >>> policy_id("shop.item")
    '8xAAInIGVnC_vaxWZr5xDw'
    """
    return base64.urlsafe_b64encode(uuid.uuid5(_SPACE, name).bytes).decode().rstrip("=")


def table_number(name: str) -> int:
    """Returns the `_File-Number` of a source table; its change table has the next one.

    >>> table_number("shop.item") % 2
    0
    """
    return zlib.crc32(name.encode()) >> 2 << 1


def change_table(name: str) -> str:
    """Returns the name of a source table's change table.

    >>> change_table("shop.item"), change_table("item")
    ('shop.CDC_item', 'CDC_item')
    """
    owner, dot, table = name.partition(".")
    return f"{owner}.CDC_{table}" if dot else f"CDC_{name}"


def generated_metadata(name: str, ct: ChangeTable, level: int = 3) -> Kept:
    """Returns the metadata rows of a change table captured at a level; level 0, and tables without columns,
    have none.

    Raises:
        UnsupportedError: the key has more columns than OpenEdge has identifying fields.
    """
    if len(ct.key) > MOST_KEYS:
        raise UnsupportedError(
            f"{len(ct.key)} key columns, OpenEdge has {MOST_KEYS} identifying fields",
            where=name,
            hint="use fewer",
        )
    owner, dot, table = name.partition(".")
    owner, table = (owner, table) if dot else ("", name)
    number = table_number(name)
    files = [_file(number, table, owner)]
    changes = f"CDC_{table}"
    valued = bool(ct.columns) and level > 0
    if valued:
        files.append(_file(number + 1, changes, owner))
    rows = {
        POLICIES: [_policy(name, bool(ct.key), number, owner, changes, level if valued else 0)],
        FIELDS_OF: [_field_policy(name, ct, number, n) for n in range(len(ct.columns)) if valued],
        FILES: files,
        FIELDS: [
            _field(ct, number + i, first + n, n)
            for i, first in enumerate((FIRST_FIELD, FIRST_USER_FIELD))
            for n in range(len(ct.columns))
            if valued
        ],
    }
    given = {plain: f"PUB.{KNOWN[plain].name}" for plain in METADATA}
    positions = {c: n for n, c in enumerate(ct.columns, 1)}
    return Kept(given, change_table(name) if valued else None, positions, rows, added=True)


def _file(number: int, name: str, owner: str) -> dict[str, Any]:
    return {"_File-Number": number, "_File-Name": name, "_Owner": owner or None, "Recid": number}


def _policy(name: str, keyed: bool, number: int, owner: str, changes: str, level: int) -> dict[str, Any]:
    return {
        "_Policy-Id": policy_id(name),
        "_Policy-Name": name.replace(" ", "_")[:32],
        "_Policy-State": 0,
        "_Policy-Instance": 0,
        "_Source-File-Recid": number,
        "_Change-Tablename": changes if level else None,
        "_Object-Id": number + 1 if level else None,
        "_Identifying-Fields": keyed and level > 0,
        "_Level": level,
        "_Change-Table-Owner": owner or None,
        "_Encrypt-Policy": True,
        "_First-User-Field": FIRST_USER_FIELD if level else None,
    }


def _field_policy(name: str, ct: ChangeTable, number: int, n: int) -> dict[str, Any]:
    column = ct.columns[n]
    return {
        "_Policy-Id": policy_id(name),
        "_Field-Position": FIRST_FIELD + n,
        "_Identifying-Field": ct.key.index(column) + 1 if column in ct.key else 0,
        "_Field-Recid": _field_recid(number, n),
    }


def _field(ct: ChangeTable, number: int, position: int, n: int) -> dict[str, Any]:
    kind = ct.df.schema[ct.columns[n]].dataType.simpleString()
    if not is_lake_type(kind):
        raise UnsupportedError(
            f"OpenEdge has no type for {kind}",
            where=f"{ct.name}, column {ct.columns[n]}",
            hint="cast the column to string",
        )
    data_type, decimals = abl_type(kind)
    return {
        "_File-Recid": number,
        "_Field-Name": ct.columns[n],
        "_Field-Physpos": position,
        "_Data-Type": data_type,
        "_Decimals": decimals,
        "_Extent": 1 if kind.startswith("array") else 0,
        "Recid": _field_recid(number, n),
    }


def _field_recid(number: int, n: int) -> int:
    return number << 16 | n
