"""A name of a table stands for itself wherever patterns may stand, too."""

from __future__ import annotations

import pytest

from tailrace.config.settings import SourceSettings
from tailrace.config.table_settings import patterns_of
from tailrace.sources.soliddb.catalog import chosen

pytestmark = pytest.mark.unit

ODD = "s.a[1]"


def test_a_name_that_looks_like_a_pattern_is_the_table_itself() -> None:
    said = SourceSettings(url="postgresql://db/shop", tables=[ODD], exclude=["s.b[1]"])
    assert [said.selects(t) for t in (ODD, "s.b[1]")] == [True, False]
    assert patterns_of([ODD, "s.*"], ODD) == ["s.*", ODD]
    assert chosen([ODD, "s.b[1]"], [ODD, "s.b*"], ["s.b[1]"]) == [ODD]
