"""Change numbers that begin anew: which targets may follow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.apply.vendor import numbering
from tailrace.apply.vendor.numbering import MADE, Numbers
from tailrace.errors import FormatError

pytestmark = pytest.mark.unit

ANEW = Numbers(rise=False, fit=True, most=5, made=MADE + 5)


def test_a_target_with_a_full_load_only_takes_numbers_that_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(numbering, "_renumbered", lambda changes: "renumbered", raising=False)
    changes: Any = SimpleNamespace(name="shop.item")
    for reached in (-1, 0, MADE):
        assert numbering.followed(changes, ANEW, reached) == "renumbered"
    with pytest.raises(FormatError, match="the target has changes up to number 7"):
        numbering.followed(changes, ANEW, 7)
