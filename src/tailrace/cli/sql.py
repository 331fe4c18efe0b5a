"""The command `sql`: statements, given or read from a pipe, or a prompt."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError, TailraceError
from ..query.table_functions import split_statements
from .out import err, out
from .query import Limit, Output, print_result
from .task_file import TaskFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..library.open_task import OpenTask

_KEPT = 1000
"""Lines of history that are kept."""
_DESCRIBE = re.compile(r"\\d\+?(?:\s+(.+))?")
_HELP = r"""End a statement with a semicolon; Ctrl-C drops or cancels it.
\d, SHOW TABLES;             the tables: targets, change tables, tracking, keylog
\d NAME, DESCRIBE NAME;      a table's columns
SHOW FUNCTIONS;              the questions, as FROM net('schema.table', start => '2026-11-22')
exit, \q, Ctrl-D             end"""


def sql(
    task: TaskFile,
    statement: Annotated[
        str | None,
        typer.Argument(
            help="SQL (DuckDB's), several with semicolons between. Not given: what comes through "
            "a pipe; on a terminal, a prompt."
        ),
    ] = None,
    output: Output = "table",
    limit: Limit = 100,
    spark: Annotated[
        bool, typer.Option("--spark", help="Spark's SQL in a session of Spark, for what DuckDB cannot hold.")
    ] = False,
) -> None:
    """Ask a task's tables in SQL (needs DuckDB: pip install 'tailrace\\[query]').

    schema.table is a target, schema.table__ct its change table; tracking and keylog are there, too.
    The questions of `tailrace query` are functions: FROM net('schema.table', start => '2026-11-22').
    SHOW TABLES lists the tables, SHOW FUNCTIONS the questions, DESCRIBE schema.table a table's columns.
    """
    from ..library.open_task import OpenTask
    from ..library.task_sql import completions

    opened = OpenTask(task, connects=False)
    with _session(opened, wanted=spark) as session:

        def answer(asked: str) -> None:
            print_result(opened.sql(asked, session), output=output, limit=limit)

        if statement is None and sys.stdin.isatty():
            if session is None:  # Spark's own handler cancels its jobs
                signal.signal(signal.SIGINT, signal.default_int_handler)
            out.print("help says what can be asked; exit, or Ctrl-D, ends the prompt")
            for asked in _typed(lambda: completions(opened)):
                try:
                    answer(asked)
                except TailraceError as error:
                    err.print(str(error), markup=False, soft_wrap=True)
                except KeyboardInterrupt:
                    err.print("\nthe statement was cancelled")
            return
        for asked in _given(sys.stdin.read() if statement is None else statement):
            answer(asked)


@contextmanager
def _session(opened: OpenTask, *, wanted: bool) -> Iterator[SparkSession | None]:
    """A session of Spark's, if one is wanted."""
    if not wanted:
        yield None
        return
    from ..runtime.session import session
    from .screen_steps import bar

    with bar(err) as steps:
        steps.now("starting Spark: --spark")
        made = session(f"tailrace sql {opened.name}", conf=opened.task.spark.session_conf)
    yield made


def _given(text: str) -> list[str]:
    """The statements of a text.

    Raises:
        ConfigError: it has none.
    """
    found, last = split_statements(text)
    if not found and not last:
        raise ConfigError("there is no statement", hint="tailrace sql TASK 'SELECT ...'")
    return [*found, last] if last else found


def _typed(words: Callable[[], Sequence[str]]) -> Iterator[str]:
    """What is typed, up to each semicolon, until `exit` or Ctrl-D; Ctrl-C drops what is typed. Tab completes
    words, and the lines of earlier prompts can be called back."""
    with suppress(ImportError):
        _edited(words())
    said = ""
    while True:
        try:
            line = input("   ...> " if said else "tailrace> ")
        except EOFError:
            out.print()
            return
        except KeyboardInterrupt:
            out.print()
            said = ""
            continue
        command = "" if said else line.strip().rstrip("; ")
        if command.lower() in ("exit", "quit", "\\q"):
            return
        if command.lower() in ("help", "\\?", "\\h"):
            out.print(_HELP, markup=False)
            continue
        if described := _DESCRIBE.fullmatch(command):
            yield f"DESCRIBE {described[1]}" if described[1] else "SHOW TABLES"
            continue
        found, said = split_statements(said + line + "\n")
        yield from found
        said += "\n" * bool(said)


def _edited(words: Sequence[str]) -> None:
    """Lines with history and completion.

    Raises:
        ImportError: this Python has no readline.
    """
    import atexit
    import readline

    def completed(text: str, state: int) -> str | None:
        found = [w for w in words if w.lower().startswith(text.lower())]
        return found[state] if state < len(found) else None

    readline.set_completer(completed)
    readline.set_completer_delims(" \t\n,;()'\"=<>")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(_KEPT)
    place = history_file()
    with suppress(OSError):
        readline.read_history_file(place)

    def keep() -> None:
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(place)

    atexit.register(keep)


def history_file() -> Path:
    """Where the lines of prompts are kept: `tailrace/sql_history` in the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tailrace" / "sql_history"
