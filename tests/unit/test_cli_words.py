"""What the command line prints of logs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from py4j import clientserver
from pyspark.errors import AnalysisException
from typer.testing import CliRunner

from tailrace.cli import main as cli
from tailrace.cli import process
from tailrace.config import logs

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


def test_both_words_for_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--format` and `--from` mean the same wherever one of them is taken."""
    for command in ("convert", "apply", "inspect"):
        told = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "200"}).output
        assert "--from" in told, command
        assert "--format" in told, command


def test_errors_of_spark_have_no_java_in_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "verbose", lambda: False)
    text = "An error occurred while calling o1.save.\n: java.lang.X: no\n\tat org.apache.Y(Y.java:1)\nCaused by: z"
    error = AnalysisException(text)
    with pytest.raises(SystemExit):
        process.ended(error)
    assert capsys.readouterr().err == "error: java.lang.X: no\n  where: Spark\n"


def test_what_java_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stack traces, and nothing that is raised, too, unless more is asked for."""
    monkeypatch.setattr(logs, "verbose", lambda: False)
    assert "%ex{none}" in logs.log4j()
    assert "executor.Executor\nlogger.t0.level = off" in logs.log4j()
    monkeypatch.setattr(logs, "verbose", lambda: True)
    assert "%ex\n" in logs.log4j()
    assert "level = off" not in logs.log4j()
