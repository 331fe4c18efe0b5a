"""How long a key log's rows are kept: by runs, never by age. A run's rows vanish together, with its row in
`statistic` (spec/sqdr.md §7).

What stays, whatever is asked for: runs that are at work, the newest run of every table, and every run with a
row that a registered consumer has not acknowledged. A consumer says how far it has read by `keylog_sort`.
Consumers are a small Delta table beside the key log:

| column | type | meaning |
| --- | --- | --- |
| `name` | string | the consumer |
| `acknowledged` | bigint | the greatest `keylog_sort` that it needs no longer; -1: it needs all there is |
| `since` | timestamp | when it was registered |
| `at` | timestamp | when it last said how far it is |
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from .. import lake
from ..errors import ConfigError
from ..formats.sqdr.control import STATISTIC
from . import control_tables, rows

CONSUMERS = "consumers"
SCHEMA = pa.schema(
    [
        ("name", pa.string()), ("acknowledged", pa.int64()), ("since", pa.timestamp("us", "UTC")),
        ("at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
RUNNING = "running"
NOTHING_YET = -1
_VACUUM_S = 7 * 86_400.0
_AT_ONCE, _TRIES = 500, 20


@dataclass(frozen=True)
class Pruned:
    """Runs that are gone, or would be, with their rows; and runs that a consumer holds, with its name."""

    runs: list[str]
    rows: int
    held: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"runs": self.runs, "rows": self.rows, "held": self.held}


def prune(keylog: str, keep: int, *, dry_run: bool = False) -> Pruned:
    """Drops all but the newest `keep` past runs of each table.

    A crash in between leaves runs in `statistic` that have no rows any more; the next call takes them away.
    """
    found = chosen(control_tables.rows(keylog, STATISTIC), keep, consumers(keylog))
    if found.runs and not dry_run:
        for start in range(0, len(found.runs), _AT_ONCE):
            _delete(keylog, found.runs[start : start + _AT_ONCE])
        gone = set(found.runs)
        control_tables.change(keylog, STATISTIC, lambda have: [r for r in have if r["run_id"] not in gone])
        if lake.exists(keylog):
            lake.vacuum(keylog, _VACUUM_S)
    return found


def chosen(runs: Sequence[dict[str, Any]], keep: int, needed: dict[str, int]) -> Pruned:
    """Which runs (rows of `statistic`) go; `needed`: what each consumer has acknowledged.

    >>> at = [dict(run_id=r, subscription_id="s.t", state="ended", start_ts=r, last_sort=int(r) * 10,
    ...            change_count=10) for r in "1234"]
    >>> chosen(at, 2, {})
    Pruned(runs=['1', '2'], rows=20, held={})
    >>> chosen(at, 2, {"audit": 15}), chosen(at[:1], 0, {}).runs
    (Pruned(runs=['1'], rows=10, held={'2': 'audit'}), [])
    """
    tables = defaultdict(list)
    for run in sorted(runs, key=lambda r: (r["start_ts"], r["run_id"]), reverse=True):
        tables[run["subscription_id"]].append(run)
    behind = min(needed, key=lambda name: needed[name], default=None)
    gone, held = [], {}
    for mine in tables.values():
        past = [r for r in mine if r["state"] != RUNNING]
        for run in past[max(keep, 1 if len(past) == len(mine) else 0) :]:
            if behind is not None and (run["last_sort"] or NOTHING_YET) > needed[behind]:
                held[run["run_id"]] = behind
            else:
                gone.append(run)
    names = sorted(r["run_id"] for r in gone)
    return Pruned(names, sum(r["change_count"] or 0 for r in gone), held)


def consumers(keylog: str) -> dict[str, int]:
    """Registered consumers and what each has acknowledged."""
    return {r["name"]: r["acknowledged"] for r in consumer_rows(keylog)}


def consumer_rows(keylog: str) -> list[dict[str, Any]]:
    """The rows of the table of consumers."""
    place = control_tables.path(keylog, CONSUMERS)
    found: list[dict[str, Any]] = lake.read(place).to_pylist() if lake.exists(place) else []
    return sorted(found, key=lambda r: r["name"])


def add_consumer(keylog: str, name: str) -> None:
    """Registers a consumer: it needs every row that is there.

    Raises:
        ConfigError: it is registered already, or there is no key log.
    """
    rows.opened(keylog)
    if name in consumers(keylog):
        raise ConfigError(
            f"the consumer {name!r} is registered already", where=keylog, hint="`ack` says how far it is"
        )
    now = datetime.now(timezone.utc)
    new = {"name": name, "acknowledged": NOTHING_YET, "since": now, "at": now}
    lake.append(control_tables.path(keylog, CONSUMERS), pa.Table.from_pylist([new], schema=SCHEMA))


def acknowledge(keylog: str, name: str, sort: int) -> None:
    """Notes that a consumer needs no rows up to a `keylog_sort`.

    Raises:
        ConfigError: it is not registered, or has acknowledged more already.
    """
    reached = _known(keylog, name)
    if sort < reached:
        raise ConfigError(
            f"{name!r} has acknowledged {reached} already",
            where=keylog,
            hint="rows before that may be gone; to read again from the start, remove it and add it",
        )
    table = DeltaTable(control_tables.path(keylog, CONSUMERS))
    now = datetime.now(timezone.utc)
    table.update(new_values={"acknowledged": sort, "at": now}, predicate=f"name = {_text(name)}")


def remove_consumer(keylog: str, name: str) -> None:
    """Forgets a consumer.

    Raises:
        ConfigError: it is not registered.
    """
    _known(keylog, name)
    DeltaTable(control_tables.path(keylog, CONSUMERS)).delete(f"name = {_text(name)}")


def _known(keylog: str, name: str) -> int:
    known = consumers(keylog)
    if name not in known:
        raise ConfigError(
            f"no consumer {name!r} is registered",
            where=keylog,
            hint=f"registered: {', '.join(known)}" if known else "`consumer add NAME` registers one",
        )
    return known[name]


def _delete(keylog: str, runs: Sequence[str]) -> None:
    """A table that goes on being written to may ask to try again."""
    if not lake.exists(keylog):
        return
    where = f"run_id IN ({', '.join(map(_text, runs))})"
    for attempt in range(_TRIES):
        try:
            DeltaTable(keylog).delete(where)
            return
        except CommitFailedError:
            if attempt + 1 == _TRIES:
                raise
            time.sleep(0.05 * (attempt + 1))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
