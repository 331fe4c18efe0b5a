"""The commands for single tables of a task: pause, resume, resync, add, remove, take-over, purge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from .output import out, print_json
from .params import AnyTables, DryRun, Json, OlderThan, ReplaceArchives, Tables, TaskFile, Why
from .process import given, seconds_of

if TYPE_CHECKING:
    from ..operate.retention import Line
    from ..operate.table_commands import CommandResult

_WOULD = {
    "pause": "would pause {}",
    "resume": "would resume {}",
    "resync": "would take a new baseline of {}",
    "add": "would add {}",
    "remove": "would remove {}",
}
_DONE = {
    "pause": "paused {}; changes are kept",
    "resume": "resumed {}; the waiting changes are applied",
    "resync": "resync of {}: a new baseline replaces its target",
    "add": "added {}; a baseline copies its rows first",
    "remove": "removed {}; no more changes are captured",
}
"""Command -> the confirmation for a table, with and without --dry-run."""


def pause(
    task: TaskFile, tables: Tables, why: Why = "", dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Stop applying changes of tables; the changes are kept.

    Other tables are not affected. `resume` applies what was kept.

    Examples:
    tailrace pause shop.yaml shop.orders
    tailrace pause shop.yaml 'shop.*' --why 'night load'
    """
    _command(task, "pause", tables, why, dry_run, as_json)


def resume(
    task: TaskFile, tables: Tables, why: Why = "", dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Apply the kept changes of paused or suspended tables, and continue.

    Examples:
    tailrace resume shop.yaml shop.orders
    tailrace resume shop.yaml 'shop.*' --dry-run
    """
    _command(task, "resume", tables, why, dry_run, as_json)


def resync(
    task: TaskFile,
    tables: AnyTables = None,
    new_stream: Annotated[
        bool,
        typer.Option(
            "--new-stream",
            help="The slot is gone, and changes with it: start again at the source's current position, "
            "with a new slot and new baselines of all tables.",
        ),
    ] = False,
    replace_archives: ReplaceArchives = False,
    why: Why = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Take a new baseline of tables; it replaces each target in one commit.

    This also ends a suspension. Name the tables, or give --new-stream for all
    of them.

    Examples:
    tailrace resync shop.yaml shop.orders
    tailrace resync shop.yaml --new-stream
    """
    if bool(tables) == new_stream:
        raise typer.BadParameter("name tables, or give --new-stream, which covers all of them")
    from ..config.task import load
    from ..operate.table_commands import renew_stream

    if new_stream:
        done = renew_stream(load(task), why=why, dry_run=dry_run, replace_archives=replace_archives)
        _confirm(done, as_json)
    else:
        _command(task, "resync", tables or [], why, dry_run, as_json, replace_archives=replace_archives)


def add(
    task: TaskFile,
    tables: Tables,
    replace_archives: ReplaceArchives = False,
    why: Why = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Capture tables that the task file does not name, or that were removed.

    Examples:
    tailrace add shop.yaml crm.client
    tailrace add shop.yaml 'crm.*' --dry-run
    """
    _command(task, "add", tables, why, dry_run, as_json, replace_archives=replace_archives)


def remove(
    task: TaskFile,
    tables: Tables,
    drop_target: Annotated[bool, typer.Option("--drop-target", help="Also remove the targets.")] = False,
    why: Why = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Stop capturing tables; their targets stay.

    Examples:
    tailrace remove shop.yaml shop.log
    tailrace remove shop.yaml shop.log --drop-target
    """
    _command(task, "remove", tables, why, dry_run, as_json, drop_target=drop_target)


def take_over(task: TaskFile, tables: Tables, as_json: Json = False) -> None:
    """Make Delta targets of another task this task's own.

    Its next baseline replaces their rows. The other task is refused from now on.

    Examples:
    tailrace take-over shop.yaml shop.orders
    tailrace take-over shop.yaml 'shop.*'
    """
    from ..config.task import load
    from ..operate import table_commands

    taken = table_commands.take_over(load(task), tables)
    if as_json:
        print_json({"tables": taken})
        return
    for table in taken:
        out.print(f"took over the target of {escape(table)}; other tasks are refused from now on")


def _command(
    task: Path,
    action: str,
    patterns: list[str],
    why: str,
    dry_run: bool,
    as_json: bool,
    *,
    drop_target: bool = False,
    replace_archives: bool = False,
) -> None:
    from ..config.task import load
    from ..operate.table_commands import give

    done = give(
        load(task),
        action,
        patterns,
        why=why,
        dry_run=dry_run,
        drop_target=drop_target,
        replace_archives=replace_archives,
    )
    _confirm(done, as_json, drop_target=drop_target)


def _confirm(done: CommandResult, as_json: bool, *, drop_target: bool = False) -> None:
    """Prints what a command did."""
    if as_json:
        print_json(done.as_dict())
        return
    for table in done.tables:
        out.print((_WOULD if done.dry_run else _DONE)[done.action].format(escape(table)))
        if drop_target:
            now = "has been removed" if table in done.dropped else "will be removed"
            out.print(f"  its target {'would be removed' if done.dry_run else now}")
    for table, reason in done.passed.items():
        out.print(f"skipped {escape(table)}: {escape(reason)}")
    if done.order and not done.running:
        out.print("the task is not running: this takes effect at its next start")


def purge(
    task: TaskFile,
    tables: AnyTables = None,
    older_than: OlderThan = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--end",
            metavar="POSITION",
            help="Remove changes up to this change_seq, stream position or change number, included.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove old changes from change tables, by `retention` or by the options.

    What a target, a baseline or a consumer still needs is kept.

    Examples:
    tailrace purge shop.yaml
    tailrace purge shop.yaml 'shop.*' --older-than 7d --dry-run
    """
    from ..config.task import load
    from ..operate import retention, table_commands

    age = None if older_than is None else seconds_of(older_than)
    wanted = load(task)
    if tables:  # a pattern that matches nothing is an error
        table_commands.matching(table_commands.tables_of(wanted), tables, wanted.name)
    with given():
        number = None if end is None else retention.number_at(wanted, end)
    found = retention.purge_task(
        wanted, retention.PurgeOrder(age, number, tuple(tables or ())), dry_run=dry_run
    )
    if as_json:
        print_json([one.as_dict() for one in found])
        return
    for one in found:
        _show_purged(one, dry_run=dry_run)
    if not found:
        out.print("nothing to remove: no changes are old enough")


def _show_purged(one: Line, *, dry_run: bool) -> None:
    removed = "would be removed" if dry_run else "removed"
    text = f"{one.goes.rows:>12,} rows in {one.goes.files} files {removed} from {escape(one.table)}"
    if one.goes.rewritten:
        text += f", {one.goes.rewritten} files {'to be rewritten' if dry_run else 'rewritten'}"
    out.print(f"{text}; complete after change number {max(one.goes.kept, 0):,}")
    for need in one.held:
        out.print(f"{'':12} [yellow]kept[/] after {need.after or 0:,} for {escape(need.who)}")
