"""The prompt of `tailrace sql` on a terminal: Tab completes, lines are remembered; elsewhere nothing is kept."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app

from .task_home import TaskHome

pytestmark = pytest.mark.unit
pytest.importorskip("readline")


@pytest.fixture
def home(tmp_path: Path) -> TaskHome:
    made = TaskHome(tmp_path)
    made.baseline([{"id": 1, "name": "hex nut", "price": Decimal("1.00")}], after=10)
    return made


def command(home: TaskHome) -> tuple[list[str], dict[str, str], Path]:
    state = home.file.parent / "state"
    words = [sys.executable, "-m", "tailrace", "sql", str(home.file)]
    return words, os.environ | {"XDG_STATE_HOME": str(state), "TERM": "dumb"}, state / "tailrace/sql_history"


def test_a_prompt_completes_and_remembers_lines_has_help_and_ctrl_c_ends_the_statement_only(
    home: TaskHome,
) -> None:
    words, env, kept = command(home)
    mine, theirs = pty.openpty()
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env, close_fds=True)
    os.close(theirs)
    try:
        said_until(mine, b"tailrace> ")
        os.write(mine, b"SELECT nam\t FROM shop.item;\n")
        assert b"hex nut" in said_until(mine, b"hex nut", b"tailrace> ")
        os.write(mine, b"SELECT nope,\n")
        said_until(mine, b"...> ")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said_until(mine, b"tailrace> ")
        for typed, answer in (
            (b"help\n", b"End a statement with a semicolon"),
            (b"\\d\n", b"the target shop.item"),
            (b"\\d shop.item;\n", b"price"),
            (b"SELECT 41 + 1 AS n;\n", b"42"),
        ):
            os.write(mine, typed)
            assert answer in said_until(mine, answer, b"tailrace> "), typed
        os.write(mine, b"SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b;\n")
        said_until(mine, b"b;\r\n")
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert b"the statement was cancelled" in said_until(mine, b"cancelled", b"tailrace> ")
        os.write(mine, b"exit\n")
        said_until(mine)
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(mine)
    assert "SELECT name FROM shop.item;" in kept.read_text()


def test_parquet_is_not_written_to_a_terminal(home: TaskHome) -> None:
    mine, theirs = pty.openpty()
    words = [
        sys.executable,
        "-m",
        "tailrace",
        "query",
        "current",
        str(home.file),
        "shop.item",
        "-o",
        "parquet",
    ]
    done = subprocess.run(words, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    said = said_until(mine)
    os.close(mine)
    assert (said, done.returncode) == (b"", 2)
    assert "redirect it: -o parquet > rows.parquet" in " ".join(done.stderr.split())


def said_until(terminal: int, *words: bytes) -> bytes:
    """What the other side prints until these words have come one after the other; until it closes if none are
    given."""
    said, end = b"", re.compile(b".*".join(map(re.escape, words)) or b"(?!)", re.DOTALL)
    while not end.search(said):
        try:
            more = os.read(terminal, 4096)
        except OSError:  # Linux says EIO once nobody is there any more
            more = b""
        if not more:
            break
        said += more
    return said


def test_what_comes_through_a_pipe_is_run_until_a_statement_fails_and_not_kept(home: TaskHome) -> None:
    _, env, kept = command(home)
    typed = "SELECT name FROM shop.item; SELECT nope; SELECT 2 AS b"
    done = CliRunner().invoke(app, ["sql", str(home.file), "-o", "csv"], input=typed, env=env)
    assert (done.stdout, done.exit_code) == ('"name"\n"hex nut"\n', 1)
    assert "nope" in str(done.exception)
    assert not kept.exists()


def test_statements_of_a_pipe_are_run(home: TaskHome) -> None:
    for typed, said, error in (
        ("SELECT name FROM shop.item", '"name"\n"hex nut"\n', ""),
        ("SELECT 1 AS a; -- one\nSELECT ';\n' AS b;\n", '"a"\n1\n"b"\n";\n"\n', ""),
        ("/* nothing */\n", "", "there is no statement"),
    ):
        done = CliRunner().invoke(app, ["sql", str(home.file), "-o", "csv"], input=typed)
        assert (done.stdout, error in str(done.exception or "")) == (said, True), done


def test_several_statements_are_answered_one_after_the_other(home: TaskHome) -> None:
    asked = "SELECT 1 AS a; SELECT 2 AS b"
    done = CliRunner().invoke(app, ["sql", str(home.file), asked, "-o", "csv"], catch_exceptions=False)
    assert done.stdout == '"a"\n1\n"b"\n2\n'
