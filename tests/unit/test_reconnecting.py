"""A target that does not answer: the pipeline waits, if the address was right by the time that it is away."""

from __future__ import annotations

import threading

import pytest

from tailrace.errors import TargetLostError
from tailrace.runtime.reconnecting import Reconnecting
from tailrace.state import capture_state

pytestmark = pytest.mark.unit


def away() -> None:
    raise TargetLostError("the target does not answer")


def test_whether_the_target_was_reached_is_asked_when_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture lands the first baseline while the pipeline, which found none, is running."""
    monkeypatch.setattr(capture_state, "RETRY_S", (0.0,))
    landed: list[str] = []
    there = Reconnecting(threading.Event(), lambda: bool(landed))
    with pytest.raises(TargetLostError):
        there(away)
    landed.append("public.t")
    assert [there(away), there(away), there.reported_state["attempts"], there(lambda: None), there.reported_state] == [
        False, False, 2, True, {},
    ]  # fmt: skip
