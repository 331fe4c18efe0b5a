"""Whether a task is further behind its source than acceptable, for monitoring."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from ..config.quantities import span
from ..state.capture_state import RECONNECTING, STATE_EVERY_S
from .status import Status, age_s

_HELD_BACK = ("removed", "tracked only")
_REPORT_S = 2 * STATE_EVERY_S
"""The age that a report of capture's may have: what is in it is not known more exactly."""


def late(found: Status, limit_s: float, now: dt.datetime | None = None) -> list[str]:
    """Why a task is more than that many seconds behind, or why it is unknown: one line per reason; empty if
    it is not. What does not run or does not answer (a process, source, target) counts from that moment."""
    at = now or dt.datetime.now(dt.timezone.utc)
    return [*_processes(found, limit_s, at), *_stages(found, limit_s)]


def _processes(found: Status, limit_s: float, now: dt.datetime) -> Iterator[str]:
    for name, said in (("capture", found.capture), ("pipeline", found.pipeline)):
        if said is None:
            yield f"{name} never ran"
            continue
        away = said.get("state") == RECONNECTING and said["running"]
        since = said.get("unreachable_since") if away else said.get("since")
        if since and (seconds := age_s(since, now)) > limit_s:
            what = (
                f"has not reached the {'source' if name == 'capture' else 'target'}"
                if away
                else "has not run"
            )
            yield f"{name} {what} for {span(seconds)}"
        silent = name == "capture" and said["running"] and not away and said.get("at")
        if silent and (seconds := age_s(silent, now)) > limit_s + _REPORT_S:
            yield f"capture has said nothing for {span(seconds)}"


def _stages(found: Status, limit_s: float) -> Iterator[str]:
    lag = (found.capture or {}).get("lag_seconds") or 0.0
    if lag > limit_s + _REPORT_S:
        yield f"capture is {span(lag)} behind the source"
    if found.seconds_unstored > limit_s:
        yield f"captured changes have waited {span(found.seconds_unstored)} for the store"
    for table in found.tables:
        if table.seconds_behind > limit_s and table.state not in _HELD_BACK:
            yield f"{table.table} is {span(table.seconds_behind)} behind ({table.state})"
