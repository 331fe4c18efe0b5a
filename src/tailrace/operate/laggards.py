"""Consumers that do not move, and those that retention has overtaken: what is said of them, and to them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from ..config.task import Task
from ..errors import ConfigError
from ..lake import delta as lake
from ..model.positions import ChangeNumber, order_key
from ..state.ledger import STORE_APP
from .consumers import PROMISED, Consumer, consumers_of


def laggards(
    found: Iterable[Consumer],
    stored: ChangeNumber | None,
    kept: ChangeNumber | None,
    now: dt.datetime,
    log: ChangeNumber | None = None,
) -> dict[str, str]:
    """What is to be said of consumers, by name: of those that have not moved for a day, though there is
    something to read, and of those that miss changes. `kept`: the number behind which there is all; `log`:
    that of LOG.

    >>> from dataclasses import replace
    >>> at = dt.datetime(2026, 1, 1)
    >>> one = Consumer("lake", 7, at, at)
    >>> laggards([one], 8, None, at + dt.timedelta(hours=9))
    {}
    >>> laggards([one], 8, None, at + dt.timedelta(days=9))
    {'lake': 'it has acknowledged 7 of 8, and nothing for 9 days: old changes are kept for it'}
    >>> laggards([one], 12, 9, at)
    {'lake': 'it has acknowledged 7, but changes up to 9 have been removed: it may miss some'}
    >>> laggards([replace(one, log=True)], 12, None, at, log=10)
    {'lake': 'it has acknowledged 7, but records of LOG up to 10 have been removed: it misses some'}
    """
    said = {}
    for one in found:
        days = (now - one.at).days
        if one.acknowledged is not None and one.acknowledged < order_key(kept):
            said[one.name] = (
                f"it has acknowledged {one.acknowledged}, but changes up to {kept} have been removed: it "
                "may miss some"
            )
        elif one.log and one.acknowledged is not None and one.acknowledged < order_key(log):
            said[one.name] = (
                f"it has acknowledged {one.acknowledged}, but records of LOG up to {log} have been removed: "
                "it misses some"
            )
        elif days >= 1 and order_key(one.acknowledged) < order_key(stored) and one.until is None:
            moved = f"it has acknowledged {one.acknowledged or 0} of {stored}, and nothing for {days} days"
            said[one.name] = f"{moved}: old changes are kept for it"
    return said


def consumers_said(task: Task) -> dict[str, str]:
    """Warnings about a task's consumers, by name: see `laggards`."""
    found = consumers_of(task).all()
    if not found:
        return {}
    stored, kept = (lake.progress(task.tracking_path, app) for app in (STORE_APP, PROMISED))
    return laggards(found, stored, kept, dt.datetime.now(dt.timezone.utc), log_removed(task))


def log_removed(task: Task) -> ChangeNumber | None:
    """The number up to which records of LOG have been removed, or are about to be; None: none have been."""
    return max(lake.progress(task.log_path, PROMISED), consumers_of(task).promised_log, key=order_key)


def acknowledge(task: Task, name: str, number: ChangeNumber) -> None:
    """Records that a consumer of a task needs nothing up to a change number.

    Raises:
        ConfigError: it is not registered, has acknowledged more already, or reads LOG, and records after that
            number have been removed from it.
    """
    readers = consumers_of(task)
    mine, gone = next((c for c in readers.all() if c.name == name), None), log_removed(task)
    if mine is not None and mine.log and order_key(mine.acknowledged) <= number < order_key(gone):
        raise ConfigError(
            f"{name!r} has read up to {number}, but records of LOG up to {gone} have been removed, or are "
            "about to be: it misses those in between",
            where=task.log_path,
            hint="let it begin anew with the tables as they are, then acknowledge where they are; "
            "`maintenance.keep_log` says how long LOG is kept when nobody is registered",
        )
    readers.acknowledge(name, number)
