"""Names of OpenEdge's own tables, whatever spelling an extract has."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import FormatError
from .tables import KNOWN

DUMP = ".cd"
"""Suffix of policy dumps' names."""


def plain_name(name: str) -> str:
    """A table's name without owner, in lower case, with underscores.

    >>> plain_name("PUB._Cdc-Change-Tracking")
    '_cdc_change_tracking'
    """
    return name.rpartition(".")[2].lower().replace("-", "_")


def is_dump(name: str) -> bool:
    """Whether a file is a policy dump.

    >>> is_dump("policies.cd"), is_dump("POLICIES.CD"), is_dump("PUB._File.csv")
    (True, True, False)
    """
    return name.lower().endswith(DUMP)


def by_plain_name(names: Iterable[str]) -> dict[str, str]:
    """The names of tables by their plain names.

    Raises:
        FormatError: one of OpenEdge's own tables is there under two names.

    >>> by_plain_name(["PUB._File", "PUB.CDC_item"])
    {'_file': 'PUB._File', 'cdc_item': 'PUB.CDC_item'}
    """
    found: dict[str, str] = {}
    for name in names:
        plain = plain_name(name)
        if (other := found.setdefault(plain, name)) != name and plain in KNOWN:
            raise FormatError(
                f"{other} and {name} are both the table {plain}",
                where=f"{other}, {name}",
                hint="move one of them away, or all files into one folder, if they are parts of one table",
            )
    return found
