"""The reference page of task files, and values as people write them, from the declarations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from . import quantities
from .base import Settings
from .groups import GroupSettings
from .settings import SOLIDDB_SETTINGS, SourceSettings
from .table_settings import TableSettings
from .task import Task


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
        "A task file is YAML. `tailrace init URL` writes one with the settings that most people change,",
        "`init --full` one with every setting. Only `name` and `source.url` are required.",
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
        fields = {
            key: f
            for key, f in section.model_fields.items()
            if name != "source" or key not in SOLIDDB_SETTINGS
        }
        lines += ["", f"## `{name}`", "", section.__doc__ or "", "", *_table(fields)]
    lines += ["", "## `source` of solidDB", "", _SOLIDDB, ""]
    lines += _table({key: SourceSettings.model_fields[key] for key in SOLIDDB_SETTINGS})
    about = "Settings under a pattern of `tables`; the defaults are those of `apply`."
    lines += ["", "## A table of `tables`", "", about, "", *_table(TableSettings.model_fields)]
    lines += ["", "## A group of `groups`", "", GroupSettings.__doc__ or "", ""]
    lines += _table(GroupSettings.model_fields)
    return "\n".join(lines) + "\n"


_SOLIDDB = "Further settings of a source whose `url` begins with `soliddb://`; other sources refuse them."


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
