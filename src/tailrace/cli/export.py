"""The commands that write a task's data in another vendor's tables: `export-log`, `export-status`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from .output import err, out, print_json
from .params import Files, FormatOptions, Json, TaskFile

_LOCAL_BYTES = 256 << 20
"""LOG up to this size is written without Spark."""


def export_log(
    task: TaskFile,
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="A new folder for SYS_LOG, SYS_TABLES and SYS_COLUMNS.")
    ],
    option: FormatOptions = None,
    files: Files = "parquet",
    as_json: Json = False,
) -> None:
    """Write a task's LOG as solidDB's SYS_LOG.

    Examples:
    tailrace export-log shop.yaml sys_log/
    tailrace export-log shop.yaml sys_log/ --files csv --option row_layout=B
    """
    from ..config.task import load
    from ..operate.sys_log import export_sys_log, needs_spark, refuse
    from .process import pair
    from .screen_spark import started
    from .screen_steps import bar

    wanted, given = load(task, connects=False), dict(pair(o) for o in option or [])
    refuse(wanted.log_path, folder, files, given)
    paths = (wanted.log_path, wanted.relations_path, folder)
    doing = "writing SYS_LOG"
    if (why := needs_spark(wanted.log_path, files, given, _LOCAL_BYTES)) is None:
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
        out.print(
            f"{done.absent_columns:>12,} images have no value for some columns, which are NULL in SYS_LOG"
        )
    for what, empty in (("bytes", done.empty_binary), ("text", done.empty_text)):
        if empty:
            out.print(f"{empty:>12,} images have empty {what}, which are NULL in row layout A")
    if done.kept_after:
        out.print(f"LOG no longer has records up to change number {done.kept_after:,} (maintenance.keep_log)")


def export_status(
    task: TaskFile,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the tables; created if it does not exist.")
    ],
    as_json: Json = False,
) -> None:
    """Write a task's state as Qlik's control tables.

    attrep_status, attrep_history and attrep_suspended_tables are Delta tables,
    each written in one commit. Rows of other tasks stay, and the history keeps
    its rows. The task may run. No JVM.

    Examples:
    tailrace export-status shop.yaml control/
    """
    from ..config.task import load
    from ..operate.vendor_status import export

    wanted = load(task, connects=False)
    done = export(wanted, str(folder))
    if as_json:
        print_json(done)
        return
    for name, rows in done.items():
        out.print(f"{rows:>8,} rows of {escape(wanted.name)} in {escape(str(folder / name))}")
