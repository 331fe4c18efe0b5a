"""Finds the source tables of a key log, and their columns: declared by `tailrace_columns` or the options,
otherwise found in the texts. A key log itself contains no types: undeclared columns are strings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...model.nearest import meant
from ...wire.keylog_values import KeyLogField, unescape_name
from ..base import WHY, Tables
from ..option_names import columns_in, keys_of_none, refuse_columns
from ..option_names import key_of as given_key
from ..shape import conform
from ..spark_functions import F
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
    """The source tables of a key log, and notes about them."""

    sources: tuple[SqdrTable, ...]
    notes: tuple[str, ...]
    keyless: dict[str, str]
    """Tables with an unknown key, and the reasons."""
    ids: dict[str, str]
    """The subscriptions of those that have rows, by table."""
    partial: frozenset[str]
    """Tables whose columns are those that occur in the texts: they may have more."""
    unnamed: tuple[str, ...]
    """Tables that are named by their subscription's id because the log has no name."""


def sources_of(log: DataFrame, tables: Tables, options: SqdrOptions) -> Sources:
    """Returns the source tables of a key log. Collects only names: a row per subscription, a row per
    column."""
    declared = _declared(tables)
    dests = _dests(log)
    notes: list[str] = []
    given = options.subscriptions
    table_of = names_of(dests, notes, given)
    rows_of: dict[str | None, str] = {}
    for subscription, table in table_of.items():
        dest = latest(dests.get(subscription, ()))
        table_of[subscription], known_as = declared_as(table, subscription, declared, given, dest)
        if known_as is not None:
            rows_of[subscription] = known_as
    _refuse_one_name([*table_of.items(), *((s, n) for s, n in given.items() if s not in table_of)])
    ids = {table: s for s, table in table_of.items() if s is not None}
    unnamed = [
        t for t, s in ids.items() if s not in rows_of and s not in given and not any(map(_name_in, dests[s]))
    ]
    missing = [s for s in table_of if s not in rows_of]
    seen, whole = _seen(log, missing) if missing else ({}, True)
    # A declared table may have no changes yet; then its subscription has its name.
    new: dict[str | None, str] = {table: table for table in declared if table not in rows_of.values()}
    table_of |= new
    rows_of |= new
    sources = []
    for subscription in sorted(table_of, key=lambda s: (s is None, s or "")):
        table = table_of[subscription]
        layout = layout_of(declared[rows_of[subscription]]) if subscription in rows_of else seen[subscription]
        sources.append(SqdrTable(subscription, table, *_as_opted(table, *layout, options)))
    notes += _unknown_columns(sources, options, declared=not missing)
    notes += keys_of_none(options.key, [one.table for one in sources])
    notes += _keys(sources, options, known=whole)
    why = "the key is unknown, or has all columns"
    keyless = {s.table: why for s in sources if s.subscription in seen and s.fields and not s.key}
    partial = frozenset(table_of[s] for s in missing)
    return Sources(tuple(sources), tuple(notes), keyless, ids, partial, tuple(unnamed))


def _unknown_columns(sources: Sequence[SqdrTable], options: SqdrOptions, *, declared: bool) -> list[str]:
    """Returns notes about columns in the options `columns` and `octet` that no table has so far: a table may
    have no rows yet, and a row may omit columns.

    Raises:
        FormatError: all tables are `declared`, and none has the column.
    """
    there = {f.name for source in sources for f in source.fields}
    where = sources[0].table if len(sources) == 1 else "the key log"
    notes = []
    for option, names in (("columns", list(types_of(options.columns))), ("octet", columns_in(options.octet))):
        if declared and there:
            refuse_columns(option, where, names, there)
        for name in (n for n in names if n not in there):
            near = meant(name, there)
            notes.append(f"option {option}: no row has a column {name} so far{f'; {near}' if near else ''}")
    return notes


def _keys(sources: Sequence[SqdrTable], options: SqdrOptions, *, known: bool) -> Iterator[str]:
    """Yields notes about keys that differ from the option; `known`: every table that is not declared has an
    image, and images have the key's columns.

    Raises:
        FormatError: the only table, or a table in the option, does not have a column of its key.
    """
    for source in sources:
        given, names = given_key(options.key, source.table), [f.name for f in source.fields]
        missing = [k for k in given if k not in names]
        if missing and names and known and ("=" in options.key or len(sources) == 1):
            refuse_columns("key", source.table, given, names)
        if missing:
            key = ", ".join(source.key) or "unknown"
            yield (
                f"{source.table} has no column {', '.join(missing)} (option key): its key stays {key}; "
                f"give the keys of single tables with `key={source.table}=COLUMNS; TABLE=COLUMNS`"
            )


def _as_opted(
    table: str, fields: list[KeyLogField], key: list[str], options: SqdrOptions
) -> tuple[tuple[KeyLogField, ...], tuple[str, ...]]:
    """Returns the columns and the key, with the options applied."""
    low = [f.name.lower() for f in fields]
    if len(set(low)) < len(low):
        raise FormatError("columns differ in letter case only", where=table)
    kinds, octets = types_of(options.columns), columns_in(options.octet)
    result = [
        sqdr_text.field_of(f.name, kinds.get(f.name, f.type), octet=f.octet or f.name in octets)
        for f in fields
    ]
    return tuple(result), tuple(key_of(key, table, [f.name for f in fields], options))


def key_of(found: list[str], table: str, names: Collection[str], options: SqdrOptions) -> list[str]:
    """Returns the key of a table with these columns: the one in the options if the table has all of it,
    otherwise the one that was found.

    >>> key_of(["id"], "shop.item", ["id", "v"], SqdrOptions(key="id,line"))
    ['id']
    >>> key_of([], "shop.line", ["id", "line"], SqdrOptions(key="shop.item=id; shop.line=id,line"))
    ['id', 'line']
    """
    given = given_key(options.key, table)
    return given if given and set(given) <= set(names) else found


_Declared = dict[str, list[dict[str, object]]]


def _declared(tables: Tables) -> _Declared:
    """Returns the rows of `tailrace_columns` by table."""
    found: _Declared = {}
    for name, df in tables.items():
        if name.lower() == COLUMNS:
            for row in conform(df, COLUMNS_TABLE, where=name).collect():
                if row[WHY]:
                    hint = "correct it: it determines the meaning of all rows"
                    raise FormatError(f"bad row: {row[WHY]}", where=name, hint=hint)
                found.setdefault(row["table_name"], []).append(row.asDict())
    return found


def declared_as(
    table: str,
    subscription: str | None,
    declared: Collection[str],
    given: Collection[str | None] = (),
    dest: str | None = None,
) -> tuple[str, str | None]:
    """Returns a subscription's table, and the name under which `tailrace_columns` declares it (None if it
    does not).

    That is its own name, or its destination's (`dest`: its latest one, if it is known under another name). If
    several subscriptions are declared to write there, and the log has rows of one, it is the declared name,
    unless the subscription is `given` its name.

    >>> declared_as("shop.item@31", "31", ["shop.item"]), declared_as("shop.item", "31", ["shop.item@31"])
    (('shop.item@31', 'shop.item'), ('shop.item@31', 'shop.item@31'))
    """
    names = (table, table.removesuffix(f"@{subscription}"))
    if (found := next((n for n in names if n in declared), None)) is not None:
        return table, found
    own = f"{table}@{subscription}"
    if own in declared:
        return table if subscription in given else own, own
    theirs = (f"{dest}@{subscription}", dest) if subscription in given else ()
    return table, next((n for n in theirs if n in declared), None)


def layout_of(rows: list[dict[str, object]]) -> tuple[list[KeyLogField], list[str]]:
    rows = sorted(rows, key=lambda r: int(str(r["place"] or 0)))
    fields = [KeyLogField(str(r["column_name"]), str(r["type"] or "string"), bool(r["octet"])) for r in rows]
    return fields, [str(r["column_name"]) for r in rows if r["is_key"]]


def _dests(log: DataFrame) -> dict[str | None, list[str]]:
    """Returns the subscriptions, each with its destinations, the latest last."""
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


def names_of(
    dests: dict[str | None, list[str]], notes: list[str], given: Mapping[str, str]
) -> dict[str | None, str]:
    """Returns a name for each subscription: the one that it is given, otherwise its latest destination's,
    with its id if others write there (including those with given names); otherwise its id."""
    names: dict[str | None, str] = {s: n.removesuffix(f"@{s}") for s, n in given.items()}
    for subscription, texts in dests.items():
        known = [n for d in texts if (n := _name_in(d))]
        # Unreadable lines have no subscription: they belong to the key log itself.
        latest = known[-1] if known else KEYLOG if subscription is None else subscription
        its = given.get(str(subscription), latest)
        if names.setdefault(subscription, latest) != latest and its != latest and known:
            notes.append(
                f"subscription {subscription} writes to {latest}, but its changes stay in {its}; "
                "the option subscriptions can rename it"
            )
        if len(set(known)) > 1:
            notes.append(f"subscription {subscription} wrote to {', '.join(dict.fromkeys(known))}")
    many = {n for n, times in Counter(names.values()).items() if times > 1}
    for name in sorted(many & {names[s] for s in dests}):
        notes.append(f"several subscriptions wrote to {name}: each has a change table")
    result = {s: f"{names[s]}@{s}" if names[s] in many else names[s] for s in dests}
    return result | {s: table for s, table in given.items() if s in result}


def latest(dests: Sequence[str]) -> str | None:
    """Returns the name of the latest destination, if there is one."""
    return next((n for d in reversed(dests) if (n := _name_in(d))), None)


def _refuse_one_name(names: Collection[tuple[str | None, str]]) -> None:
    """Raises FormatError for subscriptions that would have the same change table: each has its own order."""
    for table, times in Counter(name for _, name in names).items():
        if times > 1:
            its = ", ".join(sorted(str(s) for s, name in names if name == table))
            raise FormatError(
                f"subscriptions {its} cannot all be {table}: each has its own order",
                where=KEYLOG,
                hint="give each a different name: `--option 'subscriptions=31=SHOP.ITEM; 32=SHOP.ITEM@32'`",
            )


def _name_in(dest: str) -> str | None:
    """Returns the table in a `<Dest>`.

    >>> _name_in('<Dest>"shop"."item"</Dest>'), _name_in('<Dest>"item"</Dest>')
    ('shop.item', 'item')
    """
    found = _DEST.fullmatch(dest)
    parts = [unescape_name(p) for p in found.groups() if p] if found else []
    return ".".join(p for p in parts if p) or None


def _seen(
    log: DataFrame, subscriptions: list[str | None]
) -> tuple[dict[str | None, tuple[list[KeyLogField], list[str]]], bool]:
    """Returns columns and keys from the names in the texts (full rows determine the order, `before_key` the
    key), and whether every subscription has a full row.

    A key of all columns is ignored: it does not distinguish equal rows, and tables without key have it.
    """
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
    found = rows.groupBy("subscription_id", "text", "name").agg(F.max("position").alias("position")).collect()
    result: dict[str | None, tuple[list[KeyLogField], list[str]]] = {}
    full = {r["subscription_id"] for r in found if r["text"] == "image"}
    for subscription in subscriptions:
        mine = sorted(
            (r["position"], r["name"], r["text"]) for r in found if r["subscription_id"] == subscription
        )
        key = [n for _, n, text in mine if text == "before_key"]
        images = [n for _, n, text in mine if text == "image"]
        order = dict.fromkeys(images + key)
        result[subscription] = (
            [KeyLogField(n) for n in order],
            [] if images and set(images) <= set(key) else key,
        )
    return result, full >= {s for s in subscriptions if s is not None}
