"""What the command line prints of logs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

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


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> list[str]:
        asked = {
            "_TAILRACE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        code = "import sys; sys.argv = ['tailrace']; from tailrace.__main__ import main; main()"
        ran = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, **asked},
            check=False,
        )
        return ran.stdout.split()

    assert completed("tailrace stat") == ["status"]
    assert "--metrics" in completed("tailrace run --m")
