"""The command `drop`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from .out import out, print_json
from .task_file import TaskFile

if TYPE_CHECKING:
    from ..operate.dropping import DroppedTask
    from ..sources.base import SourceObject


def drop(
    task: TaskFile,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without this option, only show what would be removed.")
    ] = False,
    targets: Annotated[bool, typer.Option("--targets", help="Also remove the targets.")] = False,
    leave_source: Annotated[
        bool, typer.Option("--leave-source", help="Do not connect to the source: it is gone for good.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Remove a task: its slot, publication, LOG, change tables and state; its targets stay.

    Without --yes nothing is touched. The task must not run; the task file stays.
    """
    from ..config.task import load
    from ..operate.dropping import drop as dropped

    done = dropped(load(task), dry_run=not yes, targets=targets, source=not leave_source)
    if done.goes:
        done.stays.append(f"the task file {task}")
    if as_json:
        print_json(done.as_dict())
        return
    for line in lines(done):
        out.print(escape(line), soft_wrap=True)
    if not done.goes:
        out.print("there is nothing to drop")
    elif done.dry_run:
        more = "".join(f" {w}" for w, on in (("--targets", targets), ("--leave-source", leave_source)) if on)
        again = f"tailrace drop {escape(str(task))}{more} --yes"
        out.print(f"nothing was changed; to do it: {again}", soft_wrap=True)


def _words(one: SourceObject) -> str:
    from ..config.quantities import about

    size = [] if one.retained is None else [f"retains {about(one.retained)} of log"]
    said = "; ".join(filter(None, [*size, one.detail]))
    return f"{one.what} ({said})" if said else one.what


def lines(done: DroppedTask) -> list[str]:
    """What is removed and what stays, one line each."""
    from ..config.quantities import about

    goes = "would go" if done.dry_run else "gone"
    found = [f"{goes}: {_words(one)}" for one in done.source if one.ours]
    found += [f"{goes}: the target of {table}" for table in done.targets]
    found += [f"{goes}: {folder} ({about(size)})" for folder, size in done.folders.items()]
    found += [f"stays: {what}" for what in done.stays]
    found += [f"stays: {_words(one)}; to remove it: {one.sql}" for one in done.source if not one.ours]
    if not done.asked:
        found.append("stays: whatever the source keeps for the task; the source was not asked")
    return found
