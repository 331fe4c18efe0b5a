"""Every example runs to its end and tells what it is there to tell."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/run.py"))
LINES = 40
# The two whose plans are largest take a minute; the formats' tests and test_any_to_any call the same.
LARGE = ("openedge", "soliddb")
RUN = [pytest.param(p, marks=pytest.mark.slow if p.parent.name in LARGE else ()) for p in EXAMPLES]


@pytest.mark.slow
@pytest.mark.parametrize("script", RUN, ids=lambda p: p.parent.name)
def test_example(spark, script, tmp_path, capsys):
    runpy.run_path(str(script))["main"](str(tmp_path))
    told = capsys.readouterr().out
    assert "applied" in told
    assert "the life of" in told
    assert "handed on" in told
    assert list(tmp_path.rglob("_delta_log")), "nothing was applied"


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.parent.name)
def test_examples_are_short(script):
    assert len(script.read_text().splitlines()) < LINES


def test_one_example_a_vendor():
    assert [p.parent.name for p in EXAMPLES] == ["openedge", "qlik", "soliddb", "sqdr"]
