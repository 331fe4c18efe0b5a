"""Purge takes out what every consumer has done with, and no more."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.errors import ConfigError, FormatError, PositionError
from tailrace.formats import file_writer
from tailrace.formats.openedge import purge
from tailrace.lake import delta as lake

from .test_format_openedge import vendor

pytestmark = pytest.mark.spark
TRACKING, IMAGES = "PUB._Cdc-Change-Tracking", "PUB.CDC_Customer"


def test_no_further_than_the_slowest_consumer(spark):
    tables = vendor(spark)
    with pytest.raises(PositionError, match="a has read changes up to 3, not 4"):
        purge(tables, "PUB.Customer", low=1, high=4, consumers={"a": 3, "b": 9})
    with pytest.raises(PositionError, match="no consumer"):
        purge(tables, "PUB.Customer", low=1, high=4, consumers={})
    with pytest.raises(FormatError, match="no source table"):
        purge(tables, "PUB.Nope", low=1, high=1, consumers={"a": 1})


@pytest.mark.slow
def test_the_command(spark, tmp_path):
    file_writer.save({n: df.coalesce(1) for n, df in vendor(spark).items()}, str(tmp_path), "delta")
    words = ["purge-folder", str(tmp_path), "PUB.Customer", "--consumer", "a=3", "--json"]

    def purged(*more: str) -> tuple[dict[str, int], list[int]]:
        done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == 0, (done.output, done.exception)
        left = [lake.read(str(tmp_path / n)).num_rows for n in (TRACKING, IMAGES)]
        return json.loads(done.stdout)["deleted"], left

    some, none = {IMAGES: 4, TRACKING: 3}, {IMAGES: 0, TRACKING: 0}
    assert purged("--dry-run", "--consumer", "b=9") == (some, [8, 9])
    assert purged("--consumer", "b=9") == (some, [5, 5])
    assert purged() == (none, [5, 5])  # again, as after a crash
    wrong = CliRunner().invoke(app, ["purge-folder", f"{tmp_path}/no", "PUB.Customer", "--consumer", "a=1"])
    assert isinstance(wrong.exception, ConfigError)
    assert "there is no " in str(wrong.exception)
