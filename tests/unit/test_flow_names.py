"""Names of columns that a pipeline's flow gives, as Spark matches them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.engine.kept_history import HistoryRules
from tailrace.errors import ConfigError
from tailrace.query.history_flow import HistoryFlow

pytestmark = pytest.mark.unit


def frame(*columns: str, exact: str = "false") -> Any:
    """What of a DataFrame tells its names, and whether letter case tells them apart."""
    conf = {"spark.sql.caseSensitive": exact}
    return SimpleNamespace(columns=list(columns), sparkSession=SimpleNamespace(conf=conf))


def test_names_are_matched_without_letter_case() -> None:
    flow = HistoryFlow(
        ["ID"], "seq", except_column_list=["SEQ"], stored_as_scd_type=2, track_history_column_list=["NAME"],
        ignore_null_updates_column_list=["nAme"],
    )  # fmt: skip
    df = frame("Id", "name", "seq")
    assert flow.rules(df) == HistoryRules(("Id",), ("Id", "name"), tracked=("name",))
    assert flow.ignored(df) == ["name"]


def test_the_column_of_exactly_that_name_goes_first() -> None:
    assert HistoryFlow(["ID"], "seq").rules(frame("id", "ID", "seq", exact="true")).key == ("ID",)


def test_a_session_may_tell_names_apart_by_their_case() -> None:
    with pytest.raises(ConfigError, match="there is no column SEQ"):
        HistoryFlow(["id"], "seq", except_column_list=["SEQ"]).rules(frame("id", "seq", exact="true"))
