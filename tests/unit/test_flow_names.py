"""Names of columns that a pipeline's flow gives, as Spark matches them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.engine.history_events import OPERATION, SEQUENCE, TIME, event_schema
from tailrace.engine.history_updates import HistoryRules
from tailrace.errors import ConfigError
from tailrace.query.history.flow import HistoryFlow, with_masks

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


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.array([16777217.0]), pa.float32()),
        (pa.array([5], pa.int64()), pa.timestamp("us")),
        (pa.array([2**40], pa.int64()), pa.int32()),
    ],
)
def test_a_value_that_the_history_cannot_hold_is_refused(given: pa.Array, kept: pa.DataType) -> None:
    """A source whose column became another type."""
    schema = event_schema(pa.schema([("id", pa.int32()), ("v", kept)]), pa.int64())
    rows = pa.table({"id": pa.array([1], pa.int32()), "v": given, SEQUENCE: [1], OPERATION: ["U"],
                     TIME: pa.array([0], pa.timestamp("us", "UTC"))})  # fmt: skip
    with pytest.raises(ConfigError, match=re.escape(f"v is {given.type}, in the history {kept}")):
        with_masks(rows, schema, ["id", "v"], [])
    same = rows.set_column(
        1, "v", pa.nulls(1, given.type) if pa.types.is_floating(kept) else pa.nulls(1, kept)
    )
    assert with_masks(same, schema, ["id", "v"], [])["v"].to_pylist() == [None]
