"""The rows of a key log, read without a JVM: filters are pushed down to the files, memory stays at a few
batches."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ..errors import ConfigError
from ..formats.sqdr.tables import NAMES
from ..lake import delta as lake
from ..model.positions import order_key
from ..wire.keylog_values import IGNORED

BATCH = 16 * 1024
_TRIED = ("I", "U", "M", "D")
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
"""What a file without statistics may contain."""


def opened(keylog: str) -> DeltaTable:
    """The key log's newest version.

    Raises:
        ConfigError: there is none, or it is another table.
    """
    if not lake.exists(keylog):
        raise ConfigError(
            "there is no key log",
            where=keylog,
            hint="`tailrace apply --keylog PATH` writes one, and a task file with `keylog: {mode: all}`",
        )
    table = DeltaTable(keylog)
    if missing := [n for n in NAMES if n not in {f.name for f in table.schema().fields}]:
        raise ConfigError(
            f"this is not a key log: it has no column {missing[0]!r}",
            where=keylog,
            hint="`tailrace inspect` says what it is; `tailrace convert --to sqdr --files delta` makes a "
            "key log",
        )
    return table


def there(keylog: str, *, promised: bool = False) -> bool:
    """Whether there is a key log; `promised`: a task writes it, from the first change on that it applies.

    Raises:
        ConfigError: there is none, and none will be; or it is another table.
    """
    if promised and not lake.exists(keylog):
        return False
    opened(keylog)
    return True


def flagged() -> ds.Expression:
    """Rows that did not end as expected: a row count other than one, or an error.

    What was skipped by a rule (`0x00`) is as it should be, and a truncate tells no number.
    """
    odd = pc.field("action_taken").isin(_TRIED) & (pc.field("result_row_count") != 1)
    return pc.field("result_error").is_valid() | odd


def batches(
    table: DeltaTable, columns: Sequence[str], where: ds.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows that match a filter, in no order, a few thousand at a time."""
    yield from lake.dataset(table).to_batches(
        columns=list(columns), filter=where, batch_size=BATCH, batch_readahead=2, fragment_readahead=1
    )


@dataclass(frozen=True)
class _File:
    path: str
    low: int
    high: int


def newest(
    keylog: str, limit: int, where: ds.Expression | None = None, *, upto: int | None = None
) -> list[dict[str, Any]]:
    """The newest rows that match a filter, at most `limit` of them, oldest first.

    Files are read from the newest on, and no more of them than it takes. `upto`: only rows whose
    `keylog_sort` is not greater.
    """
    files = sorted(_files(opened(keylog)), key=lambda f: f.high, reverse=True)
    if upto is not None:
        files = [f for f in files if f.low <= upto]
        before = pc.field("keylog_sort") <= upto
        where = before if where is None else where & before
    held: list[tuple[int, int, dict[str, Any]]] = []
    seen = 0
    for one in files if limit else ():
        if len(held) == limit and one.high < held[0][0]:
            break
        wanted = _above(where, held, limit)
        data = _parquet(one.path)
        # First select the rows by the columns needed for that; then read those rows.
        sorts = data.to_table(columns=["keylog_sort"], filter=wanted, batch_size=BATCH)[
            "keylog_sort"
        ].to_numpy()
        if len(sorts) > limit:
            last = pc.field("keylog_sort") >= int(np.partition(sorts, -limit)[-limit])
            wanted = last if wanted is None else wanted & last
        for batch in data.to_batches(filter=wanted, batch_size=BATCH) if len(sorts) else ():
            for row in batch.to_pylist():
                seen += 1
                push = heapq.heappush if len(held) < limit else heapq.heappushpop
                push(held, (row["keylog_sort"], seen, row))
    return [shown(row) for _, _, row in sorted(held, key=lambda h: h[:2])]


def _above(where: ds.Expression | None, held: list[Any], limit: int) -> ds.Expression | None:
    """The filter, and that a row is newer than the oldest of those that are kept."""
    if len(held) < limit or not held:
        return where
    newer = pc.field("keylog_sort") >= held[0][0]
    return newer if where is None else where & newer


def _parquet(path: str) -> ds.Dataset:
    fs, place = lake.filesystem(path)
    return ds.dataset(place, filesystem=fs, format="parquet")


def _files(table: DeltaTable) -> list[_File]:
    actions = pa.table(table.get_add_actions(flatten=True))
    names = set(actions.column_names)
    nothing: list[int | None] = [None] * actions.num_rows
    low, high = (
        actions[f"{side}.keylog_sort"].to_pylist() if f"{side}.keylog_sort" in names else nothing
        for side in ("min", "max")
    )
    root = lake.folder_of(table)
    return [
        _File(f"{root}/{unquote(p)}", _LEAST if lo is None else lo, _MOST if hi is None else hi)
        for p, lo, hi in zip(actions["path"].to_pylist(), low, high, strict=True)
    ]


def reached(keylog: str, *, promised: bool = False) -> int | None:
    """The greatest `keylog_sort`, from the files' statistics; None if there are no rows. `promised`: as in
    `there`."""
    if not there(keylog, promised=promised):
        return None
    known = [f.high for f in _files(opened(keylog)) if f.high != _MOST]
    return max(known, default=None)


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row for people and scripts: the byte 0 as text, because terminals do not show it and JSON readers
    refuse it."""
    return row | {"action_taken": "0x00"} if row.get("action_taken") == IGNORED else row


def later(
    keylog: str, after: int | None, where: ds.Expression | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Rows that match a filter and whose `keylog_sort` is greater than `after` (None: all), in order, file
    by file: files of different commits have disjoint ranges."""
    after = order_key(after)
    wanted = pc.field("keylog_sort") > after
    wanted = wanted if where is None else wanted & where
    for one in sorted(_files(opened(keylog)), key=lambda f: f.low):
        if one.high <= after:
            continue
        for batch in _parquet(one.path).to_batches(filter=wanted, batch_size=BATCH, fragment_readahead=1):
            yield [shown(r) for r in batch.sort_by("keylog_sort").to_pylist()]
