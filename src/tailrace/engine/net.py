"""Computes the changes of a range: every change, or at most one change per key.

Options and columns are those of Spark's changelog reader (`DataFrameReader.changes`), so that results can be
combined with Spark's. `sql_server.py` returns net changes in SQL Server's three styles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from ..errors import ConfigError
from ..execution import thread_pool
from .change_arrays import SMALL_BATCH, Bools, ChangeArrays, I, Ints, U
from .chunked_take import ChunkedTake, take_rows
from .commits import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETED,
    INSERTED,
    POSTIMAGE,
    PREIMAGE,
    TRUNCATED,
    commit_columns,
    first_word,
)
from .equal_values import values_differ
from .key_timelines import ABSENT, ABSENT_HEADER, EARLIER, KeyTimelines
from .reserved_names import refuse_reserved

Deduplication = Literal["none", "dropCarryovers", "netChanges"]
MODES: tuple[Deduplication, ...] = ("none", "dropCarryovers", "netChanges")
RESULT_COLUMNS = (ABSENT, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
"""Columns of net changes in addition to the data."""
_BEFORE, _AFTER, _TRUNCATE = 0, 1, 2


def net(
    changes: ChangeArrays,
    *,
    base: pa.Table | None = None,
    deduplicationMode: Deduplication = "netChanges",  # noqa: N803 - Spark's names
    computeUpdates: bool = True,  # noqa: N803
) -> pa.Table:
    """Returns the changes of a range in the form of Spark's changelog.

    Args:
        changes: the range, which may start at any point in the table's history.
        base: the table's rows before it. Without it, a key had a row before the range if its first change is
            an update or a delete.
        deduplicationMode: `none`, every change; `dropCarryovers`, without updates that change no value;
            `netChanges`, at most one change per key.
        computeUpdates: updates are `update_preimage` and `update_postimage`, otherwise `delete` and `insert`.

    Returns:
        The data columns; `_absent` (list of strings: columns with unknown values, NULL if none);
            `_change_type`, `_commit_version`, `_commit_timestamp`; in commit order, a preimage before its
            postimage. An update of the key is a delete of the old and an insert of the new key. A truncate is
            one row `truncate` without values, and later changes apply to an empty table. With a base, net
            changes include each row that the truncate removed.

    Raises:
        ConfigError: a data column has the name of a column of the result, or the mode is unknown.
    """
    refuse_reserved("net", changes.columns, RESULT_COLUMNS, changes.name)
    data, own = net_parts(changes, base, deduplicationMode, computeUpdates)
    return pa.table(data | own)


def refuse_unknown_mode(mode: str) -> None:
    """Raises ConfigError for an unknown mode."""
    if mode not in MODES:
        raise ConfigError(f"deduplicationMode is {mode!r}", hint=f"use one of {', '.join(MODES)}")


def net_parts(
    changes: ChangeArrays,
    base: pa.Table | None,
    deduplicationMode: Deduplication = "netChanges",  # noqa: N803
    computeUpdates: bool = True,  # noqa: N803
) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
    """Returns the data columns of net changes and `RESULT_COLUMNS` separately, so that names may coincide."""
    refuse_unknown_mode(deduplicationMode)

    def asked(lines: KeyTimelines) -> NetRows:
        if deduplicationMode == "netChanges":
            return _net_changes(lines)
        none = np.zeros(len(lines), np.bool_)
        return _every_change(lines, none if deduplicationMode == "none" else unchanged_updates(lines, ~none))

    with thread_pool("net", worth=len(changes) > SMALL_BATCH) as pool:
        found = list(pool.map(asked, KeyTimelines.parts(changes, base, pool)))
    truncates = changes.truncates
    if deduplicationMode == "netChanges":
        truncates = truncates[-1:] if base is None else truncates[:0]
    nothing = np.full(len(truncates), -1)
    found[0].add(nothing, truncates, _TRUNCATE, np.zeros(len(truncates), np.bool_))
    return _net_rows(changes, found, computeUpdates)


def unchanged_updates(lines: KeyTimelines, among: Bools) -> Bools:
    """Returns the updates that change no value of an existing row, and their before images.

    All values must be known. Only updates `among` the given images are compared.
    """
    ends = lines.versions[1]
    replaces = np.zeros(len(lines.changes), np.bool_)
    replaces[ends[ends >= 0]] = True
    updates = np.flatnonzero((lines.oper == U) & among)
    updates = updates[replaces[lines.at[updates]] & ~lines.came[updates]]
    before = lines.before(updates)
    updates, before = updates[before >= 0], before[before >= 0]
    same = np.ones(len(updates), np.bool_)
    for name in lines.changes.columns:
        place = lines.source(name)
        old, new = place[before], place[updates]
        column = lines.values[name]
        same &= (old >= 0) & (new >= 0) & ~values_differ(take_rows(column, old), take_rows(column, new), name)
        updates, before, same = updates[same], before[same], same[same]
    found = np.zeros(len(lines), np.bool_)
    found[updates] = True
    with_before = lines.partner[updates]
    found[with_before[with_before >= 0]] = True
    return found


class NetRows:
    """Rows of a result: image (-1: none), change row `at`, shown `side`, and whether it is one of an update's
    two rows."""

    def __init__(self, lines: KeyTimelines) -> None:
        self._lines = lines
        self._parts: list[tuple[Ints, Ints, Ints, Bools]] = []

    def add(self, image: Ints, at: Ints, side: int, update: Bools) -> None:
        """Adds rows."""
        self._parts.append((image, at, np.full(len(image), side), update))

    def taken(self) -> tuple[pa.Table, Ints, Ints, Bools]:
        """Returns the rows of the images, and `at`, `side` and `update` of each."""
        image, at, side, update = (np.concatenate(p) for p in zip(*self._parts, strict=True))
        return self._lines.take(image), at, side, update


def _net_rows(
    changes: ChangeArrays, found: Sequence[NetRows], updates: bool
) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
    """Returns the rows in commit order, with Spark's change types."""
    images, *parts = zip(*(rows.taken() for rows in found), strict=True)
    at, side, update = map(np.concatenate, parts)
    order = np.lexsort((side % _TRUNCATE, at))
    rows, at, side, update = pa.concat_tables(images), at[order], side[order], update[order] & updates
    kind = first_word(
        (side == _TRUNCATE, TRUNCATED),
        (update & (side == _BEFORE), PREIMAGE),
        (update, POSTIMAGE),
        (side == _BEFORE, DELETED),
        other=INSERTED,
    )
    here = ChunkedTake(order)
    data = {n: here.of(rows[n]) for n in changes.columns}
    return data, {ABSENT: here.of(rows[ABSENT_HEADER]), CHANGE_TYPE: kind, **commit_columns(changes, at)}


def _every_change(lines: KeyTimelines, dropped: Bools) -> NetRows:
    """Returns every change: the row before and the row after it."""
    steps = NetRows(lines)
    own = (lines.at >= 0) & ~dropped
    update = (lines.oper == U) & own
    stays = np.flatnonzero(update & ~lines.came)
    before = lines.before(stays)
    stays, before = stays[before >= 0], before[before >= 0]
    after = np.flatnonzero(((lines.oper == I) & own) | update)
    gone = np.flatnonzero(lines.closes & own)
    steps.add(before, lines.at[stays], _BEFORE, np.ones(len(stays), np.bool_))
    steps.add(after, lines.at[after], _AFTER, (lines.oper[after] == U) & ~lines.came[after])
    # The row that moved away is placed at the update that moved it.
    moved = np.where(lines.left[gone], lines.at[np.maximum(lines.partner[gone], 0)], lines.at[gone])
    steps.add(gone, moved, _BEFORE, np.zeros(len(gone), np.bool_))
    return steps


def _net_changes(lines: KeyTimelines) -> NetRows:
    """Returns per key the row before and the row after the range."""
    steps = NetRows(lines)
    begins, ends = lines.versions
    low, many = (int(lines.key[0]), int(lines.key[-1] - lines.key[0]) + 1) if len(lines) else (0, 0)
    key = lines.key - low
    old, new, last, end = (np.full(many, -1, np.int64) for _ in range(4))
    met = np.flatnonzero(lines.oper == EARLIER)
    old[key[met]] = met
    # NumPy keeps the last of several values for one index: the newest of each key.
    end[key[begins]] = ends
    newest = begins[ends < 0]
    new[key[newest]] = newest
    telling = _deciding_images(lines, key)
    last[key[telling]] = lines.at[telling]
    last = np.maximum(last, end)
    if len(lines.changes.truncates) and not lines.whole:
        old[:] = -1  # the truncate represents them
    touched = last >= 0
    both = (old >= 0) & (new >= 0)
    before, after = np.flatnonzero(touched & (old >= 0)), np.flatnonzero(touched & (new >= 0))
    steps.add(old[before], last[before], _BEFORE, both[before])
    steps.add(new[after], last[after], _AFTER, both[after])
    return steps


def _deciding_images(lines: KeyTimelines, key: Ints) -> Ints:
    """Returns the images that determine when their keys were last changed, in order.

    Values are compared only if the newest image is an update that may have changed nothing.
    """
    telling = np.flatnonzero(lines.opens | lines.closes)
    among = np.zeros(len(lines), np.bool_)
    among[telling[np.append(key[telling[1:]] != key[telling[:-1]], True)[: len(telling)]]] = True
    dropped = unchanged_updates(lines, among)
    if dropped.any():
        again = np.zeros(int(key[-1]) + 1, np.bool_)
        again[key[dropped]] = True
        telling = telling[~unchanged_updates(lines, again[key])[telling]]
    return telling
