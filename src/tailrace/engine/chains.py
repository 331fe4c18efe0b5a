"""One row's life, through every change of its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import ConfigError
from ..wire.given_values import given_value
from ..wire.octets_given import FORMS, octets
from .change_arrays import B, Bools, ChangeArrays, Ints
from .columns import one
from .equal_values import differs
from .lines import Lines
from .pairs import Pairing

LIFE = "life"


def chain(changes: ChangeArrays, key: Mapping[str, Any], *, base: pa.Table | None = None) -> pa.Table:
    """Everything that happened to the rows that ever had a key, under whatever keys they had.

    Args:
        changes: the changes, from anywhere in the table's life.
        key: the key's columns and their values; text is read as the column's type (a time without a zone is
            UTC), octets as `&#xFF01` or `\\xff01`. Nothing is rounded.
        base: the rows before them.

    Returns:
        The columns of `pairs` in commit order, after `life` (bigint): 1, 2, ... for one row after another.
        A life begins with an insert (or before the changes) and ends with a delete, a truncate (whose
        `before` is the row that it took), or another row under the same key.

    Raises:
        ConfigError: `key` does not name exactly the key's columns, or has a value of another type.
    """
    lines = Lines.of(changes, base)
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
    """The lives' numbers: 1, 2, ... in the order of their first changes."""
    lives, place = np.unique(life, return_inverse=True)
    first = np.full(len(lives), np.iinfo(np.int64).max)
    np.minimum.at(first, place, at)
    rank = np.empty(len(lives), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(1, len(lives) + 1)
    return rank[place]


def _has(lines: Lines, key: Mapping[str, Any]) -> Bools:
    """The images with this key."""
    names = lines.changes.key
    if set(key) != set(names):
        raise ConfigError(
            f"the key is {', '.join(names)}; given is {', '.join(key) or 'nothing'}",
            hint="give a value for each of its columns",
        )
    found = np.ones(len(lines), np.bool_)
    for name in names:
        column = one(lines.values[name])
        value = _value(name, key[name], column.type)
        found &= ~differs(column, pa.repeat(value, len(column)), name)[lines.row]
    return found


def _value(name: str, given: Any, kind: pa.DataType) -> pa.Scalar:
    """A value as the type of a key's column."""
    if pa.types.is_binary(kind) and isinstance(given, str):
        read = octets(given)
        value, why = pa.scalar(read, kind), FORMS if read is None else None
    else:
        value, why = given_value(given, kind)
    if why is not None:
        raise ConfigError(f"{given!r} is not a valid value for the key column {name} ({kind})", hint=why)
    return value
