"""Parameters that several commands share: each has one name, one letter and one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .process import checked


def _file(given: str | Path) -> Path:
    from ..config.task import file_of, load

    found = file_of(Path(given))
    if not found.exists():
        load(found)  # is refused before a command loads all that it needs
    return found


def names_a_task_file(text: str) -> bool:
    """Whether a path is that of a task file, existing or not, and not of a folder.

    >>> names_a_task_file("none.yaml"), names_a_task_file("lake/ir_keylog")
    (True, False)
    """
    return Path(text).is_file() or Path(text).suffix in (".yaml", ".yml")


def _address(text: str) -> None:
    from ..runtime.metrics.serve import address

    address(text)


_PATTERNS = "schema.table, with * and ? as in file names."
TaskFile = Annotated[
    Path,
    typer.Argument(help="The task file (YAML), or the folder that has one.", metavar="TASK", parser=_file),
]
OneTable = Annotated[str, typer.Argument(help="schema.table", metavar="TABLE")]
Tables = Annotated[list[str], typer.Argument(help=_PATTERNS, metavar="TABLE")]
AnyTables = Annotated[
    list[str] | None, typer.Argument(help=f"{_PATTERNS} Default: all tables.", metavar="TABLE")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done; change nothing.")]
Limit = Annotated[
    int, typer.Option("--limit", "-n", metavar="N", min=0, help="Maximum number of rows to show.")
]
Key = Annotated[
    list[str] | None,
    typer.Option(
        "--key", "-k", metavar="NAME=VALUE", help="Value of a key column. May be repeated for other columns."
    ),
]
RequiredKey = Annotated[
    list[str],
    typer.Option(
        "--key", "-k", metavar="NAME=VALUE", help="Value of a key column. May be repeated for other columns."
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Process the changes available now, then stop.")]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve Prometheus metrics at this address.",
        callback=checked(_address),
    ),
]
FormatOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Option of a format (`tailrace formats NAME` lists them). May be repeated. With two formats, "
        "the prefix `from.` or `to.` selects one.",
    ),
]
Files = Annotated[
    str, typer.Option("--files", metavar="KIND", help="Files to write: parquet, csv, json or delta.")
]
ReplaceArchives = Annotated[
    bool,
    typer.Option(
        "--replace-archives",
        help="Allow archives (`mode: archive`) to lose the changes that they have kept.",
    ),
]
Why = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="The reason, shown by `status` and in the log.")
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="DURATION", help="Remove changes committed longer ago than this: 12h, 7d."
    ),
]
