"""The command `tailrace`: each command is a few lines around the function it calls."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from .. import __version__
from ..config import logs
from ..lake import json_files
from . import check, drop, export, formats, keylog, prepare, purge, query, schema, sql
from . import tables as cli_tables
from .exit_codes import FINDINGS
from .out import err, out, print_json
from .process import UMASK, anywhere, checked, ended, keep_private, seconds_of
from .signals import stop_on_signals, stop_with_parent
from .task_file import TaskFile

if TYPE_CHECKING:
    from ..config.task import Task
    from ..runtime.setup import Draft

app = typer.Typer(
    help="tailrace replicates a database's changes: it captures them, stores them in change tables, "
    "applies them to targets, and records the outcome.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _address(text: str) -> None:
    from ..runtime.metrics.serve import address

    address(text)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics there.", callback=checked(_address)
    ),
]


def main() -> None:
    """Runs the command line; prints a tailrace error with its hint; returns an exit code (see
    `exit_codes`)."""
    words = anywhere(sys.argv[1:])
    try:
        keep_private(os.environ.get(UMASK, "077"))
        app(words)
    except Exception as error:  # noqa: BLE001 - raised again there, when it is a defect
        ended(error, as_json="--json" in words)


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
            callback=checked(keep_private),
            help="Who may read the files that are written, targets included: 077 (only the owner), 027 "
            "(the group as well), 022 (everybody). Also set by the environment variable "
            "TAILRACE_UMASK.",
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(
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


@app.command()
def run(
    task: TaskFile,
    once: Annotated[
        bool, typer.Option("--once", help="Bring the targets up to the source's current position, then stop.")
    ] = False,
    metrics: Metrics = None,
    as_json: Json = False,
) -> None:
    """Run a task: capture, store and apply, until Ctrl-C."""
    from ..config.task import load
    from ..operate.status import status as status_of
    from ..runtime import processes
    from ..runtime.metrics import served
    from . import screen

    stop = threading.Event()
    began = stop_on_signals(stop, starting=True)
    live = screen.live if out.is_terminal and not as_json and not logs.in_json() else None
    with served(load(task), metrics, "capture", "pipeline") as watched:
        processes.run(task, once=once, stop=stop, screen=live, began=began, watched=watched)
    done = status_of(load(task))
    if as_json:
        print_json(done.as_dict())
    else:
        out.print(screen.status(done))


@app.command()
def capture(
    task: TaskFile,
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the current end of the source's log.")
    ] = False,
    parent: Annotated[
        int | None, typer.Option(hidden=True, help="Stop when this process no longer exists.")
    ] = None,
    metrics: Metrics = None,
    as_json: Json = False,
) -> None:
    """Capture a source's changes into LOG (no Spark, no JVM).

    Of mappings it checks names, keys and constants; expressions `tailrace check` looks at."""
    from ..capture.process import Capture
    from ..config.task import load
    from ..query.positions import format_lsn
    from ..runtime.metrics import served

    stop = threading.Event()
    began = stop_on_signals(stop, starting=True, child=parent is not None)
    if parent is not None:
        # The id comes from the parent itself: read here, it could already be too late.
        stop_with_parent(stop, parent)
    wanted = load(task)
    with served(wanted, metrics, "capture"):
        Capture(wanted, once=once, stop=stop, reload=lambda: load(task), began=began).run()
    state = json_files.read(wanted.run_path, "capture") or {}
    if as_json:
        print_json(state)
    elif parent is None:
        upto = f" up to {format_lsn(state['position'])}" if state.get("position") else ""
        out.print(f"captured {state.get('records', 0):,} log records{upto}")


@app.command()
def pipeline(
    task: TaskFile,
    once: Annotated[
        bool, typer.Option("--once", help="Store and apply what is in LOG now, then stop.")
    ] = False,
    metrics: Metrics = None,
    as_json: Json = False,
) -> None:
    """Store and apply: the Spark half alone (for spark-submit: examples/submit.py)."""
    from ..capture.part_requests import reading_for_capture
    from ..config.task import load
    from ..execution import counted, summary
    from ..operate.status import status as status_of
    from ..runtime.metrics import served
    from ..runtime.pipeline import Pipeline
    from ..runtime.session import background_session
    from ..state import live

    stop = threading.Event()
    began = stop_on_signals(stop, starting=True)
    wanted = load(task)
    live.refuse(wanted.run_path, "pipeline")  # before anything is started
    with served(wanted, metrics, "pipeline") as watched:
        spark = background_session(f"tailrace {wanted.name}", wanted.spark, wanted.shared_folders)
        spark.begin()
        work = Pipeline(wanted, spark.as_session, stop=stop)
        watched.counted = work.counted
        began()
        with reading_for_capture(wanted, spark):
            work.drain() if once else work.run()
    if said := summary(counted()):
        logs.event(said)
    done = status_of(wanted).as_dict()
    print_json(done) if as_json else out.print(f"applied up to change {done['applied']:,}")


@app.command()
def init(
    url: Annotated[str, typer.Argument(help="postgresql://user@host:port/database")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write the task file.")
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="Table or pattern (schema.*); may be repeated.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The task's name; default: the database's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a task file for a database, and list what the server still lacks.

    It ends with code 3 when there is an error.
    """
    from ..runtime.setup import draft

    made = draft(url, name=name, patterns=tables or None, output=output, force=force)
    if as_json:
        print_json(made.as_dict())
    else:
        _show_draft(made)
    if any(one.level == "error" for one in made.findings):
        raise typer.Exit(FINDINGS)


def _show_draft(made: Draft) -> None:
    many = len(made.tables)
    out.print(f"wrote {made.path} for {many} {'table' if many == 1 else 'tables'}", soft_wrap=True)
    check.show(made.findings)
    if made.variables:
        each = "the password is" if len(made.variables) == 1 else "the passwords, in their order, are"
        names = ", ".join(made.variables)
        out.print(f"{each} not in it: set {names} in the environment, as in the address", soft_wrap=True)
    errors = any(one.level == "error" for one in made.findings)
    then = (
        f"fix the errors, then: tailrace check {made.path}" if errors else f"next: tailrace run {made.path}"
    )
    out.print(then, soft_wrap=True)


@app.command()
def status(
    task: TaskFile,
    fail_if_behind: Annotated[
        str | None,
        typer.Option(
            metavar="5m",
            help="End with code 3 if a table is further behind, or a process has not run, for longer than "
            "this.",
        ),
    ] = None,
    disk: Annotated[
        bool, typer.Option("--disk", help="Also show what takes disk space, and how it grows.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list what the wildcards of the task file leave out, and why.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what a task is doing, and how far behind it is."""
    from ..config.task import load
    from ..operate.disk import measure
    from ..operate.lateness import late
    from ..operate.status import status as status_of
    from . import screen, screen_cost

    limit = None if fail_if_behind is None else seconds_of(fail_if_behind)
    wanted = load(task, connects=False)
    found, use = status_of(wanted), measure(wanted) if disk else None
    reasons = [] if limit is None else late(found, limit)
    if as_json:
        more = {} if limit is None else {"late": reasons}
        print_json(found.as_dict() | more | ({} if use is None else {"disk": use.as_dict()}))
    else:
        out.print(screen.status(found))
        if use is not None:
            out.print(screen_cost.disk(use))
        for name, why in found.left_out.items() if everything else ():
            out.print(f"left out {escape(name)}: {escape(why)}", soft_wrap=True)
        for reason in reasons:
            out.print(f"[red]late[/] {escape(reason)}", soft_wrap=True)
    if reasons:
        raise typer.Exit(FINDINGS)


@app.command()
def validate(
    task: TaskFile,
    tables: Annotated[
        list[str] | None, typer.Option("--table", "-t", help="Only this table; may be repeated.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until the task reaches the snapshot.")
    ] = 120.0,
    samples: Annotated[int, typer.Option(min=0, help="Differing rows to show per table.")] = 10,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Write the differences to the target as changes; a running task does so itself.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: only show what would be written.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare every table, source against target, at one common position; exit code 3 if they differ.

    With --repair the tables that differ are repaired, and compared again; code 3 when they still differ.
    """
    from ..config.task import load
    from ..runtime.setup import repair_task, session_for, validate_task
    from . import screen
    from .screen_steps import bar

    wanted = load(task)
    session = session_for(wanted)
    if repair or dry_run:
        with bar(err, quiet=as_json) as steps:
            before, done, after = repair_task(
                wanted,
                tables or (),
                dry_run=dry_run,
                samples=samples,
                timeout_s=timeout,
                steps=steps,
                session=session,
            )
        if as_json:
            repairs = {"repaired": [r.as_dict() for r in done], "after": after and after.as_dict()}
            print_json(before.as_dict() | repairs)
        else:
            out.print(screen.repaired(before, done, after))
        unrepaired = [r for r in done if r.refused or (dry_run and r.changes)]
        if unrepaired or (after is not None and not after.equal):
            raise typer.Exit(FINDINGS)
        return
    session.begin()
    with bar(err, quiet=as_json) as steps:
        report = validate_task(
            task, wanted, tables or (), timeout_s=timeout, samples=samples, steps=steps, session=session
        )
    print_json(report.as_dict()) if as_json else out.print(screen.report(report))
    if not report.equal:
        raise typer.Exit(FINDINGS)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Folder for the demo's files.")] = Path("demo-data"),
    seconds: Annotated[float, typer.Option(min=0, help="How long to write, in seconds.")] = 15.0,
    scale: Annotated[int, typer.Option(min=1, help="pgbench scale: 100,000 accounts each.")] = 10,
    as_json: Json = False,
) -> None:
    """Run a demo: an embedded PostgreSQL, real load, and a comparison of source and targets."""
    from ..demo import demo as play

    if not play(folder, seconds=seconds, scale=scale, as_json=as_json):
        raise typer.Exit(FINDINGS)


app.command("export-log")(export.export_log)
app.command("export-status")(export.export_status)
for one in cli_tables.COMMANDS:
    app.command()(one)
app.command()(check.check)
app.command()(drop.drop)
app.command()(schema.schema)
app.command()(prepare.prepare)
app.command()(formats.formats)
app.command()(formats.convert)
app.command()(formats.apply)
app.command()(formats.inspect)
app.command()(purge.purge)
app.add_typer(keylog.app, name="keylog")
app.add_typer(purge.consumer, name="consumer")
app.add_typer(query.app, name="query")
app.command()(sql.sql)


__all__ = ["Task", "app", "main"]
