"""Task files as text: what `tailrace init` writes, and the reference page, both from the declarations."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from . import quantities
from .base import Settings
from .groups import GroupSettings
from .table_settings import OnConflict, TableSettings
from .task import Task

SCHEMA = "tailrace.schema.json"
"""The file with the JSON schema, next to the task file (`task_schema`)."""
ALWAYS = {"name", "home", "url", "tables", "path"}
"""Settings that are written out even if they have their default."""


def dump(task: Task, *, url: str | None = None) -> str:
    """A task as a commented task file; settings with their default value are comments.

    `url` is written as the source's address instead of the one in use: `${NAME}` in it stays as it is.
    """
    lines = [
        f"# yaml-language-server: $schema={SCHEMA}",
        "# A tailrace task, run by `tailrace run`. A setting behind a # has its default value.",
        "",
    ]
    for name, field in type(task).model_fields.items():
        value = getattr(task, name)
        if isinstance(value, Settings):
            lines += [*_comment(type(value).__doc__ or "", ""), f"{name}:"]
            for key, inner in type(value).model_fields.items():
                shown_value = url if key == "url" and url else getattr(value, key)
                lines += _setting(key, inner, shown_value, task.folder, indent="  ")
        else:
            lines += _setting(name, field, value, task.folder, indent="")
        lines.append("")
    return "\n".join(lines)


def _setting(name: str, field: FieldInfo, value: Any, folder: Path, *, indent: str) -> Iterator[str]:
    yield from _comment(field.description or "", indent)
    written = (name in ALWAYS and value is not None) or value != field.get_default(call_default_factory=True)
    sign = "" if written else "# "
    if isinstance(value, (list, dict)) and value:
        text = yaml.safe_dump(_plain(value), sort_keys=False, allow_unicode=True).splitlines()
        yield f"{indent}{sign}{name}:"
        yield from (f"{indent}{sign}  {line}" for line in text)
    else:
        yield f"{indent}{sign}{name}: {_scalar(field, value, folder)}".rstrip()


def _plain(value: Any) -> Any:
    """A value without models: as in a task file."""
    if isinstance(value, OnConflict):
        return str(value)
    if isinstance(value, Settings):
        return {name: _plain(getattr(value, name)) for name in sorted(value.model_fields_set)}
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _scalar(field: FieldInfo, value: Any, folder: Path) -> str:
    text = shown(field, value)
    if isinstance(value, str):
        if Path(value).is_absolute() and Path(value).is_relative_to(folder) and value != str(folder):
            text = str(Path(value).relative_to(folder))
        return yaml.safe_dump(text, width=10_000, allow_unicode=True).removesuffix("\n...\n").strip()
    return text


def _comment(text: str, indent: str) -> list[str]:
    words = " ".join(text.split())
    return textwrap.wrap(words, 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def shown(field: FieldInfo, value: Any) -> str:
    """A setting's value as in a task file."""
    if value is None:
        return ""
    readers = _readers(field)
    if quantities.how_long in readers or quantities.seconds in readers:
        return quantities.show_how_long(value)
    if quantities.size in readers:
        return quantities.show_size(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)


def has_unit(field: FieldInfo) -> bool:
    """Whether a setting's values are durations or sizes."""
    return bool({quantities.how_long, quantities.seconds, quantities.size} & set(_readers(field)))


def _readers(field: FieldInfo) -> list[Any]:
    return [getattr(part, "func", None) for part in field.metadata]


def reference() -> str:
    """The page `docs/task-file.md`, in Markdown."""
    lines = [
        "# The task file",
        "",
        "Generated from `tailrace.config` by `make docs`; do not edit.",
        "",
        "A task file is YAML. `tailrace init URL` writes one; only `name` and `source.url` are required.",
        "Folders are relative to the file. Durations are written `500ms`, `1s`, `5m`, `2h`, `7d`, sizes",
        "`64MiB`, `1GiB`; settings of how much is read or held at once, and how long a loop rests, are more",
        "than 0. A file with mistakes is refused, with every mistake and its line. Editors can",
        "[complete it](install.md#task-files-in-an-editor). The smallest one:",
        "",
        "```yaml",
        "name: shop",
        "source:",
        "  url: postgresql://me@localhost:5432/shop",
        "```",
        "",
        "## Top level",
        "",
    ]
    sections = {name: found for name, f in Task.model_fields.items() if (found := _section(f)) is not None}
    lines += _table({name: f for name, f in Task.model_fields.items() if name not in sections})
    for name, section in sections.items():
        lines += ["", f"## `{name}`", "", section.__doc__ or "", "", *_table(section.model_fields)]
    about = "Settings under a pattern of `tables`; the defaults are those of `apply`."
    lines += ["", "## A table of `tables`", "", about, "", *_table(TableSettings.model_fields)]
    lines += ["", "## A group of `groups`", "", GroupSettings.__doc__ or "", ""]
    lines += _table(GroupSettings.model_fields)
    return "\n".join(lines) + "\n"


def _section(field: FieldInfo) -> type[Settings] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _table(fields: dict[str, FieldInfo]) -> Iterator[str]:
    yield "| setting | default | meaning |"
    yield "| --- | --- | --- |"
    for name, field in fields.items():
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        if len(choices) > 1:
            meaning += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        yield f"| `{name}` | {_default(field)} | {meaning} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "shown" in extra:
        return str(extra["shown"])
    text = shown(field, field.get_default(call_default_factory=True))
    return f"`{text}`" if text else ""
