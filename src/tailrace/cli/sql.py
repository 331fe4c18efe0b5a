"""The command `sql`: statements from the command line, a pipe, or a prompt."""

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
from .output import err, out
from .params import Limit, TaskFile
from .query import Output, print_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..library.open_task import OpenTask

_KEPT = 1000
"""Number of earlier lines to keep."""
_DESCRIBE = re.compile(r"\\d\+?(?:\s+(.+))?")
_HELP = r"""End a statement with a semicolon; Ctrl-C drops or cancels it.
\d, SHOW TABLES;             the tables: targets, change tables, tracking, keylog
\d NAME, DESCRIBE NAME;      a table's columns
SHOW FUNCTIONS;              the queries, as FROM net('schema.table', start => '2026-11-22')
exit, \q, Ctrl-D             end"""


def sql(
    task: TaskFile,
    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL",
            help="Statements of DuckDB's SQL, separated by semicolons. Default: standard input; at a "
            "terminal, a prompt.",
        ),
    ] = None,
    output: Output = "table",
    limit: Limit = 100,
    spark: Annotated[
        bool, typer.Option("--spark", help="Run Spark's SQL in a Spark session, for data larger than memory.")
    ] = False,
) -> None:
    """Query a task's tables in SQL (needs DuckDB: pip install 'tailrace\\[query]').

    schema.table is a target, schema.table__ct its change table. tracking and
    keylog are tables, too. The queries of `tailrace query` are functions:
    FROM net('schema.table', start => '2026-11-22'). SHOW TABLES lists the
    tables, SHOW FUNCTIONS the functions.

    Examples:
    tailrace sql shop.yaml
    tailrace sql shop.yaml "select * from shop.orders limit 5" -o csv
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
            out.print("help lists the commands; exit, or Ctrl-D, ends the prompt")
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
    """A Spark session, if one is wanted."""
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
        ConfigError: the text has no statement.
    """
    found, last = split_statements(text)
    if not found and not last:
        raise ConfigError("there is no statement", hint="tailrace sql TASK 'SELECT ...'")
    return [*found, last] if last else found


def _typed(words: Callable[[], Sequence[str]]) -> Iterator[str]:
    """Typed statements, up to each semicolon, until `exit` or Ctrl-D; Ctrl-C drops the current one. Tab
    completes names, and earlier lines can be recalled."""
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
    """The file of earlier lines: `tailrace/sql_history` in the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tailrace" / "sql_history"
