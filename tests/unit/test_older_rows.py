"""A value that rows older than a column have, and that its type cannot hold."""

from __future__ import annotations

import pytest

from tailrace.errors import ApplyError
from tailrace.model.change import Column
from tailrace.targets.layout_changes import missing_value

pytestmark = pytest.mark.unit


def test_it_is_an_error_that_names_the_column_and_the_way_out() -> None:
    with pytest.raises(
        ApplyError, match=r"the value '1e9' that older rows have cannot be held by int"
    ) as raised:
        missing_value(Column("n", 4, "numeric", "numeric", "int"), "1e9")
    assert raised.value.where == "n"
    assert "tailrace resync" in (raised.value.hint or "")
