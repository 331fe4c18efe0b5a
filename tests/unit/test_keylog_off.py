"""What a target has that its key log lacks, while that is off: a crash kept it from it, or a baseline brought it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.apply.task_rules import TaskRules
from tailrace.state.open_warnings import log_only

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("brought", "told"),
    [
        (None, "changes 11 to 20"),
        (8, "changes 11 to 20"),  # an old baseline
        (15, "changes 16 to 20"),
        (20, None),  # `resync`: nothing was lost
    ],
)
def test_what_a_baseline_brought_was_not_lost(
    caplog: pytest.LogCaptureFixture, brought: int | None, told: str | None
) -> None:
    passed: list[int] = []
    log: Any = SimpleNamespace(
        mode="off",
        state=lambda _: SimpleNamespace(progress=10),
        commit=lambda _, number: passed.append(number),
    )
    rules = TaskRules.__new__(TaskRules)
    rules._warned = log_only
    rules._log, rules._lock, rules._recovered = log, threading.Lock(), True
    rules.found("s.t", 20, brought)
    assert passed == [20]
    assert [told is not None and told in one.getMessage() for one in caplog.records] == (
        [True] if told else []
    )
