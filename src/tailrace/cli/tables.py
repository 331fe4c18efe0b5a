"""The commands for single tables of a task: pause, resume, resync, add, remove, take-over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from .out import out, print_json
from .task_file import TaskFile

Tables = Annotated[
    list[str], typer.Argument(help="Tables: schema.table, with * and ? as in file names.", metavar="TABLE...")
]
Why = Annotated[str, typer.Option("--why", help="The reason, shown by `status` and in the log.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what the command would do.")]
ReplaceArchives = Annotated[
    bool,
    typer.Option(
        "--replace-archives", help="Archives (`mode: archive`) may lose the changes that they have kept."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def pause(
    task: TaskFile, tables: Tables, why: Why = "", dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Hold back the changes of tables; other tables are not affected."""
    _order(task, "pause", tables, why, dry_run, as_json)


def resume(
    task: TaskFile, tables: Tables, why: Why = "", dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Apply the waiting changes of paused or suspended tables, and go on."""
    _order(task, "resume", tables, why, dry_run, as_json)


def resync(
    task: TaskFile,
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables, as in pause.", metavar="[TABLE...]")
    ] = None,
    new_stream: Annotated[
        bool,
        typer.Option(
            "--new-stream",
            help="Changes are lost (the slot is gone): start over at the source's current position, with "
            "a new slot and new baselines of all tables.",
        ),
    ] = False,
    replace_archives: ReplaceArchives = False,
    why: Why = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Take a new baseline of tables, which replaces their targets in one commit; ends a suspension."""
    if bool(tables) == new_stream:
        raise typer.BadParameter("name tables, or give --new-stream, which covers all of them")
    _order(
        task,
        "resync",
        tables or [],
        why,
        dry_run,
        as_json,
        new_stream=new_stream,
        replace_archives=replace_archives,
    )


def add(
    task: TaskFile,
    tables: Tables,
    replace_archives: ReplaceArchives = False,
    why: Why = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Capture tables that the task file does not name, or that were removed."""
    _order(task, "add", tables, why, dry_run, as_json, replace_archives=replace_archives)


def remove(
    task: TaskFile,
    tables: Tables,
    drop_target: Annotated[bool, typer.Option("--drop-target", help="Also remove the targets.")] = False,
    why: Why = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Stop capturing tables; their targets stay."""
    _order(task, "remove", tables, why, dry_run, as_json, drop_target=drop_target)


def take_over(task: TaskFile, tables: Tables, as_json: Json = False) -> None:
    """Make Delta targets of another task this task's own: its next baseline replaces their rows."""
    from ..config.task import load
    from ..operate import table_commands

    taken = table_commands.take_over(load(task), tables)
    if as_json:
        print_json({"tables": taken})
        return
    for table in taken:
        out.print(f"took over the target of {escape(table)}; other tasks are refused from now on")


def _order(
    task: Path,
    action: str,
    patterns: list[str],
    why: str,
    dry_run: bool,
    as_json: bool,
    *,
    drop_target: bool = False,
    new_stream: bool = False,
    replace_archives: bool = False,
) -> None:
    from ..config.task import load
    from ..operate.table_commands import give, renew_stream

    if new_stream:
        done = renew_stream(load(task), why=why, dry_run=dry_run, replace_archives=replace_archives)
    else:
        done = give(
            load(task),
            action,
            patterns,
            why=why,
            dry_run=dry_run,
            drop_target=drop_target,
            replace_archives=replace_archives,
        )
    if as_json:
        print_json(done.as_dict())
        return
    for table in done.tables:
        out.print(f"{'would ' if dry_run else ''}{action} {escape(table)}")
        if drop_target:
            gone = "its target has been removed" if table in done.dropped else "its target will be removed"
            out.print(f"  {gone}" if not dry_run else "  its target would be removed")
    for table, reason in done.passed.items():
        out.print(f"skipped {escape(table)}: {escape(reason)}")
    if done.order and not done.running:
        out.print("the task is not running: this takes effect at its next start")


COMMANDS = (pause, resume, resync, add, remove, take_over)
