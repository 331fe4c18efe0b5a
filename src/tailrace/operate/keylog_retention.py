"""Retention of a key log: by runs, not by age.

The rows of a run are removed together with its row in `statistic` (spec/sqdr.md §7). These runs are never
removed: those that are running, the newest one of each table, and those with a row that a registered consumer
has not acknowledged. Consumers acknowledge a `keylog_sort` (`operate.consumers`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from ..formats.sqdr.control import STATISTIC
from ..lake import delta as lake
from ..lake import log_retention
from ..lake.opened import open_table
from ..model.positions import order_key
from . import control_tables, keylog_rows
from .consumers import Consumers

CONSUMERS = "consumers"
RUNNING = "running"
_AT_ONCE, _TRIES = 500, 20


@dataclass(frozen=True)
class Pruned:
    """Runs that are (or would be) removed, with the number of their rows; `held` has the runs that are kept
    for a consumer, with its name."""

    runs: list[str]
    rows: int
    held: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"runs": self.runs, "rows": self.rows, "held": self.held}


def prune(keylog: str, keep: int, *, dry_run: bool = False) -> Pruned:
    """Removes old runs; the newest `keep` runs of each table that have ended stay.

    After a crash, `statistic` may have runs without rows. The next call removes them.

    Raises:
        ConfigError: other processes change the consumers all the time.
    """
    readers = of_keylog(keylog)
    for _ in range(_TRIES):
        version, known = readers.read()
        runs = control_tables.rows(keylog, STATISTIC)
        found = chosen(runs, keep, {c.name: c.acknowledged for c in known})
        if dry_run or not found.runs:
            return found
        gone = set(found.runs)
        if readers.promise(max(r["last_sort"] or 0 for r in runs if r["run_id"] in gone), version):
            break
    else:
        raise ConfigError("the consumers are constantly being written by other processes", where=readers.path)
    for start in range(0, len(found.runs), _AT_ONCE):
        _delete(keylog, found.runs[start : start + _AT_ONCE])
    control_tables.table(keylog, STATISTIC).change(lambda have: [r for r in have if r["run_id"] not in gone])
    if lake.exists(keylog):
        log_retention.tidy(keylog)
    return found


def chosen(runs: Sequence[dict[str, Any]], keep: int, needed: Mapping[str, int | None]) -> Pruned:
    """Selects the runs to remove (rows of `statistic`); `needed` has the number that each consumer
    acknowledged.

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
    behind = min(needed, key=lambda name: order_key(needed[name]), default=None)
    gone, held = [], {}
    for mine in tables.values():
        past = [r for r in mine if r["state"] != RUNNING]
        for run in past[max(keep, 1 if len(past) == len(mine) else 0) :]:
            if behind is not None and (run["last_sort"] or 0) > order_key(needed[behind]):
                held[run["run_id"]] = behind
            else:
                gone.append(run)
    names = sorted(r["run_id"] for r in gone)
    return Pruned(names, sum(r["change_count"] or 0 for r in gone), held)


def of_keylog(keylog: str) -> Consumers:
    """Returns the consumers of a key log."""
    return Consumers(control_tables.path(keylog, CONSUMERS))


def add_consumer(keylog: str, name: str, *, promised: bool = False) -> None:
    """Registers a consumer, which needs all rows that exist now; `promised` as in `keylog_rows.has_keylog`.

    Raises:
        ConfigError: it is registered already, or there is no key log.
    """
    keylog_rows.has_keylog(keylog, promised=promised)
    of_keylog(keylog).add(name)


def acknowledge(keylog: str, name: str, sort: int, *, promised: bool = False) -> None:
    """Records that a consumer no longer needs rows up to a `keylog_sort`; `promised` as in `add_consumer`.

    Raises:
        ConfigError: it is not registered, has acknowledged more already, or the key log ends before.
    """
    readers = of_keylog(keylog)
    reached = max(keylog_rows.greatest_sort(keylog, promised=promised), readers.promised, key=order_key)
    if sort > order_key(reached):
        raise ConfigError(
            f"{name!r} cannot have read {sort}: the newest `keylog_sort` is {reached or 0}",
            where=keylog,
            hint="acknowledge the greatest `keylog_sort` that was read",
        )
    readers.acknowledge(name, sort)


def _delete(keylog: str, runs: Sequence[str]) -> None:
    """Deletes the rows of runs; other processes may write to the table at the same time."""
    if not lake.exists(keylog):
        return
    where = f"run_id IN ({', '.join(map(_text, runs))})"
    lake.retried(lambda: open_table(keylog).delete(where))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
