"""Checks of a kept history's rules, arguments and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pyarrow as pa

from ...engine.change_arrays import WHY
from ...engine.equal_values import is_comparable
from ...engine.history_events import CARRIES, TIME
from ...engine.history_updates import SYSTEM_TO, HistoryRules
from ...engine.reserved_names import refuse_reserved
from ...errors import ConfigError
from ...wire.exact_values import exactly

Kept = tuple[HistoryRules, pa.DataType]
"""A history's rules, and the type of its sequence."""


def check_rules(rules: HistoryRules, data: pa.Schema, path: str) -> None:
    """Raises ConfigError for rules that a history cannot have."""
    if rules.scd_type not in (1, 2):
        raise ConfigError(f"stored_as_scd_type is {rules.scd_type!r}", where=path, hint="1 or 2")
    if not rules.key:
        raise ConfigError("a history needs a key", where=path, hint="name the columns that identify a row")
    for name in (*rules.key, *(rules.tracked or ())):
        if name not in rules.columns or name not in data.names:
            raise ConfigError(
                f"there is no column {name}", where=path, hint=f"columns: {', '.join(data.names)}"
            )
    if rules.bitemporal and rules.scd_type == 1:
        raise ConfigError("a bitemporal history keeps all versions", where=path, hint="use type 2")
    if odd := [f.name for f in data if f.name.startswith("__")]:
        raise ConfigError(f"names that start with __ are reserved: {', '.join(odd)}", where=path)
    if odd := [f"{f.name} ({f.type})" for f in data if not is_comparable(f.type)]:
        raise ConfigError(
            f"values of these columns cannot be compared: {', '.join(odd)}", where=path,
            hint="structs and maps are not supported: leave these columns out, or convert them to text",
        )  # fmt: skip
    check_names(rules, path)


def check_names(rules: HistoryRules, where: str) -> None:
    """Raises ConfigError if data columns have names that the history or its events table needs."""
    own = rules.schema(pa.schema([]), pa.string()).names
    refuse_reserved("keep_history", rules.columns, [*own, SYSTEM_TO, WHY], where)


def differences(have: Kept, want: Kept) -> str:
    """Returns the differences of two histories' rules as text."""
    old, new = asdict(have[0]), asdict(want[0])
    said = [f"{n} is {old[n]}, not {new[n]}" for n in old if old[n] != new[n]]
    if have[1] != want[1]:
        said.append(f"the sequence is {have[1]}, not {want[1]}")
    return "; ".join(said)


def choose_columns(
    columns: Sequence[str], only: Sequence[str] | None, but: Sequence[str] | None, what: str
) -> list[str]:
    """Returns the columns chosen by a pair of arguments `..._list` and `..._except_list`.

    Raises:
        ConfigError: both arguments are given, or one names a column that does not exist.
    """
    if only is not None and but is not None:
        raise ConfigError(f"{what}: a list and an exception list are given", hint="pass one of them")
    if missing := sorted({*(only or ()), *(but or ())} - {*columns}):
        raise ConfigError(
            f"{what}: there is no column {', '.join(missing)}", hint=f"columns: {', '.join(columns)}"
        )
    return [n for n in columns if (only is None or n in only) and n not in (but or ())]


def conform_events(events: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Returns events with the history's columns and types, and `WHY` if they have it.

    Raises:
        ConfigError: a column is missing or unknown, or a value does not fit the history's type exactly.
    """
    there = events.column_names
    if missing := [n for n in schema.names if n not in (*there, CARRIES, TIME)]:
        raise ConfigError(f"the events have no column {', '.join(missing)}", where=where)
    if more := [n for n in there if n not in (*schema.names, WHY)]:
        raise ConfigError(
            f"the history has no column {', '.join(more)}", where=where,
            hint="leave it out (column_list, except_column_list), or create a new history",
        )  # fmt: skip
    columns = []
    for field in schema:
        if field.name not in there:
            columns.append(pa.nulls(events.num_rows, field.type))
            continue
        columns.append(cast_exactly(events, field, where))
    rows = pa.table(columns, schema=schema)
    if WHY in there:
        rows = rows.append_column(WHY, events[WHY])
    return rows


def cast_exactly(events: pa.Table, field: pa.Field, where: str) -> pa.ChunkedArray:
    """Returns a column of events in the history's type.

    Raises:
        ConfigError: a value does not fit the type exactly.
    """
    values, why = exactly(events[field.name], field.type)
    if why is None:
        return values
    raise ConfigError(
        f"{field.name} is {events[field.name].type}, in the history {field.type}: {why}", where=where,
        hint="cast the column to the history's type, or create a new history",
    )  # fmt: skip
