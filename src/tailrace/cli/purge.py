"""The commands `purge` and `consumer`: remove old changes from tables, and register who still needs them."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from ..model.patterns import is_pattern
from .formats import Json
from .out import err, out, print_json
from .process import given, pair, seconds_of, told_once
from .task_file import TaskFile, names_a_task_file

if TYPE_CHECKING:
    from ..config.task import Task

consumer = typer.Typer(
    help="Registered readers of a task's change tables and their progress: what they still need is not "
    "purged.",
    no_args_is_help=True,
)


def purge(
    place: Annotated[
        str,
        typer.Argument(
            help="A task file; or a folder with OpenEdge tables or Qlik partitions.", metavar="TASK"
        ),
    ],
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            "-t",
            help="Only this table; * and ?; may be repeated. For a folder: its source table.",
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            help="Remove changes committed longer ago than this, e.g. 7d, whatever `retention` says."
        ),
    ] = None,
    upto: Annotated[
        str | None, typer.Option(help="Remove changes up to a change_seq, stream position or change number.")
    ] = None,
    consumer: Annotated[
        list[str] | None,
        typer.Option(
            help="For a folder: NAME=SEQUENCE, the last change that the consumer has read. Name all "
            "consumers."
        ),
    ] = None,
    from_: Annotated[
        int, typer.Option("--from", help="For a folder: the first _Change-Sequence to remove.")
    ] = 0,
    to: Annotated[
        int | None,
        typer.Option(
            help="For a folder: the last _Change-Sequence to remove; default: that of the slowest consumer."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; delete nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove old changes that are no longer needed: by a task's `retention`, or by the options.

    Of a folder of OpenEdge tables: consumed changes of one source table, as the vendor allows it. Of one of
    Qlik's change tables: partitions that are over, whole.
    """
    if not names_a_task_file(place):
        _folder(place, tables or [], consumer or [], (from_, to), (older_than, upto), dry_run, as_json)
        return
    if consumer or from_ or to is not None:
        raise typer.BadParameter(
            "--consumer, --from and --to are for folders; a task's consumers are registered with `tailrace "
            "consumer TASK`, and --upto and --older-than say what to remove"
        )
    age = None if older_than is None else seconds_of(older_than)
    task = _load(place)
    from ..operate import purging, table_commands

    if tables:  # a pattern that matches nothing is an error
        table_commands.matching(table_commands.tables_of(task), tables, task.name)
    with given():
        number = None if upto is None else purging.number_at(task, upto)
    lines = purging.purge_task(task, purging.PurgeOrder(age, number, tuple(tables or ())), dry_run=dry_run)
    if as_json:
        print_json([one.as_dict() for one in lines])
        return
    would = "would go" if dry_run else "went"
    for one in lines:
        said = f"{one.goes.rows:>12,} rows in {one.goes.files} files {would} from {escape(one.table)}"
        if one.goes.rewritten:
            said += f", {one.goes.rewritten} files {'to be' if dry_run else 'were'} rewritten"
        out.print(f"{said}; complete after change number {max(one.goes.kept, 0):,}")
        for need in one.held:
            out.print(f"{'':12} [yellow]held[/] by {escape(need.who)}: after {max(need.after, 0):,}")
    if not lines:
        out.print("nothing to remove: no changes are old enough")


def _folder(
    folder: str,
    tables: list[str],
    consumer: list[str],
    numbers: tuple[int, int | None],
    ages: tuple[str | None, str | None],
    dry_run: bool,
    as_json: bool,
) -> None:
    from ..formats.qlik.partitions import has_partitions

    if has_partitions(folder):
        _partitions(folder, tables, told_once(consumer), ages, dry_run, as_json)
        return
    if any(ages):
        what = "--older-than and --upto are for a task, or for partitions of Qlik's change tables"
        raise typer.BadParameter(f"{what}; use --from and --to")
    if len(tables) != 1:
        what = "no source table is named" if not tables else "only one source table can be named"
        raise typer.BadParameter(f"{what}; name it: --table PUB.Item")
    from ..formats.folders import existing_path
    from ..formats.openedge.purge import purge_folder
    from .screen_spark import started

    consumers = dict(_position(text) for text in consumer)
    existing_path(folder)
    why = "it reads the change tables and deletes their rows"
    with started("tailrace purge", why, "purging", quiet=as_json) as spark:
        done = purge_folder(
            spark, folder, tables[0], consumers, low=numbers[0], high=numbers[1], dry_run=dry_run
        )
    if as_json:
        typer.echo(json.dumps(done))
        return
    would = "would go from" if dry_run else "went from"
    for name, rows in done["deleted"].items():
        out.print(f"{rows:>12,} rows {would} {escape(name)}  (changes {done['low']:,} to {done['high']:,})")


def _partitions(
    folder: str,
    tables: list[str],
    consumers: dict[str, str],
    ages: tuple[str | None, str | None],
    dry_run: bool,
    as_json: bool,
) -> None:
    from ..formats.qlik.partitions import drop_partitions, time_of

    older_than, upto = ages
    if (older_than is None) == (upto is None):
        raise typer.BadParameter("which partitions? give --older-than 30d, or --upto CHANGE_SEQ")
    now = datetime.now(timezone.utc)
    with given():
        before = time_of(upto) if upto is not None else now - timedelta(seconds=seconds_of(older_than or ""))
    done = drop_partitions(folder, before, consumers, tables=tables, dry_run=dry_run)
    if as_json:
        print_json([one.as_dict() for one in done])
        return
    for one in done:
        would = "would go from" if dry_run else "went from"
        said = f"{len(one.partitions):>8,} partitions {would} {escape(one.table)}"
        out.print(said + (f", up to {one.partitions[-1]}" if one.partitions else ""))
        for partition, name in one.held.items():
            out.print(f"{'':8} [yellow]held[/] {partition}: {escape(name)} has not read it to its end")


def _position(text: str) -> tuple[str, int]:
    name, value = pair(text)
    if not value.strip().isdigit():
        raise typer.BadParameter(f"consumer {name}: {value!r} is not a _Change-Sequence; write NAME=12345")
    return name, int(value)


@consumer.callback()
def of_task(ctx: typer.Context, task: TaskFile) -> None:
    """Registered readers of a task's change tables and their progress: what they still need is not purged."""
    ctx.obj = str(task)


Name = Annotated[str, typer.Argument(help="The consumer.")]


@consumer.command("list")
def list_consumers(ctx: typer.Context, as_json: Json = False) -> None:
    """List registered consumers, and the change number up to which each has read."""
    from ..operate.consumers import consumers_of

    found = [asdict(c) for c in consumers_of(_load(ctx.obj)).all()]
    if as_json:
        print_json(found)
        return
    for one in found:
        reads = ", ".join(
            filter(None, (", ".join(one["tables"] or ()) or "all tables", "LOG" if one["log"] else ""))
        )
        said = f"{escape(one['name'])}: needs no change up to {max(one['acknowledged'], 0):,}"
        out.print(f"{said}, acknowledged at {one['at']:%Y-%m-%d %H:%M:%S}; reads {escape(reads)}")
    if not found:
        out.print("no consumers")


@consumer.command("add")
def add_consumer(
    ctx: typer.Context,
    name: Name,
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", "-t", help="It reads only this table; * and ?; may be repeated."),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="It also reads LOG.")] = False,
    as_json: Json = False,
) -> None:
    """Register a consumer: from now on, changes that it has not acknowledged are not removed."""
    from ..operate import table_commands
    from ..operate.consumers import consumers_of
    from ..operate.laggards import log_removed

    task = _load(ctx.obj)
    # Patterns may match future tables; one with a comma is more likely to be two.
    named = [t for t in tables or () if not is_pattern(t) or "," in t]
    table_commands.matching(table_commands.tables_of(task), named, task.name)
    registered = consumers_of(task)
    registered.add(name, tables=tables or None, log=log)
    if (gone := registered.promised) > 0:
        said = f"{escape(name)}: changes up to number {gone:,} have been removed, or are about to be"
        err.print(f"[yellow]{said}: it can read those after that[/]", soft_wrap=True)
    if log and (gone := log_removed(task)) > 0:
        said = f"{escape(name)}: records of LOG up to number {gone:,} have been removed, or are about to be"
        err.print(f"[yellow]{said}: it can read those after that[/]", soft_wrap=True)
    list_consumers(ctx, as_json)


@consumer.command("ack")
def acknowledge(
    ctx: typer.Context,
    name: Name,
    position: Annotated[
        str,
        typer.Argument(help="It needs nothing up to this change_seq, stream position or change number."),
    ],
    as_json: Json = False,
) -> None:
    """Record how far a consumer has read."""
    from ..operate import laggards
    from ..operate.purging import number_at

    task = _load(ctx.obj)
    with given():
        number = number_at(task, position)
    laggards.acknowledge(task, name, number)
    list_consumers(ctx, as_json)


@consumer.command("remove")
def remove_consumer(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Remove a consumer: changes are no longer kept for it."""
    from ..operate.consumers import consumers_of

    consumers_of(_load(ctx.obj)).remove(name)
    list_consumers(ctx, as_json)


def _load(path: str) -> Task:
    from ..config.task import load

    return load(path)
