"""The commands `query ...`: queries to a task's changes, thin over `tailrace.open`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..model.change import PREFIX
from .output import err, out, written
from .params import AnyTables, Limit, OneTable, RequiredKey, TaskFile
from .plain_help import Command, Group
from .process import checked, told_once

if TYPE_CHECKING:
    from ..library.task_table import TaskTable
    from ..query.result import Result

app = typer.Typer(
    cls=Group,
    help="""Query a task's change tables. No JVM.

    A POSITION is a time (2026-11-22T10:00:00Z, now, or 10m for ten minutes
    ago), a change_seq, a stream position (0/291F3590) or a change number.

    Examples:
    tailrace query as-of shop.yaml shop.orders --at 10m
    tailrace query net shop.yaml shop.orders --start 1h -o csv
    """,
    no_args_is_help=True,
)


def _position(text: str) -> object:
    from ..query.positions import PositionRange

    return PositionRange.of(text)


_CHECKED = checked(_position)
At = Annotated[
    str,
    typer.Option(
        "--at", metavar="POSITION", help="Include all changes up to this position.", callback=_CHECKED
    ),
]
_START = typer.Option(
    "--start", metavar="POSITION", help="Start of the range of changes, included.", callback=_CHECKED
)
Start = Annotated[str | None, _START]
RequiredStart = Annotated[str, _START]
End = Annotated[
    str | None,
    typer.Option(
        "--end", metavar="POSITION", help="End of the range of changes, included.", callback=_CHECKED
    ),
]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="SQL", help="Only rows for which this SQL is true (needs DuckDB)."),
]
Columns = Annotated[
    str | None, typer.Option("--columns", metavar="NAMES", help="Columns to show, separated by commas.")
]
Names = Annotated[
    Literal["now", "then"],
    typer.Option("--names", help="Names of renamed columns: those of now, or those at the end of the range."),
]


def _to_a_file(output: str) -> str:
    if output == "parquet" and sys.stdout.isatty():
        raise typer.BadParameter("Parquet is not text for a terminal; redirect it: -o parquet > rows.parquet")
    return output


Output = Annotated[
    Literal["table", "csv", "json", "parquet"],
    typer.Option(
        "--output",
        "-o",
        help="Form of the rows. json: one object per line. parquet: redirect it to a file. csv, json and "
        "parquet give all rows.",
        callback=_to_a_file,
    ),
]


@app.callback()
def watched(context: typer.Context) -> None:
    """Shows at a terminal which files are read."""
    if err.is_terminal:
        context.with_resource(_reading())


@contextmanager
def _reading() -> Iterator[None]:
    from ..query.watch import watching

    status = err.status("")

    def tell(what: str, done: int, many: int) -> None:
        status.update(f"reading {what}: {done} of {many} files")
        (status.start if done < many else status.stop)()

    try:
        with watching(progress=tell):
            yield
    finally:
        status.stop()


def _table(task: Path, name: str) -> TaskTable:
    from ..library.open_task import OpenTask

    return OpenTask(task, connects=False).table(name)


@app.command("as-of", cls=Command)
def as_of(
    task: TaskFile, table: OneTable, at: At, where: Where = None, columns: Columns = None,
    output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """The rows of a table as of a position.

    Examples:
    tailrace query as-of shop.yaml shop.orders --at 10m
    tailrace query as-of shop.yaml shop.orders --at 2026-11-22T10:00:00Z -o csv
    """
    print_result(_table(task, table).as_of(at), where, columns, output, limit)


@app.command(cls=Command)
def current(
    task: TaskFile, table: OneTable, where: Where = None, columns: Columns = None,
    output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """The rows of the target, with the stored changes that are not applied yet.

    Examples:
    tailrace query current shop.yaml shop.orders
    tailrace query current shop.yaml shop.orders --where 'price > 1'
    """
    print_result(_table(task, table).current(), where, columns, output, limit)


@app.command(cls=Command)
def diff(
    task: TaskFile, table: OneTable,
    start: RequiredStart, end: End = None,
    where: Where = None, columns: Columns = None, output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """The rows that differ between two positions, as insert, delete and update.

    Examples:
    tailrace query diff shop.yaml shop.orders --start 1h
    tailrace query diff shop.yaml shop.orders --start 0/291F3590 --end 10m
    """
    print_result(_table(task, table).diff(start, end), where, columns, output, limit)


@app.command(cls=Command)
def changes(
    task: TaskFile, table: OneTable, start: Start = None, end: End = None, names: Names = "now",
    where: Where = None, columns: Columns = None, output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """The rows of the change table in order, with masks as names of columns.

    Examples:
    tailrace query changes shop.yaml shop.orders --start 10m
    """
    found = _table(task, table).changes(start, end, columns_changed=True, names=names)
    print_result(found, where, columns, output, limit)


@app.command(cls=Command)
def net(
    task: TaskFile, table: OneTable, start: Start = None, end: End = None,
    deduplication_mode: Annotated[
        Literal["none", "dropCarryovers", "netChanges"],
        typer.Option(
            "--deduplication-mode",
            metavar="MODE",
            help="netChanges; dropCarryovers: every change of a value; none: every change.",
        ),
    ] = "netChanges",
    no_compute_updates: Annotated[
        bool, typer.Option("--no-compute-updates", help="Show an update as delete and insert.")
    ] = False,
    names: Names = "now", where: Where = None, columns: Columns = None, output: Output = "table",
    limit: Limit = 100,
) -> None:  # fmt: skip
    """At most one change per key over a range.

    Examples:
    tailrace query net shop.yaml shop.orders --start 1h
    tailrace query net shop.yaml shop.orders --start 1h --no-compute-updates
    """
    found = _table(task, table).net(
        start, end, deduplicationMode=deduplication_mode, computeUpdates=not no_compute_updates, names=names
    )
    print_result(found, where, columns, output, limit)


@app.command(cls=Command)
def history(
    task: TaskFile, table: OneTable, start: Start = None, end: End = None,
    track: Annotated[
        str | None,
        typer.Option(
            "--track",
            metavar="NAMES",
            help="Only changes of these columns, separated by commas, start a version.",
        ),
    ] = None,
    track_except: Annotated[
        str | None,
        typer.Option(
            "--track-except",
            metavar="NAMES",
            help="Changes of these columns, separated by commas, start no version.",
        ),
    ] = None,
    committed: Annotated[
        bool, typer.Option("--committed", help="Leave out versions that no other transaction could see.")
    ] = False,
    names: Names = "now", where: Where = None, columns: Columns = None, output: Output = "table",
    limit: Limit = 100,
) -> None:  # fmt: skip
    """Every version of every row that changed in a range, with its time (SCD2).

    Examples:
    tailrace query history shop.yaml shop.orders --start 1d
    tailrace query history shop.yaml shop.orders --track price,state
    """
    found = _table(task, table).history(
        start, end,
        track_history_column_list=_names(track),
        track_history_except_column_list=_names(track_except),
        committed=committed, names=names,
    )  # fmt: skip
    print_result(found, where, columns, output, limit)


@app.command(cls=Command)
def pairs(
    task: TaskFile, table: OneTable, start: Start = None, end: End = None, names: Names = "now",
    where: Where = None, columns: Columns = None, output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """Each change in one row: before, after, and the columns that it changed.

    Examples:
    tailrace query pairs shop.yaml shop.orders --start 10m --columns changed
    """
    print_result(_table(task, table).pairs(start, end, names=names), where, columns, output, limit)


@app.command(cls=Command)
def chain(
    task: TaskFile, table: OneTable,
    key: RequiredKey,
    start: Start = None, end: End = None, names: Names = "now", where: Where = None, columns: Columns = None,
    output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """All changes of the rows that ever had a key, also under other keys.

    Binary values are written as \\xff01.

    Examples:
    tailrace query chain shop.yaml shop.orders --key id=7
    """
    values = told_once(key)
    found = _table(task, table).chain(values, start, end, names=names)
    print_result(found, where, columns, output, limit)


@app.command(cls=Command)
def transactions(
    task: TaskFile, tables: AnyTables = None, start: Start = None, end: End = None, where: Where = None,
    columns: Columns = None, output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """The changes of each transaction, over all tables.

    Examples:
    tailrace query transactions shop.yaml --start 10m
    tailrace query transactions shop.yaml 'shop.*' --start 1h -o json
    """
    from ..library.open_task import OpenTask

    print_result(
        OpenTask(task, connects=False).transactions(start, end, tables or ()), where, columns, output, limit
    )


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [n.strip() for n in text.split(",")]


def print_result(
    found: Result,
    where: str | None = None,
    columns: str | None = None,
    output: str = "table",
    limit: int = 100,
) -> None:
    """Prints rows in the wanted form, and on standard error which rows were left out."""
    from . import row_writers

    found = found if where is None else found.where(where)
    found = found if columns is None else found.select(_chosen(columns, found))
    with written():
        row_writers.WRITERS[output](found) if output != "table" else _shown(found, limit)
    if found.rejects.num_rows:
        for why in sorted(set(found.rejects.columns[-1].to_pylist())):
            err.print(f"some change rows were left out: {why}", markup=False, soft_wrap=True)


_XIDS = ("transaction_id", f"{PREFIX}transaction_id")


def _number(transaction: Any) -> Any:
    """A transaction id, 32 hex digits in change tables, as its database writes it: a number.

    >>> _number("000000000000000000000000000001F5"), _number("other"), _number(None)
    (501, 'other', None)
    """
    is_id = re.fullmatch(r"0{16}[0-9A-F]{16}", str(transaction))
    return int(transaction, 16) if is_id else transaction


def _chosen(columns: str, found: Result) -> list[str]:
    """The wanted columns, and the one that names those of their values that are unknown."""
    from ..query.render import ABSENT

    names = _names(columns) or []
    return [*names, *(n for n in (ABSENT,) if n in found.schema.names and n not in names)]


def _shown(found: Result, limit: int) -> None:
    from ..query.render import format_value, mark_unknown, python_rows
    from .screen_fit import Col, Fit

    rows: list[dict[str, Any]] = []
    for batch in found.batches():
        rows += python_rows(batch.slice(0, limit + 1 - len(rows)))
        if len(rows) > limit:
            break
    shown = Fit([Col(n, fold=True) for n in found.schema.names], empty="no rows")
    for row in islice(rows, limit):
        shown.add(
            *(
                format_value(_number(value) if name in _XIDS else value)
                for name, value in mark_unknown(row).items()
            )
        )
    if limit or not rows:
        out.print(shown)
    if len(rows) > limit:
        out.print(f"the first {limit:,} rows: --limit shows more, -o csv, json and parquet give all")
