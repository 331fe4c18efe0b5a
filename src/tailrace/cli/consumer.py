"""The commands `consumer ...`: registered readers of a task's change tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ..model.patterns import is_pattern
from ..model.positions import ChangeNumber
from .output import err, out, print_json
from .params import AnyTables, Json, TaskFile
from .plain_help import Command, Group
from .process import given

app = typer.Typer(
    cls=Group,
    help="""Registered readers of change tables: what they need is not purged.

    A consumer records how far it has read; older changes may be removed.

    Examples:
    tailrace consumer add shop.yaml warehouse
    tailrace consumer list shop.yaml
    """,
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(help="The name of the consumer.", metavar="CONSUMER")]


@app.command("list", cls=Command)
def list_consumers(task: TaskFile, as_json: Json = False) -> None:
    """List consumers, and the change number up to which each has read.

    Examples:
    tailrace consumer list shop.yaml
    """
    from ..config.task import load
    from ..operate.consumers import consumers_of

    found = [asdict(c) for c in consumers_of(load(task)).all()]
    if as_json:
        print_json(found)
        return
    for one in found:
        reads = ", ".join(
            filter(None, (", ".join(one["tables"] or ()) or "all tables", "LOG" if one["log"] else ""))
        )
        progress = f"{escape(one['name'])}: needs no change up to {one['acknowledged'] or 0:,}"
        out.print(f"{progress}, acknowledged at {one['at']:%Y-%m-%d %H:%M:%S}; reads {escape(reads)}")
    if not found:
        out.print("no consumers")


@app.command("add", cls=Command)
def add_consumer(
    task: TaskFile,
    name: Name,
    tables: AnyTables = None,
    log: Annotated[bool, typer.Option("--log", help="It also reads LOG.")] = False,
    as_json: Json = False,
) -> None:
    """Register a consumer: changes that it has not acknowledged are kept.

    Examples:
    tailrace consumer add shop.yaml warehouse
    tailrace consumer add shop.yaml search 'shop.*' --log
    """
    from ..config.task import load
    from ..operate import table_commands
    from ..operate.consumers import consumers_of, log_removed

    wanted = load(task)
    # Patterns may match future tables; one with a comma is more likely to be two.
    named = [t for t in tables or () if not is_pattern(t) or "," in t]
    table_commands.matching(table_commands.tables_of(wanted), named, wanted.name)
    registered = consumers_of(wanted)
    registered.add(name, tables=tables or None, log=log)
    _warn_removed(name, "changes", registered.promised)
    if log:
        _warn_removed(name, "records of LOG", log_removed(wanted))
    _confirm(f"registered the consumer {name}; changes are kept for it", task, as_json)


def _warn_removed(name: str, what: str, number: ChangeNumber | None) -> None:
    if number:
        text = f"{escape(name)}: {what} up to number {number:,} have been removed, or are about to be"
        err.print(f"[yellow]{text}: it can read those after that[/]", soft_wrap=True)


@app.command("ack", cls=Command)
def acknowledge(
    task: TaskFile,
    name: Name,
    position: Annotated[
        str,
        typer.Argument(
            metavar="POSITION",
            help="The change_seq, stream position or change number up to which it has read.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Record how far a consumer has read.

    Examples:
    tailrace consumer ack shop.yaml warehouse 48211
    tailrace consumer ack shop.yaml warehouse 0/291F3590
    """
    from ..config.task import load
    from ..operate import consumers
    from ..operate.retention import number_at

    wanted = load(task)
    with given():
        number = number_at(wanted, position)
    consumers.acknowledge(wanted, name, number)
    _confirm(f"{name} needs no change up to {number:,} any more", task, as_json)


@app.command("remove", cls=Command)
def remove_consumer(task: TaskFile, name: Name, as_json: Json = False) -> None:
    """Remove a consumer: changes are no longer kept for it.

    Examples:
    tailrace consumer remove shop.yaml warehouse
    """
    from ..config.task import load
    from ..operate.consumers import consumers_of

    consumers_of(load(task)).remove(name)
    _confirm(f"removed the consumer {name}; changes are no longer kept for it", task, as_json)


def _confirm(text: str, task: Path, as_json: bool) -> None:
    """Prints what was done; as JSON, all consumers."""
    if as_json:
        list_consumers(task, as_json=True)
    else:
        out.print(text, markup=False)
