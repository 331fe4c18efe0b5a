"""What the command line prints of logs."""

from __future__ import annotations

import logging

import pytest
from py4j import clientserver

from tailrace import cli

pytestmark = pytest.mark.unit


def test_what_py4j_logs_it_raises_and_it_is_said_once() -> None:
    def record(path: str) -> logging.LogRecord:
        return logging.LogRecord(
            "root", logging.ERROR, path, 1, "Exception while sending command.", None, None
        )

    assert not cli.not_raised(record(clientserver.__file__))
    assert cli.not_raised(record(cli.__file__))
