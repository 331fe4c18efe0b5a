"""The commands `query ...`: questions to a task's changes, thin over `tailrace.open`."""

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
from .out import err, out, written
from .process import checked, told_once
from .task_file import TaskFile

if TYPE_CHECKING:
    from ..library.task_table import TaskTable
    from ..query.result import Result

app = typer.Typer(
    help="Ask a task's change tables. No JVM. A place is a time (2026-11-22T10:00:00Z, now, or 10m for "
    "ten minutes ago), a change_seq, a stream position (0/291F3590) or a change number.",
    no_args_is_help=True,
)


def _place(text: str) -> object:
    from ..query.positions import PositionRange

    return PositionRange.of(text)


PLACE = checked(_place)
TableName = Annotated[str, typer.Argument(help="schema.table", metavar="TABLE")]
At = Annotated[str, typer.Option("--at", help="All changes up to this place, included.", callback=PLACE)]
Start = Annotated[
    str | None, typer.Option("--from", help="The first place of the range, included.", callback=PLACE)
]
End = Annotated[
    str | None, typer.Option("--to", help="The last place of the range, included.", callback=PLACE)
]
Where = Annotated[
    str | None, typer.Option("--where", help="Only rows for which this SQL holds (needs DuckDB).")
]
Columns = Annotated[str | None, typer.Option("--columns", help="Columns of the answer, separated by commas.")]
Names = Annotated[
    Literal["now", "then"],
    typer.Option(help="Names of renamed columns: those of today, or those at the end of the range."),
]


def _to_a_file(output: str) -> str:
    if output == "parquet" and sys.stdout.isatty():
        raise typer.BadParameter("Parquet is no text for a terminal; redirect it: -o parquet > rows.parquet")
    return output


Output = Annotated[
    Literal["table", "csv", "json", "parquet"],
    typer.Option(
        "--output", "-o", help="json: one object a line; parquet: redirect it to a file.", callback=_to_a_file
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, help="With -o table: at most so many rows.")]


@app.callback()
def watched(context: typer.Context) -> None:
    """What is read is shown on a terminal until it is read."""
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


@app.command("as-of")
def as_of(
    task: TaskFile, table: TableName, at: At, where: Where = None, columns: Columns = None,
    output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """The table's rows as they stood once everything up to a place was done."""
    print_result(_table(task, table).as_of(at), where, columns, output, limit)


@app.command()
def current(
    task: TaskFile, table: TableName, where: Where = None, columns: Columns = None,
    output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """The target's rows, with the stored changes that are not applied to it yet."""
    print_result(_table(task, table).current(), where, columns, output, limit)


@app.command()
def diff(
    task: TaskFile, table: TableName,
    start: Annotated[str, typer.Option("--from", help="The older place.", callback=PLACE)],
    end: Annotated[
        str | None, typer.Option("--to", help="The later place; now by default.", callback=PLACE)
    ] = None,
    where: Where = None, columns: Columns = None, output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """The rows that differ between two places, as insert, delete and update."""
    print_result(_table(task, table).diff(start, end), where, columns, output, limit)


@app.command()
def changes(
    task: TaskFile, table: TableName, start: Start = None, end: End = None, names: Names = "now",
    where: Where = None, columns: Columns = None, output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """The change table's rows in order, masks as names of columns."""
    found = _table(task, table).changes(start, end, columns_changed=True, names=names)
    print_result(found, where, columns, output, limit)


@app.command()
def net(
    task: TaskFile, table: TableName, start: Start = None, end: End = None,
    deduplication_mode: Annotated[
        Literal["none", "dropCarryovers", "netChanges"],
        typer.Option(help="none: every change; dropCarryovers: without updates that change no value."),
    ] = "netChanges",
    compute_updates: Annotated[
        bool, typer.Option(help="Updates as update_preimage and update_postimage, or as delete and insert.")
    ] = True,
    names: Names = "now", where: Where = None, columns: Columns = None, output: Output = "table",
    limit: Limit = 100,
) -> None:  # fmt: skip
    """At most one change for each key over a range."""
    found = _table(task, table).net(
        start, end, deduplicationMode=deduplication_mode, computeUpdates=compute_updates, names=names
    )
    print_result(found, where, columns, output, limit)


@app.command()
def history(
    task: TaskFile, table: TableName, start: Start = None, end: End = None,
    track: Annotated[
        str | None, typer.Option(help="Columns whose change begins a new version, separated by commas.")
    ] = None,
    track_except: Annotated[str | None, typer.Option(help="All columns but these do.")] = None,
    committed: Annotated[
        bool, typer.Option("--committed", help="Without versions that no other transaction could see.")
    ] = False,
    names: Names = "now", where: Where = None, columns: Columns = None, output: Output = "table",
    limit: Limit = 100,
) -> None:  # fmt: skip
    """Every version of every row that changed in the range, with the time it was in force."""
    found = _table(task, table).history(
        start, end,
        track_history_column_list=_names(track),
        track_history_except_column_list=_names(track_except),
        committed=committed, names=names,
    )  # fmt: skip
    print_result(found, where, columns, output, limit)


@app.command()
def pairs(
    task: TaskFile, table: TableName, start: Start = None, end: End = None, names: Names = "now",
    where: Where = None, columns: Columns = None, output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """Each change in one row: before, after, and the columns that it changed."""
    print_result(_table(task, table).pairs(start, end, names=names), where, columns, output, limit)


@app.command()
def chain(
    task: TaskFile, table: TableName,
    key: Annotated[
        list[str],
        typer.Option(
            "--key", "-k", help="NAME=VALUE of a key column, octets as \\xff01; may be repeated."
        ),
    ],
    start: Start = None, end: End = None, names: Names = "now", where: Where = None, columns: Columns = None,
    output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """What happened to the rows that ever had a key, under whatever keys they had."""
    values = told_once(key)
    found = _table(task, table).chain(values, start, end, names=names)
    print_result(found, where, columns, output, limit)


@app.command()
def transactions(
    task: TaskFile,
    tables: Annotated[
        list[str] | None, typer.Argument(help="schema.table or patterns; all tables by default.")
    ] = None,
    start: Start = None, end: End = None, where: Where = None, columns: Columns = None,
    output: Output = "table", limit: Limit = 100,
) -> None:  # fmt: skip
    """Who changed what together, over all tables."""
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
    """Rows in the form that was asked for; what was left out is said on stderr."""
    from . import rows_out

    found = found if where is None else found.where(where)
    found = found if columns is None else found.select(_chosen(columns, found))
    with written():
        rows_out.WRITERS[output](found) if output != "table" else _shown(found, limit)
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
    """The columns that were asked for, and the one that says which of their values are not known."""
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
