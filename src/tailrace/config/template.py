"""Task files as text: what `tailrace init` writes, from the declarations."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from .base import Settings
from .reference import shown
from .settings import SOLIDDB_SETTINGS
from .table_settings import OnConflict
from .task import Task

SCHEMA = "tailrace.schema.json"
"""The file with the JSON schema, next to the task file (`task_schema`)."""
_ALWAYS = {"name", "home", "url", "tables", "path"}
"""Settings that are written out even if they have their default."""
_LANGUAGE_SERVER = f"# yaml-language-server: $schema={SCHEMA}"


def brief(task: Task, *, url: str) -> str:
    """A task file with the settings that most people change: source, tables, target, freshness, retention.

    Args:
        task: the task.
        url: the source's address as it is written: `${NAME}` in it stays.
    """
    target = task.target.database or _relative(task.target.path, task.folder)
    return f"""{_LANGUAGE_SERVER}
# A task of tailrace. `tailrace init --full` writes every setting; docs/task-file.md explains them.
name: {_yaml(task.name)}

source:
  url: {_yaml(url)}
  # Tables to capture: schema.table, with * and ? as in file names.
  tables:
{_list(task.source.tables)}
# A folder of Delta tables, {{type: iceberg}}, or a database: postgresql://user@host:port/database
target: {_yaml(target)}

# How long changes are gathered before they are written: auto (up to 15 s), 1s, 15s, 5m.
freshness: {shown(Task.model_fields["freshness"], task.freshness)}

retention:
  # How long change tables keep a change: 30d, or forever. What is still needed is kept longer.
  keep: {shown(type(task.retention).model_fields["keep"], task.retention.keep)}
"""


def full(task: Task, *, url: str | None = None) -> str:
    """A task file with every setting and its documentation; defaults are comments.

    Args:
        task: the task.
        url: the source's address as it is written: `${NAME}` in it stays; by default the one in use.
    """
    lines = [
        _LANGUAGE_SERVER,
        "# A task of tailrace. A setting after a # has its default value.",
        "",
    ]
    for name, field in type(task).model_fields.items():
        value = getattr(task, name)
        if isinstance(value, Settings):
            lines += [*_comment(type(value).__doc__ or "", ""), f"{name}:"]
            for key, inner in type(value).model_fields.items():
                if name == "source" and key in SOLIDDB_SETTINGS and not task.source.of_soliddb:
                    continue
                shown_value = url if key == "url" and url else getattr(value, key)
                lines += _setting(key, inner, shown_value, task.folder, indent="  ")
        else:
            lines += _setting(name, field, value, task.folder, indent="")
        lines.append("")
    return "\n".join(lines)


def _setting(name: str, field: FieldInfo, value: Any, folder: Path, *, indent: str) -> Iterator[str]:
    yield from _comment(field.description or "", indent)
    written = (name in _ALWAYS and value is not None) or value != field.get_default(call_default_factory=True)
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
    return _yaml(_relative(value, folder)) if isinstance(value, str) else shown(field, value)


def _relative(path: str, folder: Path) -> str:
    """A path relative to the task file's folder if it is inside; any other text unchanged."""
    inside = Path(path).is_absolute() and Path(path).is_relative_to(folder) and path != str(folder)
    return str(Path(path).relative_to(folder)) if inside else path


def _yaml(text: str) -> str:
    """A text as a YAML value."""
    return yaml.safe_dump(text, width=10_000, allow_unicode=True).removesuffix("\n...\n").strip()


def _list(names: list[str]) -> str:
    """Names as a YAML list below `source.tables`."""
    return "".join(f"    - {_yaml(name)}\n" for name in names)


def _comment(text: str, indent: str) -> list[str]:
    words = " ".join(text.split())
    return textwrap.wrap(words, 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
