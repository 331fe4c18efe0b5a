"""SQL over answers, by DuckDB: the times of a condition are UTC, wherever the machine is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

ASK = """
import datetime as dt
import pyarrow as pa
from tailrace.query.result import Result
utc = dt.timezone.utc
times = [dt.datetime(1969, 12, 31, 23, tzinfo=utc), dt.datetime(1970, 1, 1, 3, tzinfo=utc)]
found = Result.of(pa.table({"id": [1, 2], "ts": times}))
for condition in ("ts < '1970-01-01 00:00:00'", "ts::date = '1970-01-01'"):
    print([r["id"] for r in found.where(condition).rows()])
print(found.duckdb().filter("ts < '1970-01-01 00:00:00'").fetchone()[0])
"""


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_times_without_a_zone_are_utc_wherever_the_machine_is(zone: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ASK], env=os.environ | {"TZ": zone}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split("\n") == ["[1]", "[2]", "1", ""]
