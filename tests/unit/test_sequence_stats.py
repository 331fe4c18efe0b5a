"""Change numbers that restart: which targets can use combined numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.apply.vendor import sequence_stats
from tailrace.apply.vendor.sequence_stats import COMBINED_START, SequenceStats
from tailrace.errors import FormatError

pytestmark = pytest.mark.unit

RESTARTING = SequenceStats(increasing=False, combinable=True, most=5, most_combined=COMBINED_START + 5)


def test_restarting_numbers_are_combined_for_a_target_without_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sequence_stats, "_with_combined", lambda changes: "combined")
    changes: Any = SimpleNamespace(name="shop.item")
    for reached in (-1, 0, COMBINED_START):  # 0: a full load alone
        assert sequence_stats.numbered(changes, RESTARTING, reached) == "combined"
    with pytest.raises(FormatError, match="the target has changes up to number 7"):
        sequence_stats.numbered(changes, RESTARTING, 7)
