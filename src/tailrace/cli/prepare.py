"""The command `prepare`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from .out import err, out, print_json
from .screen_steps import bar


def prepare(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Fetch Spark's jars, and have Java start faster from now on: once on a machine, or in an image."""
    from ..runtime import class_archive, jars

    with bar(err, quiet=as_json) as steps:
        steps.now("fetching Delta's jars")
        fetched = jars.resolve_jars()
        steps.now("starting Spark once, to keep its classes (about a minute)")
        file = class_archive.make()
    size = file.stat().st_size if file else 0
    if as_json:
        print_json({"jars": len(fetched), "classes": str(file) if file else None, "bytes": size})
        return
    kept = f"{size / 1e6:,.0f} MB of classes in {file}" if file else "this Java keeps no classes of others"
    out.print(f"{len(fetched)} jars; {escape(kept)}", soft_wrap=True)
