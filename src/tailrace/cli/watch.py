"""The commands that report on a task: `status`, `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from .exit_codes import FINDINGS
from .output import err, out, print_json
from .params import AnyTables, DryRun, Json, TaskFile
from .process import seconds_of

if TYPE_CHECKING:
    from ..operate.disk import DiskUse
    from ..operate.status import Status


def status(
    task: TaskFile,
    max_lag: Annotated[
        str | None,
        typer.Option(
            "--max-lag",
            metavar="DURATION",
            help="End with code 3 if a table lags, or a process has not run, for longer than this: 90s, 5m.",
        ),
    ] = None,
    disk: Annotated[
        bool, typer.Option("--disk", help="Also show what takes disk space, and how it grows.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list what the wildcards of the task file leave out, and why.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what a task is doing, and its lag.

    Examples:
    tailrace status shop.yaml
    tailrace status shop.yaml --disk
    tailrace status shop.yaml --max-lag 5m --json
    """
    from ..config.task import load
    from ..operate.disk import measure
    from ..operate.status import late
    from ..operate.status import status as status_of

    limit = None if max_lag is None else seconds_of(max_lag)
    wanted = load(task, connects=False)
    found, use = status_of(wanted), measure(wanted) if disk else None
    reasons = [] if limit is None else late(found, limit)
    if as_json:
        more = {} if limit is None else {"late": reasons}
        print_json(found.as_dict() | more | ({} if use is None else {"disk": use.as_dict()}))
    else:
        _show_status(found, use, reasons, everything=everything)
    if reasons:
        raise typer.Exit(FINDINGS)


def _show_status(found: Status, use: DiskUse | None, reasons: list[str], *, everything: bool) -> None:
    from . import screen, screen_cost

    out.print(screen.status(found))
    if use is not None:
        out.print(screen_cost.disk(use))
    for name, why in found.left_out.items() if everything else ():
        out.print(f"left out {escape(name)}: {escape(why)}", soft_wrap=True)
    for reason in reasons:
        out.print(f"[red]late[/] {escape(reason)}", soft_wrap=True)


def validate(
    task: TaskFile,
    tables: AnyTables = None,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="How long to wait until the task has applied the snapshot's position: 90s, 5m.",
        ),
    ] = "2m",
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=0, help="Differing rows to show per table.")
    ] = 10,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Write the differences to the target as changes; a running task does so itself.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Compare source and target, table by table, at one common position.

    The exit code is 3 if they differ. With --repair, tables that differ are
    repaired and compared again; the exit code is 3 if they still differ.
    With --dry-run, the repair is only shown.

    Examples:
    tailrace validate shop.yaml
    tailrace validate shop.yaml shop.orders 'crm.*'
    tailrace validate shop.yaml --repair --dry-run
    """
    if repair or dry_run:
        _repair(task, tables or [], seconds_of(timeout), samples, dry_run=dry_run, as_json=as_json)
        return
    from ..config.task import load
    from ..runtime.setup import session_for, validate_task
    from . import screen
    from .screen_steps import bar

    timeout_s, wanted = seconds_of(timeout), load(task)
    session = session_for(wanted)
    session.begin()
    with bar(err, quiet=as_json) as steps:
        report = validate_task(
            task, wanted, tables or (), timeout_s=timeout_s, samples=samples, steps=steps, session=session
        )
    print_json(report.as_dict()) if as_json else out.print(screen.report(report))
    if not report.equal:
        raise typer.Exit(FINDINGS)


def _repair(
    task: Path, tables: list[str], timeout_s: float, samples: int, *, dry_run: bool, as_json: bool
) -> None:
    from ..config.task import load
    from ..runtime.setup import repair_task, session_for
    from . import screen
    from .screen_steps import bar

    wanted = load(task)
    with bar(err, quiet=as_json) as steps:
        before, done, after = repair_task(
            wanted,
            tables,
            dry_run=dry_run,
            samples=samples,
            timeout_s=timeout_s,
            steps=steps,
            session=session_for(wanted),
        )
    if as_json:
        repairs = {"repaired": [r.as_dict() for r in done], "after": after and after.as_dict()}
        print_json(before.as_dict() | repairs)
    else:
        out.print(screen.repaired(before, done, after))
    unrepaired = [r for r in done if r.refused or (dry_run and r.changes)]
    if unrepaired or (after is not None and not after.equal):
        raise typer.Exit(FINDINGS)
