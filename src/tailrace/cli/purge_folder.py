"""The command `purge-folder`: removes old changes from the change tables of OpenEdge or Qlik."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Annotated

import typer
from rich.markup import escape

from .output import out, print_json
from .params import AnyTables, DryRun, Json, OlderThan
from .process import given, pair, seconds_of, told_once


def purge_folder(
    folder: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="The folder of OpenEdge's tables, or of Qlik's partitions."),
    ],
    tables: AnyTables = None,
    consumer: Annotated[
        list[str] | None,
        typer.Option(
            "--consumer",
            metavar="NAME=POSITION",
            help="The last change that a consumer has read. Name all consumers.",
        ),
    ] = None,
    start: Annotated[
        int, typer.Option("--start", metavar="NUMBER", help="OpenEdge: the first _Change-Sequence to remove.")
    ] = 0,
    end: Annotated[
        str | None,
        typer.Option(
            "--end",
            metavar="POSITION",
            help="The last change to remove: a _Change-Sequence (OpenEdge; default: that of the slowest "
            "consumer), or a change_seq (Qlik).",
        ),
    ] = None,
    older_than: OlderThan = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove old changes from a folder of OpenEdge's or Qlik's change tables.

    OpenEdge: changes of one source table that all consumers have read.
    Qlik: whole partitions that have ended.

    Examples:
    tailrace purge-folder oe/ PUB.Item --consumer lake=1200 --dry-run
    tailrace purge-folder qlik/ --older-than 30d
    """
    from ..formats.qlik.partitions import has_partitions

    if has_partitions(folder):
        if start:
            raise typer.BadParameter("--start is for OpenEdge's tables; use --end or --older-than")
        consumers = told_once(consumer or [])
        _purge_partitions(folder, tables or [], consumers, end, older_than, dry_run, as_json)
        return
    if older_than:
        raise typer.BadParameter("--older-than is for Qlik's partitions; use --start and --end")
    if len(tables or []) != 1:
        what = "only one source table can be named" if tables else "no source table is named"
        raise typer.BadParameter(f"{what}; write: tailrace purge-folder FOLDER PUB.Item")
    high = None if end is None else _sequence("--end", end)
    _purge_openedge(folder, (tables or [])[0], consumer or [], (start, high), dry_run, as_json)


def _purge_openedge(
    folder: str,
    table: str,
    consumer: list[str],
    numbers: tuple[int, int | None],
    dry_run: bool,
    as_json: bool,
) -> None:
    from ..formats.folders import existing_path
    from ..formats.openedge.purge import purge_folder as purge
    from .screen_spark import started

    consumers = {name: _sequence(f"consumer {name}", value) for name, value in map(pair, consumer)}
    existing_path(folder)
    low, high = numbers
    why = "it reads the change tables and deletes their rows"
    with started("tailrace purge-folder", why, "purging", quiet=as_json) as spark:
        done = purge(spark, folder, table, consumers, low=low, high=high, dry_run=dry_run)
    if as_json:
        print_json(done)
        return
    removed = "would be removed" if dry_run else "removed"
    for name, rows in done["deleted"].items():
        text = f"{rows:>12,} rows {removed} from {escape(name)}"
        out.print(f"{text} (changes {done['low']:,} to {done['high']:,})")


def _purge_partitions(
    folder: str,
    tables: list[str],
    consumers: dict[str, str],
    end: str | None,
    older_than: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    from ..formats.qlik.partitions import drop_partitions, time_of

    if (older_than is None) == (end is None):
        raise typer.BadParameter("which partitions? give --older-than 30d, or --end CHANGE_SEQ")
    now = datetime.now(timezone.utc)
    with given():
        before = time_of(end) if end is not None else now - timedelta(seconds=seconds_of(older_than or ""))
    done = drop_partitions(folder, before, consumers, tables=tables, dry_run=dry_run)
    if as_json:
        print_json([one.as_dict() for one in done])
        return
    removed = "would be removed" if dry_run else "removed"
    for one in done:
        text = f"{len(one.partitions):>8,} partitions {removed} from {escape(one.table)}"
        out.print(text + (f", up to {one.partitions[-1]}" if one.partitions else ""))
        for partition, name in one.held.items():
            out.print(f"{'':8} [yellow]kept[/] {partition}: {escape(name)} has not read it to its end")


def _sequence(what: str, text: str) -> int:
    """The number of a change in OpenEdge's tables."""
    if not text.strip().isdigit():
        raise typer.BadParameter(f"{what}: {text!r} is not a _Change-Sequence; write a number, as 12345")
    return int(text)
