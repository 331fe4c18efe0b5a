"""The commands that write a task's data in another vendor's tables: `export-log`, `export-status`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from .out import err, out, print_json
from .task_file import TaskFile

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def export_log(
    task: TaskFile,
    target: Annotated[str, typer.Argument(help="A new folder for SYS_LOG, SYS_TABLES and SYS_COLUMNS.")],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="NAME=VALUE of the format soliddb; may be repeated."),
    ] = None,
    files: Annotated[str, typer.Option(help="Files to write: parquet, csv, json, delta.")] = "parquet",
    local_limit: Annotated[
        str, typer.Option(help="Up to this size of LOG, no Spark is started; 0: always.")
    ] = "256MiB",
    as_json: Json = False,
) -> None:
    """Write a task's LOG as solidDB's SYS_LOG."""
    from ..config.task import load
    from ..operate.sys_log import export_sys_log, needs_spark, refuse
    from .process import bytes_of, pair
    from .screen_spark import started
    from .screen_steps import bar

    wanted, given = load(task, connects=False), dict(pair(o) for o in option or [])
    refuse(wanted.log_path, target, files, given)
    paths = (wanted.log_path, wanted.relations_path, target)
    doing = "writing SYS_LOG"
    if (why := needs_spark(wanted.log_path, files, given, bytes_of(local_limit))) is None:
        with bar(err, quiet=as_json) as steps:
            steps.now(doing)
            done = export_sys_log(*paths, kind=files, options=given)
    else:
        with started(
            "tailrace export-log", why, doing, quiet=as_json, conf=wanted.spark.session_conf
        ) as spark:
            done = export_sys_log(*paths, spark=spark, kind=files, options=given)
    if as_json:
        print_json(vars(done))
        return
    for name, rows in done.rows.items():
        out.print(f"{rows:>12,} rows written to {escape(name)}")
    if done.absent_columns:
        out.print(f"{done.absent_columns:>12,} images lacked columns, which are NULL in SYS_LOG")
    for what, empty in (("bytes", done.empty_binary), ("text", done.empty_text)):
        if empty:
            out.print(f"{empty:>12,} images have empty {what}, which are NULL in row layout A")
    if done.kept_after:
        out.print(f"LOG no longer has records up to change number {done.kept_after:,} (maintenance.keep_log)")


def export_status(
    task: TaskFile,
    folder: Annotated[Path, typer.Argument(help="The folder of the tables; created if it does not exist.")],
    as_json: Json = False,
) -> None:
    """Write a task's state as Qlik's control tables: attrep_status, attrep_history, attrep_suspended_tables.

    Delta tables, each rewritten in one commit: rows of tasks with other names stay, the history keeps what
    it has. Running or not, no JVM.
    """
    from ..config.task import load
    from ..operate.status_views import export

    wanted = load(task, connects=False)
    done = export(wanted, str(folder))
    if as_json:
        print_json(done)
        return
    for name, rows in done.items():
        out.print(f"{rows:>8,} rows of {escape(wanted.name)} in {escape(str(folder / name))}")
