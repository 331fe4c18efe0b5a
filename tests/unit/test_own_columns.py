"""Columns that are added to a vendor's: what tables may not have, and what people see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.errors import FormatError
from tailrace.formats.base import FILE, RAW, ROW, WHY, refuse_own, shown

pytestmark = pytest.mark.unit


def table(*columns: str) -> Any:
    return SimpleNamespace(columns=list(columns))


def test_a_vendors_columns_may_have_any_other_name() -> None:
    refuse_own({"shop.item__ct": table("id", "_raw", "_file", "_Row", "tailrace", FILE, ROW, WHY, RAW)}, "in")


@pytest.mark.parametrize("columns", [["id", "tailrace__x"], ["Tailrace__Row", ROW], [ROW, "id", ROW]])
def test_a_vendors_column_with_an_own_name_is_refused(columns: list[str]) -> None:
    with pytest.raises(
        FormatError, match=r"shop\.item__ct has a column (?i:tailrace__(x|row)): names"
    ) as wrong:
        refuse_own({"other": table("id", ROW), "shop.item__ct": table(*columns)}, "/in")
    assert (wrong.value.where, wrong.value.hint) == ("/in", "rename it where the files are created")


def test_short_names_are_shown_if_the_vendor_has_none_of_them() -> None:
    assert shown(["id", "_why", FILE, WHY, "tailrace__x"]) == {FILE: "_file"}
