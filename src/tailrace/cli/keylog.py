"""The commands `keylog ...`: queries to a key log, and its retention."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..model.positions import order_key
from .output import json_of, out, print_json
from .params import AnyTables, DryRun, Json, Key, Limit, RequiredKey, names_a_task_file
from .plain_help import Command, Group
from .process import given
from .screen_fit import Col, Fit

if TYPE_CHECKING:
    from ..operate.keylog_queries import Filter

app = typer.Typer(
    cls=Group,
    help="""Query a key log: the outcome of every change. No JVM.

    TASK is a task file, or the path of a key log's Delta table.

    Examples:
    tailrace keylog flagged shop.yaml
    tailrace keylog story shop.yaml shop.orders --key id=7
    """,
    no_args_is_help=True,
)
consumer = typer.Typer(
    cls=Group,
    help="""Registered readers of a key log: what they need is not pruned.

    Examples:
    tailrace keylog consumer add shop.yaml audit
    tailrace keylog consumer list shop.yaml
    """,
    no_args_is_help=True,
)
app.add_typer(consumer, name="consumer")
_EVERY_S = 1.0
"""Interval at which `tail --follow` checks for new rows."""


@dataclass(frozen=True)
class _Log:
    """A key log; `promised`: a task writes it, from the first change that it applies."""

    path: str
    promised: bool = False

    def ask(self, question: Callable[[str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The rows that a question gives; none as long as nothing was logged."""
        return question(self.path) if self.exists() else []

    def exists(self) -> bool:
        """Whether something was logged; ConfigError if there is no key log, and none will be."""
        from ..operate import keylog_rows

        return keylog_rows.has_keylog(self.path, promised=self.promised)


def _log(text: str) -> _Log:
    """The key log at a path, or that of a task."""
    if not names_a_task_file(text):
        return _Log(text)
    from ..config.task import load

    task = load(text, connects=False)
    return _Log(task.keylog_path, promised=task.keylog.mode != "off")


LogOfTask = Annotated[
    _Log,
    typer.Argument(
        metavar="TASK", help="The task file, or the path of a key log's Delta table.", parser=_log
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Only rows logged since then: 10m, 2h, 7d ago, or a time (UTC)."
    ),
]


Follow = Annotated[
    bool,
    typer.Option(
        "--follow", "-f", help="Print new rows as they arrive, until Ctrl-C; with --json, one line per row."
    ),
]


@app.command(cls=Command)
def tables(log: LogOfTask, as_json: Json = False) -> None:
    """Show the state of each table: rules, state, runs, changes, flagged rows.

    Examples:
    tailrace keylog tables shop.yaml
    """
    from ..operate import keylog_queries

    _print(
        keylog_queries.overview(log.path, promised=log.promised),
        as_json,
        "this key log has no control tables",
    )


@app.command(cls=Command)
def runs(log: LogOfTask, tables: AnyTables = None, limit: Limit = 20, as_json: Json = False) -> None:
    """Show the newest runs: when they ran, how they ended, what they did.

    Examples:
    tailrace keylog runs shop.yaml
    tailrace keylog runs shop.yaml shop.orders --limit 100
    """
    from ..operate import keylog_queries

    found = keylog_queries.runs(log.path, limit, tables or (), promised=log.promised)
    _check_names(log, found, tables)
    _print(found if as_json else [_run(r) for r in found], as_json, "this key log has no runs")


@app.command(cls=Command)
def flagged(
    log: LogOfTask, tables: AnyTables = None, since: Since = None, key: Key = None, limit: Limit = 50,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show changes that did not find the row they expect, or ended in an error.

    Examples:
    tailrace keylog flagged shop.yaml
    tailrace keylog flagged shop.yaml 'shop.*' --since 2h
    """
    from ..operate import keylog_queries

    _rows(
        log,
        keylog_queries.flagged(_where(tables, since, key)),
        limit,
        as_json,
        "no flagged rows",
        tables,
        key,
    )


@app.command(cls=Command)
def story(
    log: LogOfTask, key: RequiredKey, tables: AnyTables = None, since: Since = None, limit: Limit = 100,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show all changes of one key, in order.

    Values are written as in the key log; binary values also as PostgreSQL
    writes them.

    Examples:
    tailrace keylog story shop.yaml --key id=7
    tailrace keylog story shop.yaml shop.line -k order=7 -k pos=1
    """
    _rows(log, _where(tables, since, key), limit, as_json, "no changes of that key", tables, key)


@app.command(cls=Command)
def tail(
    log: LogOfTask, tables: AnyTables = None, since: Since = None, key: Key = None, limit: Limit = 20,
    follow: Follow = False,
    only_flagged: Annotated[bool, typer.Option("--flagged", help="Only flagged rows.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show the newest rows.

    Examples:
    tailrace keylog tail shop.yaml
    tailrace keylog tail shop.yaml shop.orders --flagged --follow
    """
    from ..operate import keylog_queries

    which = _where(tables, since, key)
    which = keylog_queries.flagged(which) if only_flagged else which
    if follow:
        _follow(log, which, limit, as_json, tables, key)
    else:
        _rows(log, which, limit, as_json, "no rows", tables, key)


def _follow(
    log: _Log, which: Filter, limit: int, as_json: bool, tables: list[str] | None, key: list[str] | None
) -> None:
    """Prints the newest rows, then new ones as they arrive, until Ctrl-C."""
    from ..operate import keylog_rows
    from .signals import stop_on_signals

    seen = keylog_rows.greatest_sort(log.path, promised=log.promised)
    found = log.ask(lambda path: keylog_rows.newest(path, limit, which, upto=seen))
    if limit:
        _check_names(log, found, tables, key)
    _lines(found, as_json)
    stop = threading.Event()
    stop_on_signals(stop)  # Ctrl-C also if the parent process had it ignored
    while not stop.wait(_EVERY_S):
        # Matching rows may be rare: progress is taken from all rows of the key log.
        end = keylog_rows.greatest_sort(log.path, promised=log.promised)
        for some in keylog_rows.later(log.path, seen, which) if order_key(end) > order_key(seen) else ():
            _lines([r for r in some if r["keylog_sort"] <= order_key(end)], as_json)
        seen = end


@app.command(cls=Command)
def errors(log: LogOfTask, tables: AnyTables = None, since: Since = None, as_json: Json = False) -> None:
    """Show errors by table and kind: count, first and last time.

    Examples:
    tailrace keylog errors shop.yaml
    tailrace keylog errors shop.yaml shop.orders --since 7d
    """
    from ..operate import keylog_queries

    which = _where(tables, since)
    found = log.ask(lambda path: keylog_queries.errors(path, which))
    _check_names(log, found, tables)
    _print(found, as_json, "no errors")


@app.command(cls=Command)
def latency(log: LogOfTask, tables: AnyTables = None, since: Since = None, as_json: Json = False) -> None:
    """Show milliseconds from the source's commit to the key log, by table.

    Two clocks measure this: the source's for the change, this side's for the
    log entry. If they differ, the figures are shifted; `negative` counts
    changes that seem to be logged before they were made.

    Examples:
    tailrace keylog latency shop.yaml
    tailrace keylog latency shop.yaml --since 1h
    """
    from ..operate import keylog_queries

    which = _where(tables, since)
    found = log.ask(lambda path: keylog_queries.latency(path, which))
    _check_names(log, found, tables)
    _print(found, as_json, "no rows with a time")
    if found and not as_json:
        out.print("[dim]milliseconds; measured with two clocks: the source's and the key log writer's[/]")


@app.command(cls=Command)
def prune(
    log: LogOfTask,
    keep_runs: Annotated[
        int, typer.Option("--keep-runs", metavar="N", min=0, help="Number of past runs per table to keep.")
    ],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove the rows of old runs; a run's rows are removed together.

    Running runs stay, and so do the newest run of each table and what a
    registered consumer needs.

    Examples:
    tailrace keylog prune shop.yaml --keep-runs 100 --dry-run
    """
    from ..operate import keylog_retention

    log.exists()
    done = keylog_retention.prune(log.path, keep_runs, dry_run=dry_run)
    if as_json:
        print_json(done.as_dict())
        return
    removed = "would be removed" if dry_run else "removed"
    out.print(f"{done.rows:,} rows of {len(done.runs):,} runs {removed}")
    for run, name in done.held.items():
        out.print(f"[yellow]kept[/] {run}: the consumer {escape(name)} has not acknowledged it")


_CONSUMER = ("name", "acknowledged", "since", "at")
Name = Annotated[str, typer.Argument(help="The name of the consumer.", metavar="CONSUMER")]


@consumer.command("list", cls=Command)
def list_consumers(log: LogOfTask, as_json: Json = False) -> None:
    """List consumers, and the `keylog_sort` that each has acknowledged.

    Examples:
    tailrace keylog consumer list shop.yaml
    """
    from ..operate import keylog_retention

    found = [vars(c) for c in keylog_retention.of_keylog(log.path).all()]
    _print([{k: c[k] for k in _CONSUMER} for c in found], as_json, "no consumers")


@consumer.command("add", cls=Command)
def add_consumer(log: LogOfTask, name: Name, as_json: Json = False) -> None:
    """Register a consumer: rows that it has not acknowledged are kept.

    Examples:
    tailrace keylog consumer add shop.yaml audit
    """
    from ..operate import keylog_retention

    keylog_retention.add_consumer(log.path, name, promised=log.promised)
    _confirm(f"registered the consumer {name}; rows are kept for it", log, as_json)


@consumer.command("ack", cls=Command)
def acknowledge(
    log: LogOfTask,
    name: Name,
    sort: Annotated[
        int, typer.Argument(metavar="SORT", help="The greatest `keylog_sort` that it no longer needs.")
    ],
    as_json: Json = False,
) -> None:
    """Record how far a consumer has read.

    Examples:
    tailrace keylog consumer ack shop.yaml audit 48211
    """
    from ..operate import keylog_retention

    keylog_retention.acknowledge(log.path, name, sort, promised=log.promised)
    _confirm(f"{name} needs no row up to {sort:,} any more", log, as_json)


@consumer.command("remove", cls=Command)
def remove_consumer(log: LogOfTask, name: Name, as_json: Json = False) -> None:
    """Remove a consumer: rows are no longer kept for it.

    Examples:
    tailrace keylog consumer remove shop.yaml audit
    """
    from ..operate import keylog_retention

    keylog_retention.of_keylog(log.path).remove(name)
    _confirm(f"removed the consumer {name}; rows are no longer kept for it", log, as_json)


def _confirm(text: str, log: _Log, as_json: bool) -> None:
    """Prints what was done; as JSON, all consumers."""
    if as_json:
        list_consumers(log, as_json=True)
    else:
        out.print(text, markup=False)


def _where(tables: list[str] | None, since: str | None, key: Sequence[str] | None = None) -> Filter:
    from ..operate import keylog_queries

    with given():
        return keylog_queries.where(tables or (), since, key or ())


def _check_names(
    log: _Log, found: list[dict[str, Any]], tables: list[str] | None, key: list[str] | None = None
) -> None:
    """Raises an error if nothing was found because of a table or column that does not exist."""
    from ..operate import keylog_queries

    if not found and (tables or key) and log.exists():
        keylog_queries.check_names(log.path, tables or (), key or ())


def _rows(
    log: _Log, which: Filter, limit: int, as_json: bool, nothing: str, tables: list[str] | None,
    key: list[str] | None,
) -> None:  # fmt: skip
    from ..operate import keylog_rows

    found = log.ask(lambda path: keylog_rows.newest(path, limit, which))
    if limit:
        _check_names(log, found, tables, key)
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
