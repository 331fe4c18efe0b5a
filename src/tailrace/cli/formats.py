"""The commands for vendors' tables: `formats`, `convert`, `inspect`, `apply`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from .exit_codes import FINDINGS
from .out import out, print_json
from .process import pair
from .screen_fit import Col, Fit

if TYPE_CHECKING:
    from ..formats.inspect import Found
    from ..formats.report import ConversionReport

_TASKS = "its tasks read and write change tables"
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="NAME=VALUE; with prefix `from.` or `to.` if both formats have it."),
]


def formats(
    name: Annotated[str | None, typer.Argument(help="Describe only this format, completely.")] = None,
    as_json: Json = False,
) -> None:
    """List the change-table formats, or describe one."""
    from .. import formats as registry
    from ..formats import describe

    if name is None:
        rows = describe.summary()
        print_json(rows) if as_json else out.print(_grid(rows))
        return
    form = registry.get(name)
    if as_json:
        print_json(describe.describe(form))
    else:
        from .screen_markdown import Page

        out.print(Page(f"# {form.title}\n\n{describe.markdown(form)}"))


def convert(
    source: Annotated[
        str, typer.Argument(help="The tables to read: a file, a folder, or a folder of tables.")
    ],
    target: Annotated[str, typer.Argument(help="A new folder for the output.")],
    from_: Annotated[str, typer.Option("--from", "--format", help="The format of the input.")],
    to: Annotated[str, typer.Option("--to", help="The format to write.")],
    option: Option = None,
    files: Annotated[str, typer.Option(help="Files to write: parquet, csv, json, delta.")] = "parquet",
    on_bad: Annotated[str, typer.Option(help="Bad rows: reject (set aside in _rejects) or fail.")] = "reject",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first value that would be lost.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check; keep no output.")] = False,
    as_json: Json = False,
) -> None:
    """Convert one vendor's change tables to another's, and count every loss."""
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
    if dry_run:  # what it names is gone
        report = replace(report, rejects=None, pending=None)
    print_json(report.as_dict()) if as_json else _show(report, "would be" if dry_run else "")
    if any(t.bad for t in report.tables.values()):
        raise typer.Exit(FINDINGS)


def apply(
    changes: Annotated[str, typer.Option(help="The change tables: a file, a folder, or a folder of tables.")],
    target: Annotated[
        str, typer.Option(help="The folder of the target tables, or postgresql://user@host:port/database.")
    ],
    format: Annotated[
        str, typer.Option("--format", "--from", help="The format of the change tables.")
    ] = "tailrace",
    option: Option = None,
    on_bad: Annotated[str, typer.Option(help="Bad rows: fail, or reject (set aside in _rejects).")] = "fail",
    on_late: Annotated[
        str, typer.Option(help="Changes that came after their target had passed their place: fail, or skip.")
    ] = "fail",
    name: Annotated[str, typer.Option(help="Name under which the targets keep their progress.")] = "apply",
    mode: Annotated[
        str | None,
        typer.Option(
            help="strict, upsert (the default without rules), archive, or soft_delete (needs a key)."
        ),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            help="CONFLICT=POLICY: insert_exists, update_missing, delete_missing or data_error; apply, "
            "ignore, log, suspend, stop, or 'log then suspend after 100'."
        ),
    ] = None,
    soft_delete: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Mark deleted rows in this column instead of deleting them."),
    ] = None,
    keylog: Annotated[
        str | None, typer.Option(help="The key log: a Delta table with the outcome of each change.")
    ] = None,
    keylog_mode: Annotated[str, typer.Option(help="all, keys (no images), errors or off.")] = "all",
    transactional: Annotated[
        bool, typer.Option("--transactional", help="One commit per transaction, in order.")
    ] = False,
    control: Annotated[
        str | None,
        typer.Option(help="Folder of exceptions, suspended tables and rejects; the target's by default."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume suspended tables.")] = False,
    tables: Annotated[
        Path | None,
        typer.Option(help="YAML with `tables:` as in a task file: row filter and mapping of each table."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what there is to apply; write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Apply change tables, a vendor's or your own, to a target, without capture and without a task. For a
    table without a key (name the key with -o key=...), updates and deletes need complete old images."""
    from contextlib import ExitStack

    from ..library import change_tables as library
    from .screen_applied import applied, remarks
    from .screen_spark import started

    there = "://" in target or Path(target).exists()  # a target that is not there yet has nothing to read
    reads = [changes, target] if there else [changes]
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
        _show_bad(done["bad"], done["rejects"])
    if done["bad"] or any(t.get("suspended") for t in done["tables"]):
        raise typer.Exit(FINDINGS)


def inspect(
    path: Annotated[str, typer.Argument(help="A file, a folder, or a folder of tables.")],
    from_: Annotated[
        str | None, typer.Option("--from", "--format", help="The format, if it cannot be detected.")
    ] = None,
    option: Option = None,
    rows: Annotated[int, typer.Option(min=0, help="Number of changes to show per table.")] = 5,
    check: Annotated[
        bool, typer.Option("--check", help="Read all rows, and report what looks wrong.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show which vendor's table a file is, what its masks mean, and with --check what looks wrong."""
    from ..formats import convert
    from ..formats import inspect as work
    from ..formats.folders import existing_path
    from ..formats.recognition import recognise
    from .screen_spark import started

    given = dict(pair(o) for o in option or [])
    existing_path(path)
    # What is refused is refused before Spark starts.
    convert.refuse_nothing(convert.side(from_ or recognise(path)[0].name, path, given))
    why = "it reads all rows" if check else "it reads the first rows"
    with started("tailrace inspect", why, "reading", quiet=as_json, reads=[path]) as spark:
        found = work.inspect(
            spark, path, form=from_, given=given, rows=rows, first=None if check else work.PREVIEW
        )
    print_json(found.as_dict()) if as_json else _show_found(found)


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


def _show(report: ConversionReport, would: str) -> None:
    rows = []
    for name, table in sorted(report.tables.items()):
        lost = ", ".join(f"{k} {n:,}" for k, n in table.lost.items()) or "nothing"
        rows.append({"table": name, "rows": f"{table.rows:,}", "bad": f"{table.bad:,}", "lost": lost})
    out.print(_grid(rows))
    for name, count in sorted(report.written.items()):
        out.print(f"{count:>12,} rows {would} written to {escape(name)}")
    for note in report.notes:
        out.print(f"[yellow]note[/] {escape(note)}")
    if bad := sum(t.bad for t in report.tables.values()):
        _show_bad(bad, report.rejects)
    if report.pending:
        out.print(f"waiting rows: {escape(report.pending)}")


def _show_bad(many: int, rejects: str | None) -> None:
    """`rejects`: where they are; None: nothing was written."""
    if rejects:
        out.print(f"[red]bad rows[/] with their reasons: {escape(rejects)}")
    else:
        out.print(f"[red]bad rows[/]: {many:,} would be set aside with their reasons")


def _show_found(found: Found) -> None:
    out.print(f"[bold]{found.format}[/] ({found.sure:.0%} sure)")
    several = len(set(found.vendors.values())) > 1
    for name, columns in found.vendor_tables.items():
        whose = f" ({found.vendors.get(name) or 'unknown'})" if several else ""
        out.print(f"  {escape(name)}{whose}: {escape(', '.join(columns))}")
    for name in sorted(found.vendors.keys() - found.vendor_tables.keys()):
        out.print(f"  {escape(name)} ({found.vendors[name] or 'unknown'}): not read as {found.format}")
    for table in found.tables:
        key = ", ".join(table.key) or "none"
        counts = ", ".join(f"{k} {n:,}" for k, n in sorted(table.operations.items()))
        out.print(f"\n[bold]{escape(table.name)}[/]  key: {escape(key)}  changes: {escape(counts) or 'none'}")
        rows = sum(table.operations.values())
        filled = [h if n == rows else f"{h} ({n:,})" for h, n in table.headers.items()]
        out.print(f"  headers with values (rows, unless all): {escape(', '.join(filled))}")
        out.print(f"  columns: {escape(', '.join(f'{c} {t}' for c, t in table.columns.items()))}")
        if table.rows:
            out.print(_grid(table.rows))
        for why, count in table.odd.items():
            out.print(f"  [red]odd[/] {count:,} x {escape(why)}")
    for name, first in found.control_tables.items():
        out.print(f"\n[bold]{escape(name)}[/]  has no changes")
        out.print(_grid(first))
    for note in found.notes:
        out.print(f"[yellow]note[/] {escape(note)}")


def _grid(rows: list[dict[str, Any]]) -> Fit:
    made = Fit([Col(name, fold=True) for name in (rows[0] if rows else ["row"])])
    for row in rows:
        made.add(*(_cell(v) for v in row.values()))
    return made


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
