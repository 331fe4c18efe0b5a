"""The command `keylog`: queries to a key log, and its retention."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from .out import json_of, out, print_json
from .process import given
from .screen_fit import Col, Fit
from .task_file import names_a_task_file

if TYPE_CHECKING:
    from ..operate.ask import Filter

app = typer.Typer(
    help="Query a key log: the outcome of every change. No JVM. KEYLOG is its Delta table, or a task file.",
    no_args_is_help=True,
)
consumer = typer.Typer(
    help="Registered readers of the key log and their progress: what they still need is not pruned."
)
app.add_typer(consumer, name="consumer")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
OneTable = Annotated[str | None, typer.Option("--table", "-t", help="Only this table; * and ? as in files.")]
Since = Annotated[str | None, typer.Option(help="Only rows logged since then: 10m, 2h, 7d, or a time (UTC).")]
Key = Annotated[
    list[str] | None,
    typer.Option(
        "--key", "-k", help="NAME=VALUE of a key column, as written in the key log; may be repeated."
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, help="Show at most this many rows, the newest.")]
Seconds = Annotated[
    float, typer.Option(hidden=True, help="How often --follow checks for new rows, in seconds.")
]


@dataclass(frozen=True)
class _Log:
    """A key log; `promised`: a task writes it, from the first change on that it applies."""

    path: str
    promised: bool = False

    def asked(self, question: Callable[[str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """What it answers: nothing as long as nothing was logged."""
        return question(self.path) if self.there() else []

    def there(self) -> bool:
        """Whether something was logged; ConfigError: there is no key log, and none will be."""
        from ..operate import rows

        return rows.there(self.path, promised=self.promised)


@app.callback()
def keylog(
    ctx: typer.Context,
    keylog: Annotated[
        str, typer.Argument(metavar="KEYLOG", help="The key log's Delta table, or a task file.")
    ],
) -> None:
    """Query a key log: the outcome of every change. No JVM. KEYLOG is its Delta table, or a task file."""
    ctx.obj = _log(keylog)


def _log(text: str) -> _Log:
    """A key log: at a path, or a task's."""
    if not names_a_task_file(text):
        return _Log(text)
    from ..config.task import load

    task = load(text, connects=False)
    return _Log(task.keylog_path, promised=task.keylog.mode != "off")


@app.command()
def tables(ctx: typer.Context, as_json: Json = False) -> None:
    """Show the state of each table: rules, state, runs, changes, flagged rows."""
    from ..operate import ask

    _print(
        ask.overview(ctx.obj.path, promised=ctx.obj.promised), as_json, "this key log has no control tables"
    )


@app.command()
def runs(ctx: typer.Context, table: OneTable = None, limit: Limit = 20, as_json: Json = False) -> None:
    """Show the newest runs: when they ran, how they ended, what they did."""
    from ..operate import ask

    found = _found(ask.runs(ctx.obj.path, limit, table, promised=ctx.obj.promised), ctx, table)
    shown = found if as_json else [_run(r) for r in found]
    _print(shown, as_json, "this key log has no runs")


@app.command()
def flagged(
    ctx: typer.Context, table: OneTable = None, since: Since = None, key: Key = None, limit: Limit = 50,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show changes that did not find the row they expected, or ended in an error."""
    from ..operate import ask

    _rows(ctx, ask.flagged(_where(table, since, key or ())), limit, as_json, "no flagged rows", table, key)


@app.command()
def story(
    ctx: typer.Context,
    key: Annotated[
        list[str],
        typer.Option("--key", "-k", help="NAME=VALUE, as written in the key log; may be repeated."),
    ],
    table: OneTable = None, since: Since = None, limit: Limit = 100, as_json: Json = False,
) -> None:  # fmt: skip
    """Show everything that happened to one key, in order."""
    _rows(ctx, _where(table, since, key), limit, as_json, "no changes of that key", table, key)


@app.command()
def tail(
    ctx: typer.Context, table: OneTable = None, since: Since = None, key: Key = None, limit: Limit = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing rows as they arrive, "
                                                                "until Ctrl-C.")] = False,
    only_flagged: Annotated[bool, typer.Option("--flagged", help="Only flagged rows.")] = False,
    every: Seconds = 1.0, as_json: Json = False,
) -> None:  # fmt: skip
    """Show the newest rows; with --follow, also new rows as they arrive (JSON: one line per row)."""
    from ..operate import ask, rows
    from .signals import stop_on_signals

    which = _where(table, since, key or ())
    which = ask.flagged(which) if only_flagged else which
    if not follow:
        _rows(ctx, which, limit, as_json, "no rows", table, key)
        return
    seen = rows.reached(ctx.obj.path, promised=ctx.obj.promised)
    found = ctx.obj.asked(lambda log: rows.newest(log, limit, which, upto=seen))
    _lines(_found(found, ctx, table, key) if limit else found, as_json)
    stop = threading.Event()
    stop_on_signals(stop)  # Ctrl-C also if the parent process had it ignored
    while not stop.wait(every):
        # Matching rows may be rare: progress is taken from all rows of the key log.
        upto = rows.reached(ctx.obj.path, promised=ctx.obj.promised)
        for some in rows.later(ctx.obj.path, seen, which) if upto > seen else ():
            _lines([r for r in some if r["keylog_sort"] <= upto], as_json)
        seen = upto


@app.command()
def errors(ctx: typer.Context, table: OneTable = None, since: Since = None, as_json: Json = False) -> None:
    """Show errors by table and kind: count, first and last time."""
    from ..operate import ask

    which = _where(table, since)
    found = _found(ctx.obj.asked(lambda log: ask.errors(log, which)), ctx, table)
    _print(found, as_json, "no errors")


@app.command()
def latency(ctx: typer.Context, table: OneTable = None, since: Since = None, as_json: Json = False) -> None:
    """Show milliseconds from the source's commit to the key log, by table.

    This depends on two clocks: the source's for the change, this side's for the log entry. If they differ,
    the figures are shifted; `negative` counts changes that seem to be logged before they were made.
    """
    from ..operate import ask

    which = _where(table, since)
    found = _found(ctx.obj.asked(lambda log: ask.latency(log, which)), ctx, table)
    _print(found, as_json, "no rows with a time")
    if found and not as_json:
        out.print("[dim]milliseconds; measured with two clocks: the source's and the key log writer's[/]")


@app.command()
def prune(
    ctx: typer.Context,
    keep_runs: Annotated[int, typer.Option(min=0, help="Past runs of each table to keep.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; delete nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove the rows of old runs; a run's rows are removed together.

    Running runs stay, and so do the newest run of each table and what a registered consumer needs.
    """
    from ..operate import retention

    ctx.obj.there()
    done = retention.prune(ctx.obj.path, keep_runs, dry_run=dry_run)
    if as_json:
        print_json(done.as_dict())
        return
    would = "would go" if dry_run else "are gone"
    out.print(f"{done.rows:,} rows of {len(done.runs):,} runs {would}")
    for run, name in done.held.items():
        out.print(f"[yellow]kept[/] {run}: the consumer {escape(name)} has not acknowledged it")


@consumer.command("list")
def list_consumers(ctx: typer.Context, as_json: Json = False) -> None:
    """List registered consumers and the `keylog_sort` that each has acknowledged."""
    from ..operate import retention

    found = [vars(c) for c in retention.of_keylog(ctx.obj.path).all()]
    _print([{k: c[k] for k in _CONSUMER} for c in found], as_json, "no consumers")


_CONSUMER = ("name", "acknowledged", "since", "at")
Name = Annotated[str, typer.Argument(help="The consumer.")]


@consumer.command("add")
def add_consumer(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Register a consumer: from now on, rows that it has not acknowledged are not pruned."""
    from ..operate import retention

    retention.add_consumer(ctx.obj.path, name, promised=ctx.obj.promised)
    list_consumers(ctx, as_json)


@consumer.command("ack")
def acknowledge(
    ctx: typer.Context,
    name: Name,
    sort: Annotated[int, typer.Argument(help="The greatest `keylog_sort` that it no longer needs.")],
    as_json: Json = False,
) -> None:
    """Record how far a consumer has read."""
    from ..operate import retention

    retention.acknowledge(ctx.obj.path, name, sort, promised=ctx.obj.promised)
    list_consumers(ctx, as_json)


@consumer.command("remove")
def remove_consumer(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Remove a consumer: rows are no longer kept for it."""
    from ..operate import retention

    retention.of_keylog(ctx.obj.path).remove(name)
    list_consumers(ctx, as_json)


def _where(table: str | None, since: str | None, key: Sequence[str] = ()) -> Filter:
    from ..operate import ask

    with given():
        return ask.where(table, since, key)


def _found(
    found: list[dict[str, Any]], ctx: typer.Context, table: str | None, key: list[str] | None = None
) -> list[dict[str, Any]]:
    """The result; an error if it is empty because the query names a table or column that does not exist."""
    from ..operate import ask_names

    if not found and (table or key) and ctx.obj.there():
        ask_names.check(ctx.obj.path, table, key or ())
    return found


def _rows(
    ctx: typer.Context, which: Filter, limit: int, as_json: bool, nothing: str, table: str | None,
    key: list[str] | None,
) -> None:  # fmt: skip
    from ..operate import rows

    found = ctx.obj.asked(lambda log: rows.newest(log, limit, which))
    if limit:
        _found(found, ctx, table, key)
    if as_json or not found:
        _print(found, as_json, nothing)
        return
    whole = ("logged", "change", "did", "rows")
    shown = Fit([Col(name, fold=name not in whole, right=name == "rows") for name in _SHOWN])
    for row in found:
        shown.add(*_shown(row))
    out.print(shown)


_SHOWN = ("logged", "table", "change", "did", "rows", "key", "error", "image")


def _shown(row: dict[str, Any]) -> list[str]:
    key = row["before_key"] or ""
    if row["after_key"] and row["after_key"] != key:
        key = f"{key} -> {row['after_key']}"
    image = (row["after_image"] or "").partition("<row>")[2].removesuffix("</row>")
    at = row["keylog_ts"].strftime("%Y-%m-%d %H:%M:%S") if row["keylog_ts"] else ""
    count = "" if row["result_row_count"] is None else str(row["result_row_count"])
    words = (at, row["subscription_id"], row["change_row_type"], row["action_taken"], count, key)
    return [w or "" for w in (*words, row["result_error"], image)]


def _run(row: dict[str, Any]) -> dict[str, Any]:
    """A run as shown to people; `--json` has all fields."""
    took = (row["end_ts"] - row["start_ts"]).total_seconds() if row["end_ts"] else None
    did = "/".join(str(row[f"{n}_count"]) for n in ("insert", "update", "delete"))
    return {
        "run": row["run_id"], "table": row["subscription_id"], "state": row["state"], "seconds": took,
        "changes": row["change_count"], "I/U/D": did, "flagged": row["flagged_count"], "error": row["error"],
    }  # fmt: skip


def _lines(found: list[dict[str, Any]], as_json: bool) -> None:
    for row in found:
        if as_json:
            sys.stdout.write(json_of(row) + "\n")
        else:
            out.print("  ".join(w for w in _shown(row) if w), soft_wrap=True, markup=False)
    sys.stdout.flush()


def _print(found: list[dict[str, Any]], as_json: bool, nothing: str) -> None:
    if as_json:
        print_json(found)
    elif not found:
        out.print(nothing)
    else:
        numbers = {name for name, v in found[0].items() if isinstance(v, (int, float))}
        shown = Fit([Col(name, fold=name not in numbers, right=name in numbers) for name in found[0]])
        for row in found:
            shown.add(*(_cell(v) for v in row.values()))
        out.print(shown)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if hasattr(value, "strftime"):
        return str(value.strftime("%Y-%m-%d %H:%M:%S"))
    return "" if value is None else str(value)
