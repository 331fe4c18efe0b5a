"""Queries to a key log that find nothing because they name a table or column that it does not have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import pyarrow.compute as pc

from ..errors import ConfigError
from ..formats.sqdr.control import IR_SUBSCRIPTION
from ..model.nearest import meant
from ..wire.keylog_values import escape_name
from . import ask, control_tables, rows

_LOOKED_AT = 1000
_SHOWN = 10
_TEXTS = ("before_key", "after_key", "after_image")


def check(keylog: str, table: str | None, key: Sequence[str] = ()) -> None:
    """Raises an error if nothing was found because of a name; called only then, since it may read a whole
    column.

    Raises:
        ConfigError: no table fits `table`, or its rows have no column that `key` (`NAME=VALUE`) names.
    """
    there = _tables(keylog)
    if table and there and not any(fnmatchcase(t, table) for t in there):
        hint = meant(table, there) or f"it has {_some(there)}"
        raise ConfigError(f"the key log has no table {table}", where=keylog, hint=hint)
    names = _columns(keylog, table) if key else set()
    for name in (pair.partition("=")[0].strip() for pair in key):
        if names and escape_name(name) not in names:
            hint = meant(name, names) or f"they have {_some(sorted(names))}"
            what = f"no key or image of the newest rows has a column {name}"
            raise ConfigError(what, where=keylog, hint=hint)


def _tables(keylog: str) -> list[str]:
    found = {r["subscription_id"] for r in control_tables.rows(keylog, IR_SUBSCRIPTION)}
    for batch in rows.batches(rows.opened(keylog), ["subscription_id"]):
        found.update(pc.unique(batch["subscription_id"]).to_pylist())
    return sorted(filter(None, found))


def _columns(keylog: str, table: str | None) -> set[str]:
    newest = rows.newest(keylog, _LOOKED_AT, ask.where(table))
    return {name for row in newest for text in _TEXTS for name in names_in(row[text] or "")}


def names_in(text: str) -> list[str]:
    """The column names in a key or an image as written in a key log.

    >>> names_in('<Dest>"s"."t"</Dest><row>id="7" note="a b=c" tag=&xsi:nil="true"</row>')
    ['id', 'note', 'tag']
    """
    bare = re.sub('"[^"]*"', '""', text.partition("</Dest>")[2] or text)
    return re.findall(r'(?:^|[ >])([^ "=<>]+)=', bare)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
