"""The command `check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from .exit_codes import FINDINGS
from .out import err, out, print_json
from .task_file import TaskFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..sources.base import Finding


def check(
    task: TaskFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """List what would keep a task from working, and how to fix it; exit code 3 if there is an error.

    Nothing is changed, and no data is read.
    """
    from ..config.task import load
    from ..operate.checks import check_and_offers
    from ..runtime.session import session

    wanted = load(task)

    def spark() -> SparkSession:
        if not as_json:
            err.print("starting Spark to analyse the expressions in `tables`")
        return session(f"tailrace check {wanted.name}", conf=wanted.spark.session_conf)

    found, offers = check_and_offers(wanted, spark)
    if as_json:
        print_json({"findings": [vars(one) for one in found], "notes": [vars(one) for one in offers]})
    else:
        show([*found, *offers])
    if any(one.level == "error" for one in found):
        raise typer.Exit(FINDINGS)


def show(findings: Sequence[Finding]) -> None:
    """Prints findings, each with its fix, or what it offers."""
    if all(one.level == "note" for one in findings):
        out.print("no problems found")
    for one in findings:
        color = {"error": "red", "warning": "yellow"}.get(one.level, "blue")
        out.print(f"[{color}]{one.level}[/] {escape(one.what)} ({escape(one.where)})")
        # Never wrapped, so that SQL and commands can be copied. Fixes of several lines are separate blocks.
        label = "offer" if one.level == "note" else "cure"
        first, *more = (line.strip() for line in one.cure.splitlines() or [""])
        for text in (
            [f"{label}:", *(f"  {line}" for line in (first, *more))] if more else [f"{label}: {first}"]
        ):
            out.print(escape(f"  {text}"), soft_wrap=True)
