"""Finds changes whose key is NULL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ApplyError
from ..model.change import BEFORE, TRUNCATE, UPDATE


def null_in_key(name: str) -> str:
    """Returns the error of a change with NULL in its key.

    >>> null_in_key("id")
    'NULL in id, which is in the key'
    """
    return f"NULL in {name}, which is in the key"


@dataclass(frozen=True)
class NullKeys:
    """Which rows have NULL in their key, and the error of each row (NULL: none)."""

    rows: npt.NDArray[np.bool_]
    why: pa.StringArray


def null_keys(
    keys: Sequence[tuple[str, pa.Array]], oper: npt.NDArray[np.str_], change: npt.NDArray[np.int64]
) -> NullKeys | None:
    """Finds changes with NULL in their key; None if there is no such change. NULL in a B row is its update's
    error.

    Args:
        keys: names and values of the key's columns.
        oper, change: as in `events.Events`.

    >>> found = null_keys([("id", pa.array([1, None, 2]))], np.array(["I", "B", "U"]), np.array([0, 1, 1]))
    >>> found.why.to_pylist()
    [None, 'NULL in id, which is in the key', 'NULL in id, which is in the key']
    """
    if not any(values.null_count for _, values in keys):
        return None
    texts = sorted(null_in_key(name) for name, _ in keys)
    none = len(texts)
    found = np.full(len(oper), none)
    for name, values in reversed(keys):  # the error names the key's first NULL column
        null = values.is_null().to_numpy(zero_copy_only=False) & (oper != TRUNCATE)
        found = np.where(null, texts.index(null_in_key(name)), found)
    both = np.flatnonzero((oper == BEFORE) | (oper == UPDATE))
    least = np.full(int(change[-1]) + 1, none)
    np.minimum.at(least, change[both], found[both])
    found[both] = least[change[both]]
    bad = found < none
    if not bad.any():
        return None
    return NullKeys(bad, pc.take(pa.array(texts), pa.array(found, mask=~bad)))


def null_key(table: str, key: Sequence[str], seq: str) -> ApplyError:
    """Returns the error for a change with NULL in its key."""
    return ApplyError(
        f"a change has NULL in the row key ({', '.join(key)})",
        where=f"{table}, change_seq {seq}",
        hint="correct or remove that change, or choose a key of NOT NULL columns; if "
        "`control/quarantine` has a value of it, store its column as text (`types`), and resync the table",
    )
