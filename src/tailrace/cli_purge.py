"""The command `purge`."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .cli_formats import Json, pair
from .errors import ConfigError

out = Console()


def purge(
    folder: Annotated[str, typer.Argument(help="OpenEdge tables kept in Delta (a task's `openedge`).")],
    table: Annotated[str, typer.Option(help="The source table, e.g. PUB.Item.")],
    consumer: Annotated[
        list[str] | None,
        typer.Option(help="NAME=SEQUENCE: the last _Change-Sequence it has done with. Name every consumer."),
    ] = None,
    from_: Annotated[int, typer.Option("--from", help="First _Change-Sequence that goes.")] = 0,
    to: Annotated[int | None, typer.Option(help="Last one; else the slowest consumer's.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go; delete nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Take consumed changes out of OpenEdge change and tracking tables, as the vendor allows it."""
    from . import purging as work
    from .spark import session

    consumers = dict(_position(text) for text in consumer or [])
    spark = session("tailrace purge")
    done = work.purge(spark, folder, table, consumers, low=from_, high=to, dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps(done))
        return
    would = "would go from" if dry_run else "went from"
    for name, rows in done["deleted"].items():
        out.print(f"{rows:>12,} rows {would} {escape(name)}  (changes {done['low']:,} to {done['high']:,})")


def _position(text: str) -> tuple[str, int]:
    name, value = pair(text)
    if not value.strip().isdigit():
        raise ConfigError(f"consumer {name}: {value!r} is no _Change-Sequence", hint="write NAME=12345")
    return name, int(value)
