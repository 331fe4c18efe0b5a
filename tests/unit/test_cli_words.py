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


def test_the_shell_completes_options_of_commands() -> None:
    asked = {"_TAILRACE_COMPLETE": "complete_bash", "COMP_WORDS": "tailrace run --m", "COMP_CWORD": "2"}
    code = "import sys; sys.argv = ['tailrace']; from tailrace.__main__ import main; main()"
    command, env = [sys.executable, "-c", code], {**os.environ, **asked}
    ran = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert "--metrics" in ran.stdout.split()


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


@pytest.mark.parametrize(
    ("error", "what", "where"),
    [
        (PermissionError(13, "Permission denied", "/lake/a"), "Permission denied", "/lake/a"),
        (NotADirectoryError(20, "Not a directory", "a/b"), "Not a directory", "a/b"),
        (
            RuntimeError(
                'no local directory: a/b\nError: Os { code: 20, kind: NotADirectory, message: "..." }'
            ),
            "Not a directory",
            "no local directory: a/b",
        ),
        (
            OSError("Unable to open file /a: Permission denied (os error 13)"),
            "Permission denied",
            "Unable to",
        ),
    ],
)
def test_a_path_that_cannot_be_used_is_no_traceback(
    error: Exception,
    what: str,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(logs, "verbose", lambda: False)
    with pytest.raises(SystemExit) as end:
        process.ended(error)
    said = capsys.readouterr().err
    assert end.value.code == 1
    assert said.startswith(f"error: a file or folder cannot be used: {what}\n  where: {where}")
    monkeypatch.setattr(logs, "verbose", lambda: True)
    with pytest.raises(type(error)):
        process.ended(error)


def test_other_errors_are_defects_and_raised() -> None:
    with pytest.raises(KeyError):
        process.ended(KeyError("a"))
    with pytest.raises(OSError, match="odd"):
        process.ended(OSError(5, "odd", "/lake/a"))


def test_what_java_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stack traces, and nothing that is raised, too, unless more is asked for."""
    monkeypatch.setattr(logs, "verbose", lambda: False)
    assert "%ex{none}" in logs.log4j()
    assert "executor.Executor\nlogger.t0.level = off" in logs.log4j()
    monkeypatch.setattr(logs, "verbose", lambda: True)
    assert "%ex\n" in logs.log4j()
    assert "level = off" not in logs.log4j()
