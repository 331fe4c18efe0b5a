"""The commands around a task's life: `init`, `check`, `drop`, `prepare`, `schema`, `demo`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from .exit_codes import FINDINGS
from .output import err, out, print_json
from .params import AnyTables, Json, TaskFile
from .process import seconds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..operate.drop import DroppedTask
    from ..runtime.setup import Draft
    from ..sources.base import Finding, SourceObject


def init(
    url: Annotated[str, typer.Argument(help="The source: postgresql://user@host/database.", metavar="URL")],
    tables: AnyTables = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="The task file to write; default: NAME.yaml."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Name of the task. Default: the name of the source's database."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Write every setting, with its documentation.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a task file for a database, and list what the server still needs.

    The exit code is 3 if a finding is an error.

    Examples:
    tailrace init postgresql://me@db/shop
    tailrace init postgresql://me@db/shop 'shop.*' --file shop.yaml
    tailrace init postgresql://me@db/shop 'shop.*' crm.client --full
    """
    from ..runtime.setup import draft

    made = draft(url, name=name, patterns=tables or None, output=file, force=force, full=full)
    if as_json:
        print_json(made.as_dict())
    else:
        _show_draft(made)
    if any(one.level == "error" for one in made.findings):
        raise typer.Exit(FINDINGS)


def _show_draft(made: Draft) -> None:
    many = len(made.tables)
    out.print(f"wrote {made.path} for {many} {'table' if many == 1 else 'tables'}", soft_wrap=True)
    show(made.findings)
    if made.variables:
        each = "the password is" if len(made.variables) == 1 else "the passwords, in their order, are"
        names = ", ".join(made.variables)
        out.print(
            f"{each} not in the file: set {names} in the environment, written as in the address",
            soft_wrap=True,
        )
    errors = any(one.level == "error" for one in made.findings)
    then = (
        f"fix the errors, then: tailrace check {made.path}" if errors else f"next: tailrace run {made.path}"
    )
    out.print(then, soft_wrap=True)


def check(task: TaskFile, as_json: Json = False) -> None:
    """List what would keep a task from working, and how to fix it.

    Nothing is changed, and no rows are read. The exit code is 3 if a finding
    is an error.

    Examples:
    tailrace check shop.yaml
    tailrace check shop.yaml --json
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
    """Prints findings, each with its fix, or with what it offers."""
    if all(one.level == "note" for one in findings):
        out.print("no problems found")
    for one in findings:
        color = {"error": "red", "warning": "yellow"}.get(one.level, "blue")
        out.print(f"[{color}]{one.level}[/] {escape(one.what)} ({escape(one.where)})")
        # Never wrapped, so that SQL and commands can be copied. Fixes of several lines are separate blocks.
        label = "offer" if one.level == "note" else "hint"
        first, *more = (line.strip() for line in one.cure.splitlines() or [""])
        for text in (
            [f"{label}:", *(f"  {line}" for line in (first, *more))] if more else [f"{label}: {first}"]
        ):
            out.print(escape(f"  {text}"), soft_wrap=True)


def drop(
    task: TaskFile,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without this option, only show what would be removed.")
    ] = False,
    targets: Annotated[bool, typer.Option("--targets", help="Also remove the targets.")] = False,
    leave_source: Annotated[
        bool, typer.Option("--leave-source", help="Do not connect to the source, which no longer exists.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove a task: its slot, publication, LOG, change tables and state.

    Targets and the task file stay. The task must not run. Without --yes
    nothing is changed.

    Examples:
    tailrace drop shop.yaml
    tailrace drop shop.yaml --yes
    tailrace drop shop.yaml --targets --yes
    """
    from ..config.task import load
    from ..operate.drop import drop as dropped

    done = dropped(load(task), dry_run=not yes, targets=targets, source=not leave_source)
    if done.goes:
        done.stays.append(f"the task file {task}")
    if as_json:
        print_json(done.as_dict())
        return
    for line in lines(done):
        out.print(escape(line), soft_wrap=True)
    if not done.goes:
        out.print("there is nothing to remove")
    elif done.dry_run:
        more = "".join(f" {w}" for w, on in (("--targets", targets), ("--leave-source", leave_source)) if on)
        again = f"tailrace drop {escape(str(task))}{more} --yes"
        out.print(f"nothing was changed; to do it: {again}", soft_wrap=True)


def lines(done: DroppedTask) -> list[str]:
    """Lists what is removed and what stays, one line each."""
    from ..config.quantities import about

    removed = "would be removed" if done.dry_run else "removed"
    found = [f"{removed}: {_label(one)}" for one in done.source if one.ours]
    found += [f"{removed}: the target of {table}" for table in done.targets]
    found += [f"{removed}: {folder} ({about(size)})" for folder, size in done.folders.items()]
    found += [f"stays: {what}" for what in done.stays]
    found += [f"stays: {_label(one)}; to remove it: {one.sql}" for one in done.source if not one.ours]
    if not done.asked:
        found.append("stays: everything that the source keeps for the task; there was no connection to it")
    return found


def _label(one: SourceObject) -> str:
    from ..config.quantities import about

    size = [] if one.retained is None else [f"retains {about(one.retained)} of log"]
    details = "; ".join(filter(None, [*size, one.detail]))
    return f"{one.what} ({details})" if details else one.what


def prepare(as_json: Json = False) -> None:
    """Prepare a machine or an image: fetch Spark's jars, speed up Java's start.

    Examples:
    tailrace prepare
    """
    from ..runtime import class_archive, jars
    from .screen_steps import bar

    with bar(err, quiet=as_json) as steps:
        steps.now("fetching Delta's jars")
        fetched = jars.resolve_jars()
        steps.now("starting Spark once, to keep its classes (about a minute)")
        file = class_archive.make()
    size = file.stat().st_size if file else 0
    if as_json:
        print_json({"jars": len(fetched), "classes": str(file) if file else None, "bytes": size})
        return
    kept = f"{size / 1e6:,.0f} MB of classes in {file}" if file else "this Java cannot keep classes"
    out.print(f"{len(fetched)} jars; {escape(kept)}", soft_wrap=True)


def schema() -> None:
    """Print the JSON schema of task files, for completion in editors.

    Examples:
    tailrace schema > tailrace.schema.json
    """
    from ..config.task_schema import text

    sys.stdout.write(text())


def demo(
    folder: Annotated[
        Path, typer.Option("--folder", metavar="FOLDER", help="Folder for the demo's files.")
    ] = Path("demo-data"),
    duration: Annotated[
        str, typer.Option("--duration", metavar="DURATION", help="How long to write: 15s, 2m.")
    ] = "15s",
    scale: Annotated[
        int, typer.Option("--scale", metavar="N", min=1, help="pgbench scale; 100,000 accounts each.")
    ] = 10,
    store: Annotated[
        str, typer.Option("--store", metavar="ADDRESS", help="Object store for the task: s3://bucket/folder.")
    ] = "",
    iceberg: Annotated[bool, typer.Option("--iceberg", help="Iceberg targets instead of Delta.")] = False,
    as_json: Json = False,
) -> None:
    """Run a demo: an embedded PostgreSQL, load, and a comparison of the tables.

    Examples:
    tailrace demo
    tailrace demo --duration 1m --scale 1
    tailrace demo --store s3://bucket/demo --iceberg
    """
    from ..demo import demo as play
    from ..demo.demo_folder import TaskTables

    tables = TaskTables(store.rstrip("/"), iceberg)
    if not play(folder, seconds=seconds_of(duration), scale=scale, tables=tables, as_json=as_json):
        raise typer.Exit(FINDINGS)
