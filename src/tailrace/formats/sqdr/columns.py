"""The source tables of a key log, and their columns: declared by `tailrace_columns` or the options,
otherwise found in the texts. A key log itself contains no types: undeclared columns are strings."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...wire.keylog_values import KeyLogField, unescape_name
from ..base import WHY, Tables
from ..shape import conform
from ..tailrace import types_of
from . import text as sqdr_text
from .tables import COLUMNS, COLUMNS_TABLE, KEYLOG, SIGNALS, SqdrOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DEST = re.compile(r'<Dest>"(?:([^"]*)"\.")?([^"]*)"</Dest>')


@dataclass(frozen=True)
class SqdrTable:
    """A source table: its subscription, its name, its columns in the order of the texts, its key."""

    subscription: str | None
    table: str
    fields: tuple[KeyLogField, ...]
    key: tuple[str, ...]


@dataclass(frozen=True)
class Sources:
    """The source tables of a key log, and what is odd about them."""

    sources: tuple[SqdrTable, ...]
    notes: tuple[str, ...]


def sources_of(log: DataFrame, tables: Tables, options: SqdrOptions) -> Sources:
    """The source tables of a key log. Collects only names: one row per subscription, one per column."""
    declared = _declared(tables)
    dests = _dests(log)
    notes: list[str] = []
    table_of = names_of(dests, notes)
    missing = [s for s, table in table_of.items() if table not in declared]
    seen = _seen(log, missing) if missing else {}
    for subscription, (_, key) in seen.items():
        if not key and not options.key:
            what = "no key is known, or it has all columns: rows are identified by all of their values"
            notes.append(f"{table_of[subscription]}: {what}; name a key with the option key")
    # A declared table may have no changes yet; then its subscription has its name.
    table_of |= {table: table for table in declared if table not in table_of.values()}
    sources = []
    for subscription in sorted(table_of, key=lambda s: (s is None, s or "")):
        table = table_of[subscription]
        fields, key = layout_of(declared[table]) if table in declared else seen[subscription]
        sources.append(SqdrTable(subscription, table, *_as_opted(table, fields, key, options)))
    return Sources(tuple(sources), tuple(notes))


def _as_opted(
    table: str, fields: list[KeyLogField], key: list[str], options: SqdrOptions
) -> tuple[tuple[KeyLogField, ...], tuple[str, ...]]:
    """The columns and the key, with the options applied."""
    low = [f.name.lower() for f in fields]
    if len(set(low)) < len(low):
        raise FormatError("columns differ in letter case only", where=table)
    kinds, octets = types_of(options.columns), listed(options.octet)
    made = [
        sqdr_text.field_of(f.name, kinds.get(f.name, f.type), octet=f.octet or f.name in octets)
        for f in fields
    ]
    key = [k for k in listed(options.key) if k in {f.name for f in fields}] or key
    return tuple(made), tuple(key)


def listed(text: str) -> list[str]:
    return [n.strip() for n in text.split(",") if n.strip()]


_Declared = dict[str, list[dict[str, object]]]


def _declared(tables: Tables) -> _Declared:
    """The rows of `tailrace_columns` by table."""
    found: _Declared = {}
    for name, df in tables.items():
        if name.lower() == COLUMNS:
            for row in conform(df, COLUMNS_TABLE, where=name).collect():
                if row[WHY]:
                    hint = "it decides what all rows mean: correct it"
                    raise FormatError(f"bad row: {row[WHY]}", where=name, hint=hint)
                found.setdefault(row["table_name"], []).append(row.asDict())
    return found


def layout_of(rows: list[dict[str, object]]) -> tuple[list[KeyLogField], list[str]]:
    rows = sorted(rows, key=lambda r: int(str(r["place"] or 0)))
    fields = [KeyLogField(str(r["column_name"]), str(r["type"] or "string"), bool(r["octet"])) for r in rows]
    return fields, [str(r["column_name"]) for r in rows if r["is_key"]]


def _dests(log: DataFrame) -> dict[str | None, list[str]]:
    """The subscriptions, each with its destinations, the latest last."""
    from pyspark.sql import functions as F

    change = F.coalesce(~F.col("change_row_type").isin(*SIGNALS), F.lit(True))
    dest = sqdr_text.dest_of(F.col("after_image"))
    rows = (
        log.filter(change)
        .groupBy("subscription_id", dest.alias("dest"))
        .agg(F.max(F.struct("resync_state", "change_row_counter")).alias("last"))
        .orderBy("last")
    )
    found: dict[str | None, list[str]] = {}
    for row in rows.collect():
        known = found.setdefault(row["subscription_id"], [])
        if row["dest"]:
            known.append(row["dest"])
    return found


def names_of(dests: dict[str | None, list[str]], notes: list[str]) -> dict[str | None, str]:
    """A name for each subscription: its latest destination's, otherwise its id; unique."""
    names: dict[str | None, str] = {}
    for subscription, texts in dests.items():
        known = [n for d in texts if (n := _name_in(d))]
        # Lines that could not be read have no subscription: they belong to the key log itself.
        names[subscription] = known[-1] if known else KEYLOG if subscription is None else subscription
        if len(set(known)) > 1:
            notes.append(f"subscription {subscription} wrote to {', '.join(dict.fromkeys(known))}")
    many = {n for n, times in Counter(names.values()).items() if times > 1}
    for name in sorted(many):
        notes.append(f"several subscriptions wrote to {name}: each has a change table")
    return {s: f"{n}@{s}" if n in many else n for s, n in names.items()}


def _name_in(dest: str) -> str | None:
    """The table that a `<Dest>` names.

    >>> _name_in('<Dest>"shop"."item"</Dest>'), _name_in('<Dest>"item"</Dest>')
    ('shop.item', 'item')
    """
    found = _DEST.fullmatch(dest)
    parts = [unescape_name(p) for p in found.groups() if p] if found else []
    return ".".join(p for p in parts if p) or None


def _seen(
    log: DataFrame, subscriptions: list[str | None]
) -> dict[str | None, tuple[list[KeyLogField], list[str]]]:
    """Columns and keys from the names in the texts: full rows give the order, `before_key` the key.

    One of all columns is none: it tells equal rows no better, and tables without key have it.
    """
    from pyspark.sql import functions as F

    wanted = F.col("subscription_id").isin([s for s in subscriptions if s is not None])
    if None in subscriptions:
        wanted |= F.col("subscription_id").isNull()
    change = F.coalesce(~F.col("change_row_type").isin(*SIGNALS), F.lit(True))
    texts = log.filter(change & F.coalesce(wanted, F.lit(False))).select(
        "subscription_id",
        "before_key",
        F.substring_index("after_image", sqdr_text.DEST_END, -1).alias("image"),
    )
    rows = sqdr_text.names(texts, "subscription_id", {"image": True, "before_key": False})
    found = rows.groupBy("subscription_id", "text", "name").agg(F.max("place").alias("place")).collect()
    made: dict[str | None, tuple[list[KeyLogField], list[str]]] = {}
    for subscription in subscriptions:
        mine = sorted(
            (r["place"], r["name"], r["text"]) for r in found if r["subscription_id"] == subscription
        )
        key = [n for _, n, text in mine if text == "before_key"]
        images = [n for _, n, text in mine if text == "image"]
        order = dict.fromkeys(images + key)
        made[subscription] = (
            [KeyLogField(n) for n in order],
            [] if images and set(images) <= set(key) else key,
        )
    return made
