"""The first rows of an SQDR key log, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ...wire import keylog_text
from ..first_rows import Glance, TableSample
from ..glances import plain_rows
from ..samples import samples as taken
from ..tailrace import types_of
from .columns import declared_as, key_of, latest, layout_of, names_of
from .reading import TIME_SHAPED, is_keylog
from .tables import CHANGES, COLUMNS, COLUMNS_TABLE, KEYLOG_TABLE, SqdrOptions
from .text import DEST_END


def samples(path: str, options: SqdrOptions) -> dict[str, TableSample]:
    """The tables under a path, the columns' table completely."""
    return taken(path, options, whole=[COLUMNS])


def glance(tables: Mapping[str, TableSample], options: SqdrOptions, path: str) -> list[Glance]:
    """The first rows of a key log, by subscription."""
    rows = [r for s in tables.values() if is_keylog(s.columns) for r in plain_rows(s, KEYLOG_TABLE)]
    known = [r for n, s in tables.items() if n.lower() == COLUMNS for r in plain_rows(s, COLUMNS_TABLE)]
    rows = [r for r in rows if r["change_row_type"] in CHANGES]
    dests: dict[str | None, list[str]] = {}
    for row in rows:
        mine = dests.setdefault(row["subscription_id"], [])
        if (dest := _dest(row["after_image"])) and dest not in mine:
            mine.append(dest)
    declared = {
        name: [r for r in known if r["table_name"] == name] for name in {r["table_name"] for r in known}
    }
    made = []
    for subscription, name in names_of(dests, [], options.subscriptions).items():
        its = [r for r in rows if r["subscription_id"] == subscription]
        dest = latest(dests[subscription])
        table, known_as = declared_as(name, subscription, declared, options.subscriptions, dest)
        if known_as is not None:
            fields, key = layout_of(declared[known_as])
            columns = {f.name: f.type for f in fields}
        else:
            key = _names(r["before_key"] for r in its)
            columns = dict.fromkeys([*_names((_row(r) for r in its), row=True), *key], "string")
        columns |= {c: t for c, t in types_of(options.columns).items() if c in columns}
        key = key_of(key, table, columns, options)
        made.append(Glance(table, key, columns, [_change(r, options) for r in its]))
    return made


def _dest(image: str | None) -> str | None:
    begun, end, _ = (image or "").partition(DEST_END)
    return begun + end if end and begun.startswith("<Dest>") else None


def _row(row: Mapping[str, Any]) -> str | None:
    image: str | None = row["after_image"]
    return image.rpartition(DEST_END)[2] if image else image


def _names(texts: Any, *, row: bool = False) -> list[str]:
    """The names in texts, in their order."""
    found = keylog_text.names(pa.array(list(texts), pa.string()), row=row)
    return list(dict.fromkeys(name for _, _, name in sorted(found, key=lambda f: (f[1], f[0]))))


def _change(row: Mapping[str, Any], options: SqdrOptions) -> dict[str, Any]:
    resync, counter = row["resync_state"] or 0, row["change_row_counter"] or 0
    digits = options.counter_digits
    parts = f"{resync:0{19 - digits}d}{counter:0{digits}d}"
    number = f"{counter:019d}" if resync >= TIME_SHAPED or not resync else parts
    time = f"{resync:016d}" if resync >= TIME_SHAPED else "0" * 16
    image = _row(row) or row["before_key"]
    return {
        "change_seq": time + number,
        "change_oper": CHANGES[row["change_row_type"]],
        "timestamp": row["change_row_timestamp"],
        "transaction_id": str(resync) if 0 < resync < TIME_SHAPED else None,
        "carried": _names([image], row=bool(_row(row))) if image else None,
    }
