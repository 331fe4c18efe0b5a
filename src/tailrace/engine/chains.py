"""The changes of single rows, through every change of their key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import ConfigError
from ..wire.user_values import BINARY_HINT, parse_binary, user_value
from .change_arrays import B, Bools, ChangeArrays, Ints
from .columns import one
from .equal_values import values_differ
from .key_timelines import KeyTimelines
from .pairs import Pairing

LIFE = "life"


def chain(changes: ChangeArrays, key: Mapping[str, Any], *, base: pa.Table | None = None) -> pa.Table:
    """Returns all changes of the rows that ever had a key, including those under other keys.

    Args:
        changes: the changes, from any point in the table's history.
        key: the key's columns and their values. Text is parsed as the column's type (times without a zone as
            UTC), bytes as `&#xFF01` or `\\xff01`. Values are never rounded.
        base: the rows before the changes.

    Returns:
        `life` (bigint: 1, 2, ... per row), then the columns of `pairs`, in commit order. A life starts with
            an insert, or before the changes. It ends with a delete, a truncate (whose `before` is the removed
            row), or another row with the same key.

    Raises:
        ConfigError: `key` does not name exactly the key's columns, or has a value of another type.
    """
    lines = KeyTimelines.of(changes, base)
    mine = np.isin(lines.life, np.unique(lines.life[_has(lines, key)]))
    own = np.flatnonzero(mine & (lines.at >= 0) & (lines.oper != B))
    begins, ends = lines.versions
    cut = np.flatnonzero(mine[begins] & np.isin(ends, changes.truncates))
    at = np.concatenate([lines.at[own], ends[cut]])
    life = lines.life[np.concatenate([own, begins[cut]])]
    number = _numbered(at, life)
    order = np.lexsort((number, at))
    before = np.concatenate([lines.before(own), begins[cut]])[order]
    after = np.concatenate([np.where(lines.opens[own], own, -1), np.full(len(cut), -1)])[order]
    rows = Pairing(lines, at[order], before, after).table()
    return rows.add_column(0, LIFE, pa.array(number[order], pa.int64()))


def _numbered(at: Ints, life: Ints) -> Ints:
    """Returns the number of each row's life: 1, 2, ... in the order of their first changes."""
    lives, place = np.unique(life, return_inverse=True)
    first = np.full(len(lives), np.iinfo(np.int64).max)
    np.minimum.at(first, place, at)
    rank = np.empty(len(lives), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(1, len(lives) + 1)
    return rank[place]


def _has(lines: KeyTimelines, key: Mapping[str, Any]) -> Bools:
    """Returns the images with this key."""
    names = lines.changes.key
    if set(key) != set(names):
        raise ConfigError(
            f"the key is {', '.join(names)}, not {', '.join(key) or 'empty'}",
            hint="pass a value for each of the key's columns",
        )
    found = np.ones(len(lines), np.bool_)
    for name in names:
        column = one(lines.values[name])
        value = _value(name, key[name], column.type)
        found &= ~values_differ(column, pa.repeat(value, len(column)), name)[lines.row]
    return found


def _value(name: str, given: Any, kind: pa.DataType) -> pa.Scalar:
    """Returns a value in the type of a key's column."""
    if pa.types.is_binary(kind) and isinstance(given, str):
        read = parse_binary(given)
        value, why = pa.scalar(read, kind), BINARY_HINT if read is None else None
    else:
        value, why = user_value(given, kind)
    if why is not None:
        raise ConfigError(f"{given!r} is not a valid value for the key column {name} ({kind})", hint=why)
    return value
