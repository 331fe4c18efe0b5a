"""`tailrace demo`: an embedded PostgreSQL, real load, and a comparison of source and targets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .demo_folder import TaskTables


def demo(
    folder: Path, *, seconds: float, scale: int, tables: TaskTables | None = None, as_json: bool
) -> bool:
    """Runs the demo and leaves everything in a folder; returns whether all targets were equal to the source.

    Args:
        folder: created, or replaced if an earlier demo created it (otherwise ConfigError).
        seconds: the duration of the load by pgbench and the shop's writer.
        scale: pgbench's scale; 100,000 accounts each.
        tables: the location and the format of the task's tables; None: Delta tables in the folder.
        as_json: one JSON document on standard output instead of text.
    """
    from .play import play
    from .show import Show

    show = Show(quiet=as_json)
    played = play(folder, seconds=seconds, scale=scale, tables=tables or TaskTables(), show=show)
    if as_json:
        sys.stdout.write(json.dumps(played.as_dict(), indent=2, default=str) + "\n")
    else:
        show.result(played)
    return played.equal
