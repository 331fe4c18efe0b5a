"""Queries to a key log that find nothing because they name a table or column that it does not have, or write
octets in no form that it knows."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow.compute as pc

from ..errors import ConfigError
from ..formats.sqdr.control import IR_SUBSCRIPTION
from ..model.nearest import meant
from ..model.patterns import fitting
from ..wire.keylog_values import HEX, escape_name
from ..wire.user_values import BINARY_HINT, parse_binary
from . import ask, control_tables, rows

_LOOKED_AT = 1000
_SHOWN = 10
_TEXTS = ("before_key", "after_key", "after_image")


def check(keylog: str, tables: Sequence[str], key: Sequence[str] = ()) -> None:
    """Raises an error if nothing was found because of a name or the form of a value; called only then, since
    it may read a whole column.

    Raises:
        ConfigError: no table matches one of `tables`; their rows have no column that `key` (`NAME=VALUE`)
            names; or the column's values are octets, and the given one is not written as such.
    """
    there = _tables(keylog)
    for table in tables if there else ():
        if not fitting(there, table):
            hint = meant(table, there) or f"it has {_some(there)}"
            raise ConfigError(f"the key log has no table {table}", where=keylog, hint=hint)
    texts = _texts(keylog, tables) if key else []
    names = {name for text in texts for name in names_in(text)}
    for name, _, value in (pair.partition("=") for pair in key):
        column = escape_name(name.strip())
        if names and column not in names:
            hint = meant(name.strip(), names) or f"they have {_some(sorted(names))}"
            what = f"no key or image of the newest rows has a column {name.strip()}"
            raise ConfigError(what, where=keylog, hint=hint)
        if parse_binary(value) is None and _has_octets(texts, column):
            raise ConfigError(
                f"{value!r} is no value of the column {name.strip()} (binary)", hint=BINARY_HINT
            )


def _tables(keylog: str) -> list[str]:
    found = {r["subscription_id"] for r in control_tables.rows(keylog, IR_SUBSCRIPTION)}
    for batch in rows.batches(rows.opened(keylog), ["subscription_id"]):
        found.update(pc.unique(batch["subscription_id"]).to_pylist())
    return sorted(filter(None, found))


def _texts(keylog: str, tables: Sequence[str]) -> list[str]:
    """The keys and images of the newest rows."""
    newest = rows.newest(keylog, _LOOKED_AT, ask.where(tables))
    return [row[text] for row in newest for text in _TEXTS if row[text]]


def _has_octets(texts: Sequence[str], column: str) -> bool:
    """Whether a column's values look like octets, all of them."""
    item = re.compile(f'(?:^|[ >]){re.escape(column)}="([^"]*)"')
    found = {value for text in texts for value in item.findall(text)}
    return bool(found) and all(v.startswith(HEX) and parse_binary(v) is not None for v in found)


def names_in(text: str) -> list[str]:
    """The column names in a key or an image as written in a key log.

    >>> names_in('<Dest>"s"."t"</Dest><row>id="7" note="a b=c" tag=&xsi:nil="true"</row>')
    ['id', 'note', 'tag']
    """
    bare = re.sub('"[^"]*"', '""', text.partition("</Dest>")[2] or text)
    return re.findall(r'(?:^|[ >])([^ "=<>]+)=', bare)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
