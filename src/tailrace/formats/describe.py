"""Describes the declarations of formats as text: for `tailrace formats` and the documentation."""

from __future__ import annotations

from typing import Any

from . import get, names
from .base import Format


def summary() -> list[dict[str, str]]:
    """Returns a row per format: name, title, files, what it cannot hold."""
    return [
        {
            "format": form.name,
            "title": form.title,
            "files": ", ".join(form.files),
            "cannot hold": ", ".join(g.kind for g in form.cannot) or "nothing is lost",
        }
        for form in map(get, names())
    ]


def describe(form: Format) -> dict[str, Any]:
    """Returns all declarations of a format, for `--json`."""
    return {
        "name": form.name,
        "title": form.title,
        "source": form.source,
        "files": list(form.files),
        "order": list(form.order),
        "row_key": form.row_key,
        "images": form.images,
        "masks": form.masks,
        "operations": dict(form.operations),
        "types": dict(form.types),
        "holds": sorted(form.holds),
        "cannot": {g.kind: g.why for g in form.cannot},
        "options": {n: _option(form, n) for n in form.options.model_fields},
        "tables": {
            t.name: [{"column": c.name, "type": c.type, "means": c.means} for c in t.columns]
            for t in form.tables
        },
    }


def _option(form: Format, name: str) -> dict[str, str]:
    field = form.options.model_fields[name]
    return {"default": repr(field.get_default()), "about": field.description or ""}


def markdown(form: Format) -> str:
    """Returns the generated part of a format's page."""
    lines = [
        f"Files: {', '.join(form.files)}. Order: {', '.join(f'`{o}`' for o in form.order)}.",
        f"Row key: {form.row_key}. Images: {form.images}. Masks: {form.masks}.",
        "",
        *_table(["operation", "becomes"], [(f"`{k}`", v) for k, v in form.operations.items()]),
        *_table(
            ["option", "default", "meaning"],
            [(f"`{n}`", f"`{o['default']}`", o["about"]) for n, o in _options(form)],
        ),
        *_table(["cannot hold", "why"], [(g.kind, g.why) for g in form.cannot] or [("nothing is lost", "")]),
        *_table(["type", "in the lake"], [(f"`{k}`", f"`{v}`") for k, v in form.types.items()]),
    ]
    for table in form.tables:
        lines += [f"**`{table.name}`**: {table.about}", ""]
        rows = [
            (
                f"`{c.name}`",
                f"`{c.type}`",
                c.means,
                ", ".join(f"`{a}`" for a in c.aliases),
                "yes" if c.optional else "",
            )
            for c in table.columns
        ]
        lines += _table(["column", "type", "means", "also spelled", "optional"], rows)
    return "\n".join(lines).rstrip() + "\n"


def _options(form: Format) -> list[tuple[str, dict[str, str]]]:
    return [(n, _option(form, n)) for n in form.options.model_fields]


def overview() -> str:
    """Returns the generated part of the page about all formats."""
    rows = [
        (f"[{r['format']}]({r['format']}.md)", r["title"], r["files"], r["cannot hold"]) for r in summary()
    ]
    return "\n".join(_table(["format", "what it is", "files", "what is lost when written"], rows))


def _table(head: list[str], rows: list[Any]) -> list[str]:
    if not rows:
        return []
    cells = [[str(c).replace("|", "\\|").replace("\n", " ") for c in row] for row in rows]
    body = [f"| {' | '.join(row)} |" for row in cells]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body, ""]
