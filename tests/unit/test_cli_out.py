"""What commands print is not cut: at a terminal it fits, in a pipe it is as wide as it has to be."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from tailrace.cli import output, setup
from tailrace.sources.base import Finding

pytestmark = pytest.mark.unit


def test_a_pipe_is_wide_unless_columns_says_how_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output.console().width > 1000
    monkeypatch.setenv("COLUMNS", "60")
    assert output.console().width == 60


def test_a_width_of_0_is_none() -> None:
    env = os.environ | {"COLUMNS": "00", "LINES": ""}
    command = [sys.executable, "-m", "tailrace", "--help"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert len(done.stdout + done.stderr) > 100, done


def test_sql_can_be_copied_from_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Console(width=40, file=io.StringIO())
    monkeypatch.setattr(setup, "out", there)
    grant = 'GRANT SELECT ON TABLE "shop"."item", "shop"."orders" TO "tr";'
    setup.show([Finding("error", "role tr lacks rights", "db", f"{grant}\n        {grant}")])
    assert isinstance(there.file, io.StringIO)
    assert there.file.getvalue().splitlines()[-3:] == ["  hint:", f"    {grant}", f"    {grant}"]
