"""The command `tailrace`: each command is a few lines around the function it calls."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from .. import __version__
from ..config import logs
from . import consumer, export, formats, keylog, purge_folder, query, run, setup, sql, tables, watch
from .output import err, out
from .plain_help import Command, Group
from .process import UMASK, anywhere, checked, ended, keep_private

app = typer.Typer(
    cls=Group,
    help="""Replicate a database's changes: capture them, store them in change tables, apply them to targets.

    TASK is a task file or its folder; TABLE is schema.table, or a pattern.

    Examples:
    tailrace init postgresql://me@db/shop 'shop.*'
    tailrace run shop.yaml
    tailrace query as-of shop.yaml shop.orders --at 10m
    """,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Runs the command line, and ends with one of `exit_codes`; prints a tailrace error with its hint."""
    arguments = anywhere(sys.argv[1:])
    try:
        keep_private(os.environ.get(UMASK, "077"))
        app(arguments)
    except Exception as error:  # noqa: BLE001 - raised again there, when it is a defect
        ended(error, as_json="--json" in arguments)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"tailrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more to standard error.")] = False,
    umask: Annotated[
        str | None,
        typer.Option(
            "--umask",
            metavar="MODE",
            callback=checked(keep_private),
            help="Who may read the files that are written, targets included: 077 (only the owner, the "
            "default), 027 (the group as well), 022 (all users). Also set by the environment variable "
            "TAILRACE_UMASK.",
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--log-format",
            envvar=logs.FORMAT,
            show_envvar=False,
            help="Format of standard error: text, or one JSON object per line. Also set by the "
            "environment variable TAILRACE_LOG_FORMAT.",
        ),
    ] = "text",
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    logs.begin(log_format, logging.INFO if verbose else logs.EVENT)
    logs.about(command=context.invoked_subcommand or "")
    err.quiet = logs.in_json()  # progress messages
    if not verbose:
        for handler in logging.getLogger().handlers:
            handler.addFilter(not_raised)


def not_raised(record: logging.LogRecord) -> bool:
    """Whether a log record is not about an exception that is raised anyway: py4j logs those with a
    traceback."""
    return Path(record.pathname).parent.name != "py4j"


COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run": (
        setup.init, setup.check, run.run, run.capture, run.pipeline, setup.drop, setup.prepare, setup.schema,
        setup.demo,
    ),
    "Watch": (watch.status, watch.validate),
    "Tables": (
        tables.pause, tables.resume, tables.resync, tables.add, tables.remove, tables.take_over, tables.purge,
    ),
    "Query": (sql.sql,),
    "Vendor tables": (
        formats.formats, formats.inspect, formats.convert, formats.apply, purge_folder.purge_folder,
        export.export_log, export.export_status,
    ),
}  # fmt: skip
"""Panel of the help -> its commands."""
for panel, commands in COMMANDS.items():
    for one in commands:
        app.command(cls=Command, rich_help_panel=panel)(one)
app.add_typer(keylog.app, name="keylog", rich_help_panel="Watch")
app.add_typer(consumer.app, name="consumer", rich_help_panel="Tables")
app.add_typer(query.app, name="query", rich_help_panel="Query")


__all__ = ["app", "main"]
