"""The commands for vendor tables: `formats`, `convert`, `inspect`, `apply`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from .exit_codes import FINDINGS
from .output import out, print_json
from .params import DryRun, Files, FormatOptions, Json
from .process import pair
from .screen_formats import Page, applied, grid, remarks, show_bad, show_conversion, show_found

_TASKS = "its tasks read and write change tables"
_FOLDER = "a file, a folder, or a folder of tables."
_FROM = typer.Option("--from", "--format", metavar="FORMAT", help="Format of the tables that are read.")
OnBad = Annotated[
    str, typer.Option("--on-bad", metavar="reject|fail", help="Bad rows: set aside in _rejects, or stop.")
]


def formats(
    name: Annotated[
        str | None, typer.Argument(metavar="FORMAT", help="Describe only this format, with its options.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the formats of change tables, or describe one.

    Examples:
    tailrace formats
    tailrace formats qlik
    """
    from .. import formats as registry
    from ..formats import describe

    if name is None:
        rows = describe.summary()
        print_json(rows) if as_json else out.print(grid(rows))
        return
    form = registry.get(name)
    if as_json:
        print_json(describe.describe(form))
    else:
        out.print(Page(f"# {form.title}\n\n{describe.markdown(form)}"))


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help=f"The tables to read: {_FOLDER}")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="A new folder for the output.")],
    from_: Annotated[str, _FROM],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="Format to write.")],
    option: FormatOptions = None,
    files: Files = "parquet",
    on_bad: OnBad = "reject",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first value that would be lost.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Convert change tables to another format, and count every loss.

    Examples:
    tailrace convert extracts/ out/ --from qlik --to openedge
    tailrace convert oe/ out/ --from openedge --to tailrace --files delta
    """
    import tempfile
    from pathlib import Path

    from ..formats import convert as work
    from .screen_spark import started

    given = _options(option or [], from_, to)
    reading = work.side(from_, source, given[0])
    work.refuse(reading, work.side(to, target, given[1], files), on_bad)  # before a JVM is started
    with tempfile.TemporaryDirectory() as scratch:
        place = str(Path(scratch) / "out") if dry_run else target
        writing = work.side(to, place, given[1], files)
        with started("tailrace convert", _TASKS, "converting", quiet=as_json, reads=[source]) as spark:
            report = work.convert(spark, reading, writing, on_bad=on_bad, strict=strict)
    if dry_run:  # these folders are temporary
        report = replace(report, rejects=None, pending=None)
    print_json(report.as_dict()) if as_json else show_conversion(report, "would be" if dry_run else "")
    if any(t.bad for t in report.tables.values()):
        raise typer.Exit(FINDINGS)


def apply(
    changes: Annotated[
        str, typer.Option("--changes", metavar="FOLDER", help=f"The change tables: {_FOLDER}")
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="FOLDER|URL",
            help="Folder of the target tables, or postgresql://user@host/database.",
        ),
    ],
    format: Annotated[str, _FROM] = "tailrace",
    option: FormatOptions = None,
    on_bad: OnBad = "fail",
    on_late: Annotated[
        str,
        typer.Option(
            "--on-late", metavar="fail|skip", help="Changes older than the target's progress: stop, or skip."
        ),
    ] = "fail",
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Name of the task that targets keep as their progress."),
    ] = "apply",
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="MODE",
            help="strict, upsert (the default without rules), archive, or soft_delete (needs a key).",
        ),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="CONFLICT=POLICY",
            help="CONFLICT: insert_exists, update_missing, delete_missing or data_error. POLICY: apply, "
            "ignore, log, suspend, stop, or 'log then suspend after 100'. May be repeated.",
        ),
    ] = None,
    soft_delete: Annotated[
        str | None,
        typer.Option(
            "--soft-delete",
            metavar="COLUMN",
            help="Mark deleted rows in this column instead of deleting them.",
        ),
    ] = None,
    keylog: Annotated[
        str | None,
        typer.Option(
            "--keylog", metavar="FOLDER", help="The key log: a Delta table with the outcome of each change."
        ),
    ] = None,
    keylog_mode: Annotated[
        str, typer.Option("--keylog-mode", metavar="MODE", help="all, keys (no images), errors or off.")
    ] = "all",
    transactional: Annotated[
        bool, typer.Option("--transactional", help="One commit per transaction, in order.")
    ] = False,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="FOLDER",
            help="Folder of exceptions, suspended tables and rejects. Default: the target's.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume suspended tables.")] = False,
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables",
            metavar="FILE",
            help="YAML with `tables:` as in a task file: row filter and mapping of each table.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Apply change tables to a target, without capture and without a task.

    Updates and deletes of a table without a key need complete before images.
    Name the key, if there is one: --option key=id.

    Examples:
    tailrace apply --changes extracts/ --format qlik --target lake/
    tailrace apply --changes in/ --target lake/ --mode strict --dry-run
    """
    from contextlib import ExitStack

    from ..library import change_tables as library
    from .screen_spark import started

    exists = "://" in target or Path(target).exists()  # a new target has nothing to read
    reads = [changes, target] if exists else [changes]
    with ExitStack() as stack:
        spark = started("tailrace apply", _TASKS, "applying", quiet=as_json, reads=reads)
        done = library.apply(
            changes, target, format=format, options=dict(pair(o) for o in option or []), on_bad=on_bad,
            on_late=on_late, name=name, mode=mode, on=dict(pair(o) for o in on or []), keylog=keylog,
            soft_delete=soft_delete, keylog_mode=keylog_mode, transactional=transactional, control=control,
            resume=resume, tables=tables, dry_run=dry_run, session=lambda: stack.enter_context(spark),
        )  # fmt: skip
    print_json(done) if as_json else out.print(applied(done["tables"]))
    for said in [] if as_json else remarks(done):
        out.print(f"[yellow]{escape(said)}[/]")
    if done["bad"] and not as_json:
        show_bad(done["bad"], done["rejects"])
    if done["bad"] or any(t.get("suspended") for t in done["tables"]):
        raise typer.Exit(FINDINGS)


def inspect(
    path: Annotated[str, typer.Argument(metavar="IN", help=f"The tables to read: {_FOLDER}")],
    from_: Annotated[str | None, _FROM] = None,
    option: FormatOptions = None,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=0, help="Number of changes to show per table.")
    ] = 5,
    check: Annotated[bool, typer.Option("--check", help="Read all rows, and report bad ones.")] = False,
    as_json: Json = False,
) -> None:
    """Show the format of tables, their change masks, and what looks wrong.

    Examples:
    tailrace inspect extracts/
    tailrace inspect extracts/ --check --format openedge
    """
    from ..formats import convert
    from ..formats import inspect as work
    from ..formats.folders import existing_path
    from ..formats.recognition import recognise
    from .screen_spark import started

    given = dict(pair(o) for o in option or [])
    existing_path(path)
    # Refusals come before Spark starts.
    convert.refuse_nothing(convert.side(from_ or recognise(path)[0].name, path, given))
    why = "it reads all rows" if check else "it reads the first rows"
    with started("tailrace inspect", why, "reading", quiet=as_json, reads=[path]) as spark:
        found = work.inspect(
            spark, path, form=from_, given=given, rows=rows, first=None if check else work.PREVIEW
        )
    print_json(found.as_dict()) if as_json else show_found(found)


def _options(given: list[str], source: str, target: str) -> tuple[dict[str, str], dict[str, str]]:
    """Options for the input format and the output format; a name that both have goes to both."""
    from .. import formats as registry

    sides: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for text in given:
        name, value = pair(text)
        side, _, bare = name.rpartition(".")
        if side in ("from", "to"):
            sides[side == "to"][bare] = value
            continue
        has = [name in registry.get(n).options.model_fields for n in (source, target)]
        for at in (0, 1):
            if has[at] or not any(has):  # an option of neither format: the first one reports it
                sides[at][name] = value
    return sides
